"""What is kept no longer: ended jobs whose time is up, and rows to forget, a few at a time.

Whatever goes is in a coarser sum already, or is added to one by the transaction that removes it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, Subquery, Table, delete, func, or_, select, tuple_

from fairlead.control.records import ENDED
from fairlead.control.store import retention_marks
from fairlead.control.store.data_schema import lineage, lineage_inputs
from fairlead.control.store.jobs import count_ended
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

LINES_S = 26 * HOUR_S
"""How long the lines of the ledger are kept: a report is about the last day."""
AUDIT_S = 400 * DAY_S
"""How long entries of the audit log are kept, and events that belong to no tenant, unless somebody says otherwise."""
JOBS_S = 2 * DAY_S
"""Rows of a job are kept so long at least: its lines are gone by then, and nobody sends a request again so late."""

_ENDED = [phase.value for phase in ENDED]


class JobEnd(NamedTuple):
    """When a job ended: a place in the order of all ends."""

    finished_s: float
    job: str


FIRST = JobEnd(0.0, "")


def ended(conn: Connection, ids: Collection[str]) -> set[str]:
    """Which of these jobs have ended."""
    query = select(jobs.c.id).where(jobs.c.id.in_(list(ids)), jobs.c.phase.in_(_ENDED))
    return set(conn.execute(query).scalars())


def ends(conn: Connection, ids: Collection[str]) -> list[tuple[str, JobEnd]]:
    """Which of these jobs have ended, each with its tenant and when that was."""
    query = select(jobs.c.tenant, jobs.c.finished_s, jobs.c.id)
    chosen = query.where(jobs.c.id.in_(list(ids)), jobs.c.phase.in_(_ENDED), jobs.c.finished_s.is_not(None))
    return [(tenant, JobEnd(finished_s, job)) for tenant, finished_s, job in conn.execute(chosen)]


def ended_between(conn: Connection, tenant: str, after: JobEnd, until_s: float, limit: int) -> list[JobEnd]:
    """The tenant's jobs that ended after this end and up to this time, the first ones first."""
    place = tuple_(jobs.c.finished_s, jobs.c.id)
    conditions = (jobs.c.tenant == tenant, jobs.c.phase.in_(_ENDED), jobs.c.finished_s <= until_s, place > after)
    query = select(jobs.c.finished_s, jobs.c.id).where(*conditions).order_by(*place.clauses).limit(limit)
    return [JobEnd(*row) for row in conn.execute(query)]


def drop_metrics(conn: Connection, job: str, limit: int) -> int:
    """Forget so many rows of the job's history; how many there were."""
    some = select(metrics.c.id).where(metrics.c.job == job).limit(limit)
    return conn.execute(delete(metrics).where(metrics.c.id.in_(some.scalar_subquery()))).rowcount


def drop_events(conn: Connection, tenant: str | None, before_s: float, limit: int) -> int:
    """Forget so many of the tenant's (None: the platform's) events that are older than this; how many there were.

    Only the first ones are looked at: ids grow with time, so what comes behind them is younger.
    """
    first = select(events.c.id, events.c.time_s).where(events.c.tenant == tenant).order_by(events.c.id).limit(limit)
    return _drop_first(conn, events, first.subquery(), before_s)


def drop_audit(conn: Connection, limit: int) -> int:
    """Forget so many entries that were given up; how many there were."""
    first = select(audit.c.id, audit.c.time_s).order_by(audit.c.id).limit(limit).subquery()
    return _drop_first(conn, audit, first, retention_marks.since(conn, retention_marks.AUDIT))


def _drop_first(conn: Connection, table: Table, first: Subquery, before_s: float) -> int:
    old = select(first.c.id).where(first.c.time_s < before_s).scalar_subquery()
    return conn.execute(delete(table).where(table.c.id.in_(old))).rowcount


def drop_job_events(conn: Connection, job: str, limit: int) -> int:
    """Forget so many events of a job; how many there were."""
    some = select(events.c.id).where(events.c.job == job).limit(limit)
    return conn.execute(delete(events).where(events.c.id.in_(some.scalar_subquery()))).rowcount


# ---------------------------------------------------------------- the ledger


def give_up(conn: Connection, now_s: float, keep_audit_s: float = AUDIT_S) -> None:
    """Say what may go from ledger and audit log. Lines go by whole hours, so that the sums are about just these."""
    retention_marks.advance(conn, retention_marks.LINES, (now_s - LINES_S) // HOUR_S * HOUR_S)
    retention_marks.advance(conn, retention_marks.FINE, (now_s - KEPT_S[FINE_S]) // HOUR_S * HOUR_S)
    retention_marks.advance(conn, retention_marks.COARSE, (now_s - KEPT_S[COARSE_S]) // DAY_S * DAY_S)
    retention_marks.advance(conn, retention_marks.AUDIT, now_s - keep_audit_s)


def drop_lines(conn: Connection, limit: int) -> int:
    """Forget so many lines of the ledger that were given up; how many there were. Every sum has them already."""
    some = select(usage.c.id).where(usage.c.to_s <= retention_marks.since(conn, retention_marks.LINES)).limit(limit)
    return conn.execute(delete(usage).where(usage.c.id.in_(some.scalar_subquery()))).rowcount


def drop_spans(conn: Connection, limit: int) -> int:
    """Forget the oldest spans that were given up, so many of their times; how many rows there were."""
    count = 0
    for span_s, kind in ((FINE_S, retention_marks.FINE), (COARSE_S, retention_marks.COARSE)):
        given_up = int(retention_marks.since(conn, kind) // span_s)
        for table in (usage_spans, wishes):
            oldest = conn.execute(select(func.min(table.c.number)).where(table.c.span_s == span_s)).scalar()
            if oldest is not None and oldest < given_up:
                until = min(given_up, oldest + limit)
                old = table.c.span_s == span_s, table.c.number >= oldest, table.c.number < until
                count += conn.execute(delete(table).where(*old)).rowcount
    return count


def drop_notes(conn: Connection, now_s: float) -> None:
    """Forget what was told about budgets, and how nodes slept, when nobody asks for it any more."""
    conn.execute(delete(budget_notes).where(budget_notes.c.since_s < now_s - AUDIT_S))
    conn.execute(delete(node_rests).where(node_rests.c.to_s < now_s - KEPT_S[COARSE_S]))


# ---------------------------------------------------------------- jobs and pipelines


def drop_pipelines(conn: Connection, tenant: str, before_s: float, limit: int) -> int:
    """Forget so many of the tenant's pipelines that ended before this time; how many there were."""
    old = pipelines.c.tenant == tenant, pipelines.c.finished_s < before_s
    ids = list(conn.execute(select(pipelines.c.id).where(*old).limit(limit)).scalars())
    if ids:
        conn.execute(delete(stages).where(stages.c.pipeline.in_(ids)))
        conn.execute(delete(pipelines).where(pipelines.c.id.in_(ids)))
    return len(ids)


def forgettable(conn: Connection, tenant: str, before_s: float, limit: int) -> list[str]:
    """So many of the tenant's jobs that ended before this time, but for stages of pipelines that are still known."""
    needed = select(stages.c.job).where(stages.c.job == jobs.c.id).exists()
    old = jobs.c.tenant == tenant, jobs.c.finished_s < before_s, jobs.c.phase.in_(_ENDED), ~needed
    return list(conn.execute(select(jobs.c.id).where(*old).order_by(jobs.c.finished_s).limit(limit)).scalars())


def drop_jobs(conn: Connection, ids: Collection[str]) -> None:
    """Forget ended jobs; what they used is added to the sums by day of jobs that are gone, and is there for ever."""
    wanted = list(ids)
    _keep_usage(conn, wanted)
    phases = select(jobs.c.tenant, jobs.c.phase, func.count()).where(jobs.c.id.in_(wanted))
    gone = conn.execute(phases.group_by(jobs.c.tenant, jobs.c.phase)).all()
    for table in (usage_hours, generations, metrics, events, lineage, lineage_inputs, submissions, keepsakes):
        conn.execute(delete(table).where(table.c.job.in_(wanted)))
    conn.execute(delete(jobs).where(jobs.c.id.in_(wanted)))
    count_ended(conn, {(tenant, phase): -count for tenant, phase, count in gone})


def _keep_usage(conn: Connection, ids: list[str]) -> None:
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
    """Code that was sent before this time and that no job needs: none that is to run, or has ended since."""
    needing = or_(jobs.c.phase.not_in(_ENDED), jobs.c.finished_s >= before_s)
    same = submissions.c.tenant == tenant, submissions.c.code == bundles.c.digest, jobs.c.id == submissions.c.job
    old = bundles.c.tenant == tenant, bundles.c.created_s < before_s
    needed = select(submissions.c.job).where(*same, needing).exists()
    return list(conn.execute(select(bundles.c.digest).where(*old, ~needed)).scalars())


def drop_bundle(conn: Connection, tenant: str, digest: str, before_s: float) -> bool:
    """Forget the bundle, if still nobody needs it."""
    if digest not in idle_bundles(conn, tenant, before_s):
        return False
    conn.execute(delete(bundles).where(bundles.c.tenant == tenant, bundles.c.digest == digest))
    return True
