"""Cancels many jobs in one transaction: waiting jobs end, running jobs are told to stop."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, insert, or_, select, update

from fairlead.control.records import ENDED, JobPhase
from fairlead.control.store.jobs import count_ends
from fairlead.control.store.row_mapping import column_values
from fairlead.control.store.schema import events, jobs, submissions

T = TypeVar("T")

MAX_JOBS = 20_000  # jobs per transaction; all other writes wait for it
_MAX_PARAMETERS = 500  # ids; well below the limits of both databases
_ACTIVE = tuple(phase for phase in JobPhase if phase not in ENDED)


@dataclass(frozen=True, slots=True)
class CancelFilter:
    """Which unfinished jobs to cancel; all given conditions must hold."""

    tenant: str | None = None
    phases: Sequence[JobPhase] = _ACTIVE
    name: str | None = None  # * matches any characters
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MatchedJob:
    """A job that matches the filter."""

    id: str
    tenant: str
    phase: JobPhase
    submitted_s: float


def find(conn: Connection, meant: CancelFilter, limit: int = MAX_JOBS) -> tuple[list[MatchedJob], bool]:
    """The oldest matching jobs that are not being cancelled already, and whether there are more."""
    phases = [phase.value for phase in meant.phases if phase in _ACTIVE]
    ending = [phase.value for phase in ENDED]  # a job that stops only to wait again can still be cancelled
    where: list[ColumnElement[bool]] = [
        jobs.c.phase.in_(phases),
        or_(jobs.c.phase != JobPhase.STOPPING.value, jobs.c.then.is_(None), jobs.c.then.not_in(ending)),
    ]
    if meant.tenant is not None:
        where.append(jobs.c.tenant == meant.tenant)
    if meant.name is not None:
        where.append(jobs.c.name.like(_pattern(meant.name), escape="\\"))
    wanted = jobs.c.id, jobs.c.tenant, jobs.c.phase, jobs.c.submitted_s
    query = select(*wanted).where(*where).order_by(jobs.c.submitted_s, jobs.c.id)
    if meant.labels:
        query = query.join(submissions, submissions.c.job == jobs.c.id)
        query = query.where(*(submissions.c.labels[key].as_string() == text for key, text in meant.labels.items()))
    rows = conn.execute(query.limit(limit + 1))
    found = [MatchedJob(row.id, row.tenant, JobPhase(row.phase), row.submitted_s) for row in rows]
    return found[:limit], len(found) > limit


def cancel(conn: Connection, found: Collection[MatchedJob], by: str, now_s: float) -> None:
    """End waiting jobs, tell the others to stop, and write an event for each."""
    waits = [job for job in found if job.phase is JobPhase.QUEUED]
    waiting = [job.id for job in waits]
    moving = [job.id for job in found if job.phase is not JobPhase.QUEUED]
    ended = {"phase": JobPhase.CANCELLED, "finished_s": now_s, "since_s": now_s}
    stopping = {"phase": JobPhase.STOPPING, "then": JobPhase.CANCELLED, "outcome": "cancelled", "since_s": now_s,
                "message": f"cancelled by {by}"}  # fmt: skip
    for ids, changes in ((waiting, ended), (moving, stopping)):
        for few in _pieces(ids):
            conn.execute(update(jobs).where(jobs.c.id.in_(few)).values(column_values(changes)))
    count_ends(conn, JobPhase.CANCELLED, [(job.tenant, job.submitted_s) for job in waits], now_s)
    for some in _pieces(list(found)):
        conn.execute(insert(events), [_event(job, by, now_s) for job in some])


def _event(job: MatchedJob, by: str, now_s: float) -> dict[str, Any]:
    return column_values({
        "time_s": now_s, "kind": "job-cancelled", "text": f"{job.id} was cancelled by {by}", "tenant": job.tenant,
        "job": job.id, "node": None, "facts": {},
    })  # fmt: skip


def _pattern(name: str) -> str:
    """A name with * as a LIKE pattern. Names have no capitals, so case sensitivity of the database does not matter."""
    return "".join({"*": "%", "%": "\\%", "_": "\\_", "\\": "\\\\"}.get(letter, letter) for letter in name)


def _pieces(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + _MAX_PARAMETERS] for start in range(0, len(items), _MAX_PARAMETERS))
