"""Small questions that a scrape of the metrics asks of the jobs."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from fairlead.control.records import JobPhase
from fairlead.control.store.schema import jobs


def waiting_since(conn: Connection) -> dict[str, float]:
    """Since when the tenant's longest waiting job waits; tenants with none are left out."""
    waiting = jobs.c.phase == JobPhase.QUEUED.value
    query = select(jobs.c.tenant, func.min(jobs.c.since_s)).where(waiting).group_by(jobs.c.tenant)
    return {tenant: float(since_s) for tenant, since_s in conn.execute(query)}


def owners(conn: Connection) -> dict[str, str]:
    """Whose each job is, of all that were ever submitted."""
    return {row.id: row.tenant for row in conn.execute(select(jobs.c.id, jobs.c.tenant))}
