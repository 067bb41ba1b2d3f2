"""Stores versions of tenants' data sets. A version is added and dropped, and never changes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sqlalchemy import Connection, delete, func, select

from fairlead.control.records import DataSet
from fairlead.control.store.data_schema import datasets
from fairlead.control.store.row_mapping import insert_into, row_of
from fairlead.errors import NotFound

_ROW = [datasets.c[name] for name in DataSet.__slots__]


def add(conn: Connection, made: DataSet) -> DataSet:
    """Store this version under the next number. Content that is stored already keeps its number and may only move."""
    own = (datasets.c.tenant == made.tenant) & (datasets.c.name == made.name)
    newest = conn.execute(select(func.max(datasets.c.number)).where(own)).scalar()
    numbered = replace(made, number=int(newest or 0) + 1)
    row = row_of(numbered)
    again = {name: row[name] for name in ("manifest", "fitted", "size_bytes")}
    statement = insert_into(conn.dialect.name, datasets)
    conn.execute(statement.on_conflict_do_update(index_elements=["tenant", "name", "version"], set_=again), row)
    return find(conn, made.tenant, made.name, made.version)


def find(conn: Connection, tenant: str, name: str, version: str | None = None) -> DataSet:
    """The version with this beginning, or the newest. Raises NotFound if there is none or several."""
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


def newest_versions(conn: Connection, tenant: str | None, before_s: float | None = None) -> list[DataSet]:
    """The newest version of each data set of one tenant (None: of all), optionally as of a time."""
    query = select(*_ROW).order_by(datasets.c.tenant, datasets.c.name, datasets.c.number)
    if tenant is not None:
        query = query.where(datasets.c.tenant == tenant)
    if before_s is not None:
        query = query.where(datasets.c.created_s <= before_s)
    return list({(row.tenant, row.name): DataSet(*row) for row in conn.execute(query)}.values())


def labels_by_version(conn: Connection, tenant: str, names: Collection[str]) -> dict[tuple[str, str], list[str]]:
    """By name and version: the labels under which nodes hold the blocks of these data sets."""
    query = select(datasets.c.name, datasets.c.version, datasets.c.manifest["labels"]).where(
        datasets.c.tenant == tenant, datasets.c.name.in_(list(names))
    ).order_by(datasets.c.number)  # fmt: skip
    return {(name, version): found or [f"dataset/{name}"] for name, version, found in conn.execute(query)}


def drop(conn: Connection, tenant: str, name: str, version: str | None) -> list[DataSet]:
    """Delete one version, or all of them; returns the deleted versions."""
    gone = versions(conn, tenant, name) if version is None else [find(conn, tenant, name, version)]
    if not gone:
        find(conn, tenant, name)  # raises NotFound
    own = (datasets.c.tenant == tenant) & (datasets.c.name == name)
    conn.execute(delete(datasets).where(own, datasets.c.version.in_([each.version for each in gone])))
    return gone
