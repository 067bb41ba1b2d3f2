"""Counts jobs by tenant, submitter and phase."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, func, select

from fairlead.control.records import ENDED, JobPhase
from fairlead.control.store.retention_schema import ended_jobs
from fairlead.control.store.schema import jobs

_ACTIVE = [phase.value for phase in JobPhase if phase not in ENDED]
_UNFINISHED = (  # built once: every submission runs it
    select(func.count()).select_from(jobs).where(jobs.c.phase.in_(_ACTIVE), jobs.c.tenant == bindparam("of_tenant"))
)


def waiting_since(conn: Connection) -> dict[str, float]:
    """By tenant: since when its longest waiting job waits; tenants without waiting jobs are left out."""
    waiting = jobs.c.phase == JobPhase.QUEUED.value
    query = select(jobs.c.tenant, func.min(jobs.c.since_s)).where(waiting).group_by(jobs.c.tenant)
    return {tenant: float(since_s) for tenant, since_s in conn.execute(query)}


def tenant_by_job(conn: Connection) -> dict[str, str]:
    """The tenant of every job in the store."""
    return {row.id: row.tenant for row in conn.execute(select(jobs.c.id, jobs.c.tenant))}


def counts_by_tenant(conn: Connection) -> dict[str, dict[str, int]]:
    """Number of jobs by tenant and phase."""
    live = select(jobs.c.tenant, jobs.c.phase, func.count()).where(jobs.c.phase.in_(_ACTIVE))
    found: dict[str, dict[str, int]] = {}
    for query in (live.group_by(jobs.c.phase, jobs.c.tenant), select(ended_jobs).where(ended_jobs.c.jobs > 0)):
        for tenant, phase, count in conn.execute(query):
            found.setdefault(tenant, {})[phase] = count
    return found


def count_unfinished(conn: Connection, tenant: str) -> int:
    """Number of the tenant's jobs that run or wait."""
    return int(conn.execute(_UNFINISHED, {"of_tenant": tenant}).scalar_one())


def counts_by_submitter(conn: Connection) -> dict[tuple[str, str], dict[str, int]]:
    """Number of unfinished jobs by (tenant, submitter) and phase."""
    who = (jobs.c.tenant, jobs.c.submitted_by, jobs.c.phase)
    query = select(*who, func.count()).where(jobs.c.phase.in_(_ACTIVE))
    found: dict[tuple[str, str], dict[str, int]] = {}
    for tenant, person, phase, count in conn.execute(query.group_by(*who)):
        found.setdefault((tenant, person), {})[phase] = count
    return found
