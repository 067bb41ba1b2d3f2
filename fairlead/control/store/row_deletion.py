"""Deletes old rows a few at a time: ended jobs past their retention, old events, ledger lines, unused code.

Every deleted row is in a coarser sum already, or the deleting transaction adds it to one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, Subquery, Table, delete, func, or_, select, tuple_

from fairlead.control.records import ENDED
from fairlead.control.store import retention_marks
from fairlead.control.store.data_schema import lineage, lineage_inputs
from fairlead.control.store.jobs import add_ended
from fairlead.control.store.ledger_sums import DAY_S, HOUR_S
from fairlead.control.store.pipeline_schema import pipelines, stages
from fairlead.control.store.retention_schema import keepsakes, usage_pruned, usage_spans, wishes
from fairlead.control.store.row_mapping import insert_into
from fairlead.control.store.schema import (
    audit,
    budget_notes,
    bundles,
    events,
    generations,
    jobs,
    metrics,
    node_rests,
    submissions,
    usage,
    usage_hours,
)
from fairlead.control.store.usage_spans import COARSE_S, FINE_S, KEPT_S

KEEP_LINES_S = 26 * HOUR_S
"""How long ledger lines are kept: the report covers the last day."""
KEEP_AUDIT_S = 400 * DAY_S
"""Default retention of audit entries and of events without a tenant."""
KEEP_JOBS_S = 2 * DAY_S
"""Minimum retention of a job's rows: by then its ledger lines are gone, and no client retries its request."""

_ENDED = [phase.value for phase in ENDED]


class JobEnd(NamedTuple):
    """When a job ended: a position in the order of all ends."""

    finished_s: float
    job: str


FIRST = JobEnd(0.0, "")


def ends_of(conn: Connection, ids: Collection[str]) -> list[tuple[str, JobEnd]]:
    """Tenant and end of the ended ones among these jobs."""
    query = select(jobs.c.tenant, jobs.c.finished_s, jobs.c.id)
    chosen = query.where(jobs.c.id.in_(list(ids)), jobs.c.phase.in_(_ENDED), jobs.c.finished_s.is_not(None))
    return [(tenant, JobEnd(finished_s, job)) for tenant, finished_s, job in conn.execute(chosen)]


def ended_between(conn: Connection, tenant: str, after: JobEnd, until_s: float, limit: int) -> list[JobEnd]:
    """The tenant's jobs that ended after ``after`` and up to ``until_s``, earliest first."""
    place = tuple_(jobs.c.finished_s, jobs.c.id)
    conditions = (jobs.c.tenant == tenant, jobs.c.phase.in_(_ENDED), jobs.c.finished_s <= until_s, place > after)
    query = select(jobs.c.finished_s, jobs.c.id).where(*conditions).order_by(*place.clauses).limit(limit)
    return [JobEnd(*row) for row in conn.execute(query)]


def drop_metrics(conn: Connection, job: str, limit: int) -> int:
    """Delete up to ``limit`` rows of the job's metric history; returns how many."""
    some = select(metrics.c.id).where(metrics.c.job == job).limit(limit)
    return conn.execute(delete(metrics).where(metrics.c.id.in_(some.scalar_subquery()))).rowcount


def drop_events(conn: Connection, tenant: str | None, before_s: float, limit: int) -> int:
    """Delete up to ``limit`` events of the tenant (None: the platform's) older than ``before_s``; returns how many.

    Only the oldest events are examined: ids grow with time, so later ids are younger.
    """
    first = select(events.c.id, events.c.time_s).where(events.c.tenant == tenant).order_by(events.c.id).limit(limit)
    return _drop_first(conn, events, first.subquery(), before_s)


def drop_audit(conn: Connection, limit: int) -> int:
    """Delete up to ``limit`` audit entries past retention; returns how many."""
    first = select(audit.c.id, audit.c.time_s).order_by(audit.c.id).limit(limit).subquery()
    return _drop_first(conn, audit, first, retention_marks.kept_since(conn, retention_marks.AUDIT))


def _drop_first(conn: Connection, table: Table, first: Subquery, before_s: float) -> int:
    old = select(first.c.id).where(first.c.time_s < before_s).scalar_subquery()
    return conn.execute(delete(table).where(table.c.id.in_(old))).rowcount


def drop_job_events(conn: Connection, job: str, limit: int) -> int:
    """Delete up to ``limit`` events of a job; returns how many."""
    some = select(events.c.id).where(events.c.job == job).limit(limit)
    return conn.execute(delete(events).where(events.c.id.in_(some.scalar_subquery()))).rowcount


# ---------------------------------------------------------------- the ledger


def advance_marks(conn: Connection, now_s: float, keep_audit_s: float = KEEP_AUDIT_S) -> None:
    """Advance the retention marks of ledger and audit log. Ledger marks are full hours, to match the sums."""
    retention_marks.advance(conn, retention_marks.LINES, (now_s - KEEP_LINES_S) // HOUR_S * HOUR_S)
    retention_marks.advance(conn, retention_marks.FINE, (now_s - KEPT_S[FINE_S]) // HOUR_S * HOUR_S)
    retention_marks.advance(conn, retention_marks.COARSE, (now_s - KEPT_S[COARSE_S]) // DAY_S * DAY_S)
    retention_marks.advance(conn, retention_marks.AUDIT, now_s - keep_audit_s)


def drop_lines(conn: Connection, limit: int) -> int:
    """Delete up to ``limit`` ledger lines past retention; returns how many. All sums include them already."""
    some = (
        select(usage.c.id).where(usage.c.to_s <= retention_marks.kept_since(conn, retention_marks.LINES)).limit(limit)
    )
    return conn.execute(delete(usage).where(usage.c.id.in_(some.scalar_subquery()))).rowcount


def drop_spans(conn: Connection, limit: int) -> int:
    """Delete the oldest spans past retention, up to ``limit`` span numbers; returns how many rows."""
    count = 0
    for span_s, kind in ((FINE_S, retention_marks.FINE), (COARSE_S, retention_marks.COARSE)):
        given_up = int(retention_marks.kept_since(conn, kind) // span_s)
        for table in (usage_spans, wishes):
            oldest = conn.execute(select(func.min(table.c.number)).where(table.c.span_s == span_s)).scalar()
            if oldest is not None and oldest < given_up:
                until = min(given_up, oldest + limit)
                old = table.c.span_s == span_s, table.c.number >= oldest, table.c.number < until
                count += conn.execute(delete(table).where(*old)).rowcount
    return count


def drop_old_notes(conn: Connection, now_s: float) -> None:
    """Delete old budget warnings and node sleeps."""
    conn.execute(delete(budget_notes).where(budget_notes.c.since_s < now_s - KEEP_AUDIT_S))
    conn.execute(delete(node_rests).where(node_rests.c.to_s < now_s - KEPT_S[COARSE_S]))


# ---------------------------------------------------------------- jobs and pipelines


def drop_pipelines(conn: Connection, tenant: str, before_s: float, limit: int) -> int:
    """Delete up to ``limit`` of the tenant's pipelines that ended before ``before_s``; returns how many."""
    old = pipelines.c.tenant == tenant, pipelines.c.finished_s < before_s
    ids = list(conn.execute(select(pipelines.c.id).where(*old).limit(limit)).scalars())
    if ids:
        conn.execute(delete(stages).where(stages.c.pipeline.in_(ids)))
        conn.execute(delete(pipelines).where(pipelines.c.id.in_(ids)))
    return len(ids)


def prunable_jobs(conn: Connection, tenant: str, before_s: float, limit: int) -> list[str]:
    """Up to ``limit`` of the tenant's jobs that ended before ``before_s``, without stages of existing pipelines."""
    needed = select(stages.c.job).where(stages.c.job == jobs.c.id).exists()
    old = jobs.c.tenant == tenant, jobs.c.finished_s < before_s, jobs.c.phase.in_(_ENDED), ~needed
    return list(conn.execute(select(jobs.c.id).where(*old).order_by(jobs.c.finished_s).limit(limit)).scalars())


def drop_jobs(conn: Connection, ids: Collection[str]) -> None:
    """Delete ended jobs. Their usage is added to the permanent sums by day of deleted jobs."""
    wanted = list(ids)
    _add_pruned_usage(conn, wanted)
    phases = select(jobs.c.tenant, jobs.c.phase, func.count()).where(jobs.c.id.in_(wanted))
    gone = conn.execute(phases.group_by(jobs.c.tenant, jobs.c.phase)).all()
    for table in (usage_hours, generations, metrics, events, lineage, lineage_inputs, submissions, keepsakes):
        conn.execute(delete(table).where(table.c.job.in_(wanted)))
    conn.execute(delete(jobs).where(jobs.c.id.in_(wanted)))
    add_ended(conn, {(tenant, phase): -count for tenant, phase, count in gone})


def _add_pruned_usage(conn: Connection, ids: list[str]) -> None:
    names = ("day", "tenant", "submitted_by", "node", "device_type")
    found: dict[tuple[object, ...], list[float]] = {}
    counted: set[str] = set()
    query = select(usage_hours).where(usage_hours.c.job.in_(ids)).order_by(usage_hours.c.hour)
    for row in conn.execute(query):
        key = (int(row.hour * HOUR_S // DAY_S), row.tenant, row.submitted_by, row.node, row.device_type)
        sums = found.setdefault(key, [0.0, 0.0, 0])
        sums[:] = sums[0] + row.device_s, sums[1] + row.cpu_s, sums[2] + (row.job not in counted)
        counted.add(row.job)
    if found:
        added = insert_into(conn.dialect.name, usage_pruned)
        grown = {name: usage_pruned.c[name] + added.excluded[name] for name in ("device_s", "cpu_s", "jobs")}
        rows = [dict(zip((*names, "device_s", "cpu_s", "jobs"), (*key, *sums), strict=True))
                for key, sums in found.items()]  # fmt: skip
        conn.execute(added.on_conflict_do_update(usage_pruned.primary_key, set_=grown), rows)


# ---------------------------------------------------------------- code


def idle_bundles(conn: Connection, tenant: str, before_s: float) -> list[str]:
    """Code bundles uploaded before ``before_s`` that no active job, and no job ended since, uses."""
    needing = or_(jobs.c.phase.not_in(_ENDED), jobs.c.finished_s >= before_s)
    same = submissions.c.tenant == tenant, submissions.c.code == bundles.c.digest, jobs.c.id == submissions.c.job
    old = bundles.c.tenant == tenant, bundles.c.created_s < before_s
    needed = select(submissions.c.job).where(*same, needing).exists()
    return list(conn.execute(select(bundles.c.digest).where(*old, ~needed)).scalars())


def drop_bundle(conn: Connection, tenant: str, digest: str, before_s: float) -> bool:
    """Delete the bundle, unless a job uses it by now."""
    if digest not in idle_bundles(conn, tenant, before_s):
        return False
    conn.execute(delete(bundles).where(bundles.c.tenant == tenant, bundles.c.digest == digest))
    return True
