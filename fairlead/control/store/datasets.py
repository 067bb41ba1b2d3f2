"""Data sets of tenants: versions that are added and dropped, and never changed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sqlalchemy import Connection, delete, func, select

from fairlead.control.records import DataSet
from fairlead.control.store.data_schema import datasets
from fairlead.control.store.row_mapping import fields, insert_into
from fairlead.errors import NotFound

_ROW = [datasets.c[name] for name in DataSet.__slots__]


def add(conn: Connection, made: DataSet) -> DataSet:
    """Keep this version under the next number; of content that is known already, only where it lies may be new."""
    own = (datasets.c.tenant == made.tenant) & (datasets.c.name == made.name)
    newest = conn.execute(select(func.max(datasets.c.number)).where(own)).scalar()
    numbered = replace(made, number=int(newest or 0) + 1)
    row = fields(numbered)
    again = {name: row[name] for name in ("manifest", "fitted", "size_bytes")}
    statement = insert_into(conn.dialect.name, datasets)
    conn.execute(statement.on_conflict_do_update(index_elements=["tenant", "name", "version"], set_=again), row)
    return find(conn, made.tenant, made.name, made.version)


def find(conn: Connection, tenant: str, name: str, version: str | None = None) -> DataSet:
    """The version that begins so, or the newest; raises NotFound if there is none, or more than one."""
    found = versions(conn, tenant, name)
    fitting = found if version is None else [each for each in found if each.version.startswith(version)]
    if not found:
        raise NotFound(f"there is no data set {name!r}", field="data", value=name,
                       fix=f"see fairlead data list, or load it: fairlead data load FILE --name {name}")  # fmt: skip
    exact = [each for each in fitting if each.version == version]
    if not fitting or (version is not None and len(fitting) > 1 and not exact):
        what = "no version" if not fitting else "several versions"
        raise NotFound(f"{name} has {what} that begins with {version}", field="data", value=f"{name}@{version}",
                       fix=f"see fairlead data show {name}")  # fmt: skip
    return (exact or fitting)[-1]


def versions(conn: Connection, tenant: str, name: str) -> list[DataSet]:
    """All versions of one data set, the oldest first."""
    query = select(*_ROW).where(datasets.c.tenant == tenant, datasets.c.name == name).order_by(datasets.c.number)
    return [DataSet(*row) for row in conn.execute(query)]


def newest(conn: Connection, tenant: str | None, before_s: float | None = None) -> list[DataSet]:
    """The newest version of each data set (of all tenants, if none is named), as it was at that moment."""
    query = select(*_ROW).order_by(datasets.c.tenant, datasets.c.name, datasets.c.number)
    if tenant is not None:
        query = query.where(datasets.c.tenant == tenant)
    if before_s is not None:
        query = query.where(datasets.c.created_s <= before_s)
    return list({(row.tenant, row.name): DataSet(*row) for row in conn.execute(query)}.values())


def sizes(conn: Connection, tenant: str, names: Collection[str]) -> dict[tuple[str, str], int]:
    """Bytes of all versions of these data sets, by name and version."""
    query = select(datasets.c.name, datasets.c.version, datasets.c.size_bytes).where(
        datasets.c.tenant == tenant, datasets.c.name.in_(list(names))
    )
    return {(name, version): int(size) for name, version, size in conn.execute(query)}


def labels(conn: Connection, tenant: str, names: Collection[str]) -> dict[tuple[str, str], list[str]]:
    """Of all versions of these data sets, by name and version: under which labels nodes hold their blocks."""
    query = select(datasets.c.name, datasets.c.version, datasets.c.manifest["labels"]).where(
        datasets.c.tenant == tenant, datasets.c.name.in_(list(names))
    ).order_by(datasets.c.number)  # fmt: skip
    return {(name, version): found or [f"dataset/{name}"] for name, version, found in conn.execute(query)}


def drop(conn: Connection, tenant: str, name: str, version: str | None) -> list[DataSet]:
    """Forget one version, or all of them; returns what was forgotten."""
    gone = versions(conn, tenant, name) if version is None else [find(conn, tenant, name, version)]
    if not gone:
        find(conn, tenant, name)  # says that there is none
    own = (datasets.c.tenant == tenant) & (datasets.c.name == name)
    conn.execute(delete(datasets).where(own, datasets.c.version.in_([each.version for each in gone])))
    return gone
