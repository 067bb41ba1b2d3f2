"""Records what ended jobs left in their folders and its size on disk, measured once."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select, text
from sqlalchemy import update as update_rows

from fairlead.control.store.retention_schema import keepsakes
from fairlead.control.store.row_deletion import JobEnd
from fairlead.control.store.row_mapping import insert_into

_HELD = text("size_bytes > 0")  # a literal, so that the partial index is used


@dataclass(frozen=True, slots=True)
class RetainedOutput:
    """The folders that one job left, and their size."""

    job: str
    tenant: str
    finished_s: float
    parts: tuple[str, ...]
    size_bytes: int


def record_outputs(conn: Connection, left: Iterable[RetainedOutput]) -> None:
    """Store measurements; replaces the size of jobs measured before."""
    rows: list[dict[str, Any]] = [
        {"job": one.job, "tenant": one.tenant, "finished_s": one.finished_s, "parts": " ".join(one.parts),
         "size_bytes": one.size_bytes} for one in left
    ]  # fmt: skip
    if rows:
        row = insert_into(conn.dialect.name, keepsakes)
        again = {"size_bytes": row.excluded.size_bytes}
        conn.execute(row.on_conflict_do_update(keepsakes.primary_key, set_=again), rows)


def resize(conn: Connection, job: str, size_bytes: int) -> tuple[str, int] | None:
    """Record the job's new size. Returns its tenant and the bytes freed; None: the job left nothing."""
    row = conn.execute(select(keepsakes.c.tenant, keepsakes.c.size_bytes).where(keepsakes.c.job == job)).one_or_none()
    if row is None:
        return None
    conn.execute(update_rows(keepsakes).where(keepsakes.c.job == job).values(size_bytes=size_bytes))
    return row.tenant, int(row.size_bytes or 0) - size_bytes


def measured_among(conn: Connection, ids: Collection[str]) -> set[str]:
    """Of these jobs: the ones measured after their end."""
    known = keepsakes.c.job.in_(list(ids)), keepsakes.c.size_bytes.is_not(None)
    return set(conn.execute(select(keepsakes.c.job).where(*known)).scalars())


def list_unmeasured(conn: Connection, limit: int) -> list[str]:
    """Jobs that ended before sizes were measured."""
    return list(conn.execute(select(keepsakes.c.job).where(keepsakes.c.size_bytes.is_(None)).limit(limit)).scalars())


def bytes_by_tenant(conn: Connection) -> dict[str, int]:
    """Retained bytes by tenant."""
    query = select(keepsakes.c.tenant, func.sum(keepsakes.c.size_bytes)).where(_HELD).group_by(keepsakes.c.tenant)
    return {tenant: int(size) for tenant, size in conn.execute(query)}


def oldest_outputs(conn: Connection, tenant: str, limit: int) -> list[tuple[JobEnd, int]]:
    """The tenant's jobs with retained files and their sizes, in order of their ends."""
    place = keepsakes.c.finished_s, keepsakes.c.job
    query = select(*place, keepsakes.c.size_bytes).where(keepsakes.c.tenant == tenant, _HELD)
    return [(JobEnd(finished_s, job), int(size)) for finished_s, job, size in
            conn.execute(query.order_by(*place).limit(limit))]  # fmt: skip


def job_left(conn: Connection, job: str, part: str) -> bool:
    """True if the job left this folder when it ended; it may be deleted since."""
    parts = conn.execute(select(keepsakes.c.parts).where(keepsakes.c.job == job)).scalar()
    return parts is not None and part in parts.split()
