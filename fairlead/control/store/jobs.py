"""Stores jobs: submits once per idempotency key, finds by id, prefix or name, lists, counts and updates."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, TextClause, Update, bindparam, func, select, text, tuple_
from sqlalchemy import insert as insert_row
from sqlalchemy import update as update_rows
from sqlalchemy.exc import IntegrityError

from fairlead.control.records import ENDED, Job, JobPhase
from fairlead.control.store import job_listing, usage_spans
from fairlead.control.store.connections import READER_CACHE
from fairlead.control.store.job_rows import DAMAGED as DAMAGED
from fairlead.control.store.job_rows import PHASES, job_of
from fairlead.control.store.retention_schema import ended_jobs
from fairlead.control.store.row_mapping import column_values, insert_into, row_of
from fairlead.control.store.schema import jobs, submissions
from fairlead.errors import Conflict, InvalidSpec, NotFound

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
Condition = ColumnElement[bool] | TextClause
_ACTIVE = [phase.value for phase in JobPhase if phase not in ENDED]
_QUEUE_GROUPS: tuple[tuple[frozenset[str], bool], ...] = (
    (frozenset(_ACTIVE) - {JobPhase.QUEUED.value}, False),
    (frozenset({JobPhase.QUEUED.value}), True),
    (frozenset(phase.value for phase in ENDED), False),
)
"""The groups of the queue listing in order: their phases, and whether the oldest comes first."""
_JOB = [jobs.c[name] for name in Job.__slots__]  # in the order of Job's fields
_BY_ID = select(*_JOB).where(jobs.c.id == bindparam("wanted"))  # built once: every submission runs these
_BY_IDS = select(*_JOB).where(jobs.c.id.in_(bindparam("ids", expanding=True)))
_PHASES_OF = select(jobs.c.id, jobs.c.phase, jobs.c.then).where(jobs.c.id.in_(bindparam("ids", expanding=True)))
_ENDED_OF = select(jobs.c.id).where(
    jobs.c.id.in_(bindparam("ids", expanding=True)), jobs.c.phase.in_([phase.value for phase in ENDED])
)
_ALL_ACTIVE = select(*_JOB).where(jobs.c.phase.in_(_ACTIVE)).order_by(jobs.c.submitted_s, jobs.c.id)
_SPEC = select(submissions.c.spec).where(submissions.c.job == bindparam("wanted"))
_INSERT = insert_row(jobs)
_INSERT_SUBMISSION = {
    name: insert_into(name, submissions).on_conflict_do_nothing().returning(submissions.c.job)
    for name in ("sqlite", "postgresql")
}
_UPDATE = update_rows(jobs).where(jobs.c.id == bindparam("wanted"))
_ADD_ENDED = {
    name: (row := insert_into(name, ended_jobs)).on_conflict_do_update(
        ended_jobs.primary_key, set_={"jobs": ended_jobs.c.jobs + row.excluded.jobs}
    )
    for name in ("sqlite", "postgresql")
}
_MAX_PARAMETERS = 500  # parameters; well below the limits of both databases
_MIN_PREFIX = 4
_MAX_KEY_LENGTH = 255


def new_id(name: str) -> str:
    """A short readable id; :func:`insert` makes sure that it is unique."""
    return f"{name}-{''.join(secrets.choice(_ALPHABET) for _ in range(6))}"


def insert(
    conn: Connection, job: Job, spec: Mapping[str, Any], labels: Mapping[str, str], key: str | None, request_digest: str
) -> tuple[Job, bool]:
    """The stored job and whether it is new. The same key and request again returns the first job.

    The returned job has another id than the one passed in if that was taken.
    """
    if key is not None and len(key) > _MAX_KEY_LENGTH:
        fix = f"use at most {_MAX_KEY_LENGTH} characters"
        raise InvalidSpec(f"has {len(key)} characters", field="Idempotency-Key", fix=fix)
    row = {"tenant": job.tenant, "key": key, "request_digest": request_digest, "spec": spec, "labels": labels}
    row |= {"code": spec.get("code")}
    while (
        conn.execute(_INSERT_SUBMISSION[conn.dialect.name], column_values(row | {"job": job.id})).one_or_none() is None
    ):
        first = None if key is None else by_key(conn, job.tenant, key, request_digest)
        if first is not None:
            return first, False
        job = replace(job, id=new_id(job.name))
    try:
        conn.execute(_INSERT, row_of(job))
    except IntegrityError as error:
        fix = f"create it first: fairlead tenant create {job.tenant}"
        raise NotFound(f"there is no tenant {job.tenant!r}", field="tenant", value=job.tenant, fix=fix) from error
    if job.phase in ENDED:
        _count_end(conn, job)
    return job, True


def by_key(conn: Connection, tenant: str, key: str, request_digest: str) -> Job | None:
    """The job of an earlier request with this idempotency key, if any. Raises Conflict for a different request."""
    query = select(submissions.c.job, submissions.c.request_digest).where(
        submissions.c.tenant == tenant, submissions.c.key == key
    )
    row = conn.execute(query).one_or_none()
    if row is None:
        return None
    if row.request_digest != request_digest:
        raise Conflict(
            f"the idempotency key {key!r} already stands for another request, job {row.job}",
            field="Idempotency-Key", value=key, fix="use a new key for a new request",
        )  # fmt: skip
    return get(conn, row.job)


def active(conn: Connection) -> list[Job]:
    """All jobs that have not ended, oldest first.

    Called every round, mostly with the same result: a reading connection caches the Job objects of its last call and
    rebuilds only those whose row changed. Building them would cost more than reading them.
    """
    cache_of_connection = conn.info.get(READER_CACHE, {})
    before: dict[str, tuple[tuple[Any, ...], Job]] = cache_of_connection.get("active", {})
    now: dict[str, tuple[tuple[Any, ...], Job]] = {}
    for row in conn.execute(_ALL_ACTIVE):
        values = tuple(row)
        known = before.get(values[0])
        now[values[0]] = known if known is not None and known[0] == values else (values, job_of(values))
    cache_of_connection["active"] = now
    return [job for _, job in now.values()]


def in_flight(conn: Connection) -> list[str]:
    """Ids of the jobs that hold devices or are about to: neither waiting nor ended."""
    moving = [phase for phase in _ACTIVE if phase != JobPhase.QUEUED.value]
    return list(conn.execute(select(jobs.c.id).where(jobs.c.phase.in_(moving)).order_by(jobs.c.id)).scalars())


def get(conn: Connection, job_id: str) -> Job | None:
    row = conn.execute(_BY_ID, {"wanted": job_id}).one_or_none()
    return None if row is None else job_of(row)


def phases_of(conn: Connection, ids: Collection[str]) -> dict[str, tuple[str, str | None]]:
    """By job id: the phase, and the phase that follows if the job is stopping. Unknown jobs are left out."""
    found: dict[str, tuple[str, str | None]] = {}
    wanted = sorted(ids)
    for begin in range(0, len(wanted), _MAX_PARAMETERS):
        rows = conn.execute(_PHASES_OF, {"ids": wanted[begin : begin + _MAX_PARAMETERS]})
        found |= {job: (phase, then) for job, phase, then in rows}
    return found


def get_many(conn: Connection, ids: Collection[str]) -> dict[str, Job]:
    """These jobs by id; unknown ids are left out."""
    found: dict[str, Job] = {}
    wanted = sorted(set(ids))
    for begin in range(0, len(wanted), _MAX_PARAMETERS):
        rows = conn.execute(_BY_IDS, {"ids": wanted[begin : begin + _MAX_PARAMETERS]})
        found |= {job.id: job for job in map(job_of, rows)}
    return found


def stored_spec(conn: Connection, job_id: str) -> dict[str, Any]:
    """The job's spec as submitted."""
    found: dict[str, Any] | None = conn.execute(_SPEC, {"wanted": job_id}).scalar_one_or_none()
    if found is None:
        raise _not_found(job_id)
    return found


def labels_of(conn: Connection, job_ids: Collection[str]) -> dict[str, dict[str, str]]:
    """Labels by job; unknown jobs are left out."""
    found: dict[str, dict[str, str]] = {}
    wanted = list(job_ids)
    for start in range(0, len(wanted), _MAX_PARAMETERS):
        some = submissions.c.job.in_(wanted[start : start + _MAX_PARAMETERS])
        found |= {
            row.job: row.labels for row in conn.execute(select(submissions.c.job, submissions.c.labels).where(some))
        }
    return found


def find(conn: Connection, ref: str, tenant: str | None) -> Job:
    """The job with this id, this name (the newest) or this beginning of an id.

    Only among a tenant's own if one is given.
    """
    own = [] if tenant is None else [jobs.c.tenant == tenant]
    newest = select(*_JOB).where(*own).order_by(jobs.c.submitted_s.desc(), jobs.c.id.desc())
    for exact in (jobs.c.id == ref, jobs.c.name == ref):  # names before prefixes: every id begins with its job's name
        row = conn.execute(newest.where(exact).limit(1)).one_or_none()
        if row is not None:
            return job_of(row)
    if len(ref) < _MIN_PREFIX:
        raise _not_found(ref)
    rows = conn.execute(newest.where(jobs.c.id >= ref, jobs.c.id < ref + "~").limit(4)).all()
    if len(rows) == 1:
        return job_of(rows[0])
    if rows:
        several = ", ".join(row.id for row in rows[:3]) + (", ..." if len(rows) > 3 else "")
        raise NotFound(f"{ref!r} is the beginning of several job ids: {several}", value=ref, fix="write more of the id")
    raise _not_found(ref)


def _not_found(ref: str) -> NotFound:
    fix = f"list them with fairlead queue --all; a beginning of an id needs {_MIN_PREFIX} characters"
    return NotFound(f"there is no job {ref!r}", value=ref, fix=fix)


def page(
    conn: Connection, *, tenant: str | None = None, phases: Collection[str] | None = None, name: str | None = None,
    limit: int = 100, before: str | None = None, order: str = "newest", ids: Collection[str] | None = None,
) -> tuple[list[Job], str | None, int]:  # fmt: skip
    """One page of jobs newest (or oldest) first, the cursor of the next page (None: last page), and the total.

    ``order="queue"``: running jobs first, then waiting jobs with the oldest first, then ended jobs. Results are cut,
    see :mod:`.job_listing`.
    """
    where: list[Condition] = []
    if tenant is not None:
        where.append(jobs.c.tenant == tenant)
    if name is not None:
        where.append(jobs.c.name == name)
    if ids is not None:
        where.append(jobs.c.id.in_(list(ids)))
    wanted = None if phases is None else frozenset(map(_phase, phases))
    chosen = where if wanted is None else [*where, _in_phases(wanted)]
    total = _total(conn, tenant, phases) if name is None and ids is None else _count(conn, chosen)
    if order == "queue":
        found, more = _queue_page(conn, where, frozenset(PHASES) if wanted is None else wanted, limit, before)
    else:
        at = None if before is None else _position(before)
        found = _page_of(conn, chosen, limit + 1, at, oldest=order == "oldest")
        more = _cursor(found[limit - 1]) if len(found) > limit else None
    return found[:limit], more, total


def _page_of(
    conn: Connection, where: Iterable[Condition], limit: int, at: tuple[float, str] | None, *,
    oldest: bool,
) -> list[Job]:  # fmt: skip
    """The first ``limit`` of these jobs after a position."""
    place = tuple_(jobs.c.submitted_s, jobs.c.id)
    by = [jobs.c.submitted_s, jobs.c.id] if oldest else [jobs.c.submitted_s.desc(), jobs.c.id.desc()]
    query = select(*job_listing.COLUMNS).where(*where).order_by(*by).limit(limit)
    if at is not None:
        query = query.where(place > tuple_(*at) if oldest else place < tuple_(*at))
    return [job_of(job_listing.brief_row(row)) for row in conn.execute(query)]


def _queue_page(
    conn: Connection, where: Sequence[Condition], phases: frozenset[str], limit: int, before: str | None
) -> tuple[list[Job], str | None]:  # fmt: skip
    """A page of the queue listing, read in one snapshot; the cursor begins with the number of the group.

    Asking for the groups one by one would show a job twice, or never, that moves between groups meanwhile.
    """
    first, at = 0, None
    if before is not None:
        group_number, _, place = before.partition("~")
        if group_number not in ("0", "1", "2"):
            raise _bad_cursor(before)
        first, at = int(group_number), _position(place)
    found: list[tuple[int, Job]] = []
    for number, (group, oldest) in enumerate(_QUEUE_GROUPS):
        own, room = sorted(phases & group), limit + 1 - len(found)
        if number >= first and own and room > 0:
            fresh = _page_of(conn, [*where, _in_phases(own)], room, at if number == first else None, oldest=oldest)
            found += [(number, job) for job in fresh]
    more = f"{found[limit - 1][0]}~{_cursor(found[limit - 1][1])}" if len(found) > limit else None
    return [job for _, job in found], more


def _in_phases(phases: Collection[str]) -> Condition:
    """A condition with which the store reads a page from an index instead of sorting all these jobs."""
    if set(phases) == set(PHASES) - set(_ACTIVE):
        return jobs.c.phase.not_in(_ACTIVE)  # most have ended: a walk from the newest finds a page at once
    # waiting jobs have an index of their own, which SQLite takes for the literal only
    return text("phase = 'queued'") if list(phases) == [JobPhase.QUEUED.value] else jobs.c.phase.in_(sorted(phases))


def _cursor(job: Job) -> str:
    return f"{job.submitted_s!r}~{job.id}"


def _count(conn: Connection, where: Iterable[Condition]) -> int:
    return int(conn.execute(select(func.count()).select_from(jobs).where(*where)).scalar_one())


def _total(conn: Connection, tenant: str | None, phases: Collection[str] | None) -> int:
    """How many jobs there are. Active jobs are counted; ended jobs have a running count per tenant."""
    wanted = set(PHASES) if phases is None else {_phase(phase) for phase in phases}
    live, over = sorted(wanted & set(_ACTIVE)), sorted(wanted - set(_ACTIVE))
    own, ended_own = ([], []) if tenant is None else ([jobs.c.tenant == tenant], [ended_jobs.c.tenant == tenant])
    ended = select(func.sum(ended_jobs.c.jobs)).where(ended_jobs.c.phase.in_(over), *ended_own) if over else None
    return (_count(conn, [jobs.c.phase.in_(live), *own]) if live else 0) + (
        0 if ended is None else int(conn.execute(ended).scalar() or 0)
    )


def _phase(name: str) -> str:
    if name not in PHASES:
        fix = f"use some of: {', '.join(PHASES)}"
        raise InvalidSpec(f"{name!r} is not a phase of a job", field="phase", value=name, fix=fix)
    return PHASES[name].value


def _position(cursor: str) -> tuple[float, str]:
    time_s, mark, job_id = cursor.partition("~")
    try:
        if mark:
            return float(time_s), job_id
    except ValueError:
        pass
    raise _bad_cursor(cursor)


def _bad_cursor(cursor: str) -> InvalidSpec:
    return InvalidSpec(
        "is not a valid cursor", field="cursor", value=cursor, fix="pass the cursor of the previous page"
    )


def update(conn: Connection, job_id: str, **changes: Any) -> None:
    """Change these fields of a job."""
    ends = changes.get("phase") in ENDED
    before = get(conn, job_id) if ends else None
    if not conn.execute(_UPDATE, {"wanted": job_id, **column_values(changes)}).rowcount:
        raise _not_found(job_id)
    if before is not None and before.phase not in ENDED:
        _count_end(conn, replace(before, **changes))


def update_many(conn: Connection, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Change fields of many jobs, with one statement for jobs that change the same fields.

    None of these jobs may end here.
    """
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for job, values in changes.items():
        if values:
            alike.setdefault(tuple(sorted(values)), []).append({"wanted": job, **column_values(values)})
    for names, rows in alike.items():
        conn.execute(_update_of(names), rows)


@cache  # building a statement costs more than running it
def _update_of(names: tuple[str, ...]) -> Update:
    return _UPDATE.values({name: bindparam(name) for name in names})


def _count_end(conn: Connection, job: Job) -> None:
    """Update the running counts for a job that has just ended."""
    add_ended(conn, {(job.tenant, job.phase.value): 1})
    if job.finished_s is not None:
        usage_spans.record_demand(conn, job.tenant, job.submitted_s, job.finished_s)


def count_ends(conn: Connection, phase: JobPhase, ended: Collection[tuple[str, float]], now_s: float) -> None:
    """Update the running counts for jobs (tenant, submission time) that ended together now."""
    if not ended:
        return
    add_ended(conn, Counter((tenant, phase.value) for tenant, _ in ended))
    for tenant in sorted({tenant for tenant, _ in ended}):
        first_s = min(submitted_s for owner, submitted_s in ended if owner == tenant)
        usage_spans.record_demand(conn, tenant, first_s, now_s)


def add_ended(conn: Connection, more: Mapping[tuple[str, str], int]) -> None:
    """Add these numbers to the running count of ended jobs by tenant and phase; negative when rows are deleted."""
    rows = [{"tenant": tenant, "phase": phase, "jobs": count} for (tenant, phase), count in more.items()]
    conn.execute(_ADD_ENDED[conn.dialect.name], rows)


def ended_or_missing(conn: Connection, wanted: Collection[str]) -> set[str]:
    """Of these jobs: the ended ones and the ones without a row."""
    query = select(jobs.c.id).where(jobs.c.id.in_(list(wanted)), jobs.c.phase.in_(_ACTIVE))
    return set(wanted) - set(conn.execute(query).scalars())


def ended_among(conn: Connection, wanted: Collection[str]) -> set[str]:
    """Of these jobs: the ended ones."""
    found: set[str] = set()
    ids = sorted(set(wanted))
    for begin in range(0, len(ids), _MAX_PARAMETERS):
        found |= set(conn.execute(_ENDED_OF, {"ids": ids[begin : begin + _MAX_PARAMETERS]}).scalars())
    return found
