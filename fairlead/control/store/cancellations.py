"""Many jobs cancelled in one transaction: what waits has ended, and what runs is on its way out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, insert, or_, select, update

from fairlead.control.records import ENDED, JobPhase
from fairlead.control.store.jobs import note_ends
from fairlead.control.store.row_mapping import column_values
from fairlead.control.store.schema import events, jobs, submissions

T = TypeVar("T")

MOST = 20_000  # jobs of one transaction, for which everybody else waits
_ONE_STATEMENT = 500  # ids; well below the limits of both databases
_ACTIVE = tuple(phase for phase in JobPhase if phase not in ENDED)


@dataclass(frozen=True, slots=True)
class CancelFilter:
    """Which jobs are meant: those that have not ended and fit all that is said here."""

    tenant: str | None = None
    phases: Sequence[JobPhase] = _ACTIVE
    name: str | None = None  # with * for any letters
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MatchedJob:
    """A job that is meant."""

    id: str
    tenant: str
    phase: JobPhase
    submitted_s: float


def find(conn: Connection, meant: CancelFilter, limit: int = MOST) -> tuple[list[MatchedJob], bool]:
    """The oldest so many of the jobs that are meant and not being cancelled already, and whether there are more."""
    phases = [phase.value for phase in meant.phases if phase in _ACTIVE]
    ending = [phase.value for phase in ENDED]  # what is told to stop only to wait again can still be cancelled
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
    """End those that wait, tell the others to stop, and note an event for each."""
    waits = [job for job in found if job.phase is JobPhase.QUEUED]
    waiting = [job.id for job in waits]
    moving = [job.id for job in found if job.phase is not JobPhase.QUEUED]
    ended = {"phase": JobPhase.CANCELLED, "finished_s": now_s, "since_s": now_s}
    stopping = {"phase": JobPhase.STOPPING, "then": JobPhase.CANCELLED, "outcome": "cancelled", "since_s": now_s,
                "message": f"cancelled by {by}"}  # fmt: skip
    for ids, changes in ((waiting, ended), (moving, stopping)):
        for few in _pieces(ids):
            conn.execute(update(jobs).where(jobs.c.id.in_(few)).values(column_values(changes)))
    note_ends(conn, JobPhase.CANCELLED, [(job.tenant, job.submitted_s) for job in waits], now_s)
    for some in _pieces(list(found)):
        conn.execute(insert(events), [_event(job, by, now_s) for job in some])


def _event(job: MatchedJob, by: str, now_s: float) -> dict[str, Any]:
    return column_values({
        "time_s": now_s, "kind": "job-cancelled", "text": f"{job.id} was cancelled by {by}", "tenant": job.tenant,
        "job": job.id, "node": None, "facts": {},
    })  # fmt: skip


def _pattern(name: str) -> str:
    """A name with * as LIKE has it; names hold no capitals, so that it does not matter how a database takes them."""
    return "".join({"*": "%", "%": "\\%", "_": "\\_", "\\": "\\\\"}.get(letter, letter) for letter in name)


def _pieces(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + _ONE_STATEMENT] for start in range(0, len(items), _ONE_STATEMENT))
