"""Stores lineage: a job's facts as its workers reported them, the job it repeats, and the data versions it read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, select

from fairlead.control.records import Lineage
from fairlead.control.store.data_schema import lineage, lineage_inputs
from fairlead.control.store.row_mapping import column_values, insert_into, row_of

_ROW = [lineage.c[name] for name in Lineage.__slots__]
MAX_JOBS = 100  # listed per version


def begin(conn: Connection, job: str, tenant: str, again: Mapping[str, Any] | None, now_s: float) -> None:
    """Record at submission which job this job repeats."""
    conn.execute(insert_into(conn.dialect.name, lineage), row_of(Lineage(job, tenant, {}, again, now_s)))


def record_facts(conn: Connection, job: str, tenant: str, said: Mapping[str, Any], now_s: float) -> None:
    """Store the facts that its workers reported; a later report replaces an earlier one."""
    row = row_of(Lineage(job, tenant, said, None, now_s))
    statement = insert_into(conn.dialect.name, lineage)
    changes = column_values({"record": said})
    conn.execute(statement.on_conflict_do_update(index_elements=["job"], set_=changes), row)


def get(conn: Connection, job: str) -> Lineage | None:
    row = conn.execute(select(*_ROW).where(lineage.c.job == job)).one_or_none()
    return None if row is None else Lineage(*row)


def record_inputs(conn: Connection, job: str, tenant: str, inputs: Iterable[tuple[str, str]]) -> None:
    """Record the data versions that a job reads."""
    rows = [{"job": job, "tenant": tenant, "name": name, "version": version} for name, version in inputs]
    if rows:
        conn.execute(insert_into(conn.dialect.name, lineage_inputs).on_conflict_do_nothing(), rows)


def inputs(conn: Connection, job: str) -> list[tuple[str, str]]:
    """Name and version of the data that a job read."""
    columns = lineage_inputs.c.name, lineage_inputs.c.version
    query = select(*columns).where(lineage_inputs.c.job == job).order_by(*columns)
    return [(name, version) for name, version in conn.execute(query)]


def readers(conn: Connection, tenant: str, name: str) -> dict[str, list[str]]:
    """The jobs that read each version of a data set."""
    query = (
        select(lineage_inputs.c.version, lineage_inputs.c.job)
        .where(lineage_inputs.c.tenant == tenant, lineage_inputs.c.name == name)
        .order_by(lineage_inputs.c.version, lineage_inputs.c.job)
    )
    found: dict[str, list[str]] = {}
    for version, job in conn.execute(query):
        found.setdefault(version, []).append(job)
    return {version: jobs[:MAX_JOBS] for version, jobs in found.items()}
