"""What is kept no longer: ended jobs whose time is up, and rows to forget, a few at a time; never ledger or audit."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, delete, or_, select, tuple_

from fairlead.control.records import ENDED
from fairlead.control.store.schema import bundles, events, jobs, metrics, submissions

_ENDED = [phase.value for phase in ENDED]


class End(NamedTuple):
    """When a job ended: a place in the order of all ends."""

    finished_s: float
    job: str


FIRST = End(0.0, "")


def ended(conn: Connection, ids: Collection[str]) -> set[str]:
    """Which of these jobs have ended."""
    query = select(jobs.c.id).where(jobs.c.id.in_(list(ids)), jobs.c.phase.in_(_ENDED))
    return set(conn.execute(query).scalars())


def ends(conn: Connection, ids: Collection[str]) -> list[tuple[str, End]]:
    """Which of these jobs have ended, each with its tenant and when that was."""
    query = select(jobs.c.tenant, jobs.c.finished_s, jobs.c.id)
    chosen = query.where(jobs.c.id.in_(list(ids)), jobs.c.phase.in_(_ENDED), jobs.c.finished_s.is_not(None))
    return [(tenant, End(finished_s, job)) for tenant, finished_s, job in conn.execute(chosen)]


def ended_between(conn: Connection, tenant: str, after: End, until_s: float, limit: int) -> list[End]:
    """The tenant's jobs that ended after this end and up to this time, the first ones first."""
    place = tuple_(jobs.c.finished_s, jobs.c.id)
    conditions = (jobs.c.tenant == tenant, jobs.c.phase.in_(_ENDED), jobs.c.finished_s <= until_s, place > after)
    query = select(jobs.c.finished_s, jobs.c.id).where(*conditions).order_by(*place.clauses).limit(limit)
    return [End(*row) for row in conn.execute(query)]


def drop_metrics(conn: Connection, job: str, limit: int) -> int:
    """Forget so many rows of the job's history; how many there were."""
    some = select(metrics.c.id).where(metrics.c.job == job).limit(limit)
    return conn.execute(delete(metrics).where(metrics.c.id.in_(some.scalar_subquery()))).rowcount


def drop_events(conn: Connection, tenant: str, before_s: float, limit: int) -> int:
    """Forget so many of the tenant's events that are older than this; how many there were."""
    some = select(events.c.id).where(events.c.tenant == tenant, events.c.time_s < before_s).limit(limit)
    return conn.execute(delete(events).where(events.c.id.in_(some.scalar_subquery()))).rowcount


def idle_bundles(conn: Connection, tenant: str, before_s: float) -> list[str]:
    """Code that was sent before this time and that no job needs: none that is to run, or has ended since."""
    needing = or_(jobs.c.phase.not_in(_ENDED), jobs.c.finished_s >= before_s)
    joined = submissions.join(jobs, jobs.c.id == submissions.c.job)
    code = submissions.c.spec["code"].as_string()
    needed = select(code).select_from(joined).where(jobs.c.tenant == tenant, needing, code.is_not(None))
    old = (bundles.c.tenant == tenant, bundles.c.created_s < before_s)
    return list(conn.execute(select(bundles.c.digest).where(*old, bundles.c.digest.not_in(needed))).scalars())


def drop_bundle(conn: Connection, tenant: str, digest: str, before_s: float) -> bool:
    """Forget the bundle, if still nobody needs it."""
    if digest not in idle_bundles(conn, tenant, before_s):
        return False
    conn.execute(delete(bundles).where(bundles.c.tenant == tenant, bundles.c.digest == digest))
    return True
