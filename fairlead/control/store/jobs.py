"""Jobs: handed in once per idempotency key, found by id, prefix or name, changed by the leader only."""

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
from fairlead.control.store.connections import RECOLLECTION
from fairlead.control.store.job_rows import DAMAGED as DAMAGED
from fairlead.control.store.job_rows import PHASES, job_of
from fairlead.control.store.retention_schema import ended_jobs
from fairlead.control.store.row_mapping import column_values, fields, insert_into
from fairlead.control.store.schema import jobs, submissions
from fairlead.errors import Conflict, InvalidSpec, NotFound

_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
Condition = ColumnElement[bool] | TextClause
_ACTIVE = [phase.value for phase in JobPhase if phase not in ENDED]
_QUEUE: tuple[tuple[frozenset[str], bool], ...] = (
    (frozenset(_ACTIVE) - {JobPhase.QUEUED.value}, False),
    (frozenset({JobPhase.QUEUED.value}), True),
    (frozenset(phase.value for phase in ENDED), False),
)
"""In which order the queue tells of jobs: phases, and whether the oldest comes first."""
_JOB = [jobs.c[name] for name in Job.__slots__]  # in the order in which a Job takes them
_BY_ID = select(*_JOB).where(jobs.c.id == bindparam("wanted"))  # statements of every submission are built once
_BY_IDS = select(*_JOB).where(jobs.c.id.in_(bindparam("ids", expanding=True)))
_PHASES_OF = select(jobs.c.id, jobs.c.phase, jobs.c.then).where(jobs.c.id.in_(bindparam("ids", expanding=True)))
_ENDED_OF = select(jobs.c.id).where(
    jobs.c.id.in_(bindparam("ids", expanding=True)), jobs.c.phase.in_([phase.value for phase in ENDED])
)
_UNFINISHED = (
    select(func.count()).select_from(jobs).where(jobs.c.phase.in_(_ACTIVE), jobs.c.tenant == bindparam("of_tenant"))
)
_ALL_ACTIVE = select(*_JOB).where(jobs.c.phase.in_(_ACTIVE)).order_by(jobs.c.submitted_s, jobs.c.id)
_SPEC = select(submissions.c.spec).where(submissions.c.job == bindparam("wanted"))
_INSERT = insert_row(jobs)
_SUBMIT = {
    name: insert_into(name, submissions).on_conflict_do_nothing().returning(submissions.c.job)
    for name in ("sqlite", "postgresql")
}
_UPDATE = update_rows(jobs).where(jobs.c.id == bindparam("wanted"))
_COUNT = {
    name: (row := insert_into(name, ended_jobs)).on_conflict_do_update(
        ended_jobs.primary_key, set_={"jobs": ended_jobs.c.jobs + row.excluded.jobs}
    )
    for name in ("sqlite", "postgresql")
}
_ONE_STATEMENT = 500  # parameters; well below the limits of both databases
_MIN_PREFIX = 4
_LONGEST_KEY = 255


def new_id(name: str) -> str:
    """An id that can be read out and typed; :func:`insert` sees to it that it is the only one."""
    return f"{name}-{''.join(secrets.choice(_ALPHABET) for _ in range(6))}"


def insert(
    conn: Connection, job: Job, spec: Mapping[str, Any], labels: Mapping[str, str], key: str | None, request_digest: str
) -> tuple[Job, bool]:
    """The stored job and whether it is new. The same key and request again gives the first job back.

    The job returned may have another id than the one passed in, should that be taken.
    """
    if key is not None and len(key) > _LONGEST_KEY:
        fix = f"use at most {_LONGEST_KEY} characters"
        raise InvalidSpec(f"is {len(key)} characters long", field="Idempotency-Key", fix=fix)
    row = {"tenant": job.tenant, "key": key, "request_digest": request_digest, "spec": spec, "labels": labels}
    row |= {"code": spec.get("code")}
    while conn.execute(_SUBMIT[conn.dialect.name], column_values(row | {"job": job.id})).one_or_none() is None:
        first = None if key is None else by_key(conn, job.tenant, key, request_digest)
        if first is not None:
            return first, False
        job = replace(job, id=new_id(job.name))
    try:
        conn.execute(_INSERT, fields(job))
    except IntegrityError as error:
        fix = f"create it first: fairlead tenant create {job.tenant}"
        raise NotFound(f"there is no tenant {job.tenant!r}", field="tenant", value=job.tenant, fix=fix) from error
    if job.phase in ENDED:
        _note_end(conn, job)
    return job, True


def by_key(conn: Connection, tenant: str, key: str, request_digest: str) -> Job | None:
    """The job that this request made before, if it was sent before."""
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

    Called every round, mostly to find the same again: a reading connection recollects the jobs it made last time,
    and makes anew only those whose row is another. Making them would cost more than reading them.
    """
    recollection = conn.info.get(RECOLLECTION, {})
    before: dict[str, tuple[tuple[Any, ...], Job]] = recollection.get("active", {})
    now: dict[str, tuple[tuple[Any, ...], Job]] = {}
    for row in conn.execute(_ALL_ACTIVE):
        values = tuple(row)
        known = before.get(values[0])
        now[values[0]] = known if known is not None and known[0] == values else (values, job_of(values))
    recollection["active"] = now
    return [job for _, job in now.values()]


def on_their_way(conn: Connection) -> list[str]:
    """Ids of the jobs that hold devices or are about to: neither waiting nor ended."""
    moving = [phase for phase in _ACTIVE if phase != JobPhase.QUEUED.value]
    return list(conn.execute(select(jobs.c.id).where(jobs.c.phase.in_(moving)).order_by(jobs.c.id)).scalars())


def get(conn: Connection, job_id: str) -> Job | None:
    row = conn.execute(_BY_ID, {"wanted": job_id}).one_or_none()
    return None if row is None else job_of(row)


def phases(conn: Connection, ids: Collection[str]) -> dict[str, tuple[str, str | None]]:
    """By id, of those of these jobs that there are: the phase, and what comes then if it is ending."""
    found: dict[str, tuple[str, str | None]] = {}
    wanted = sorted(ids)
    for begin in range(0, len(wanted), _ONE_STATEMENT):
        rows = conn.execute(_PHASES_OF, {"ids": wanted[begin : begin + _ONE_STATEMENT]})
        found |= {job: (phase, then) for job, phase, then in rows}
    return found


def several(conn: Connection, ids: Collection[str]) -> dict[str, Job]:
    """Those of these jobs that there are, by id."""
    found: dict[str, Job] = {}
    wanted = sorted(set(ids))
    for begin in range(0, len(wanted), _ONE_STATEMENT):
        rows = conn.execute(_BY_IDS, {"ids": wanted[begin : begin + _ONE_STATEMENT]})
        found |= {job.id: job for job in map(job_of, rows)}
    return found


def spec(conn: Connection, job_id: str) -> dict[str, Any]:
    """What was submitted, as it was stored."""
    found: dict[str, Any] | None = conn.execute(_SPEC, {"wanted": job_id}).scalar_one_or_none()
    if found is None:
        raise _not_found(job_id)
    return found


def labels(conn: Connection, job_ids: Collection[str]) -> dict[str, dict[str, str]]:
    """Labels by job; jobs that do not exist are left out."""
    found: dict[str, dict[str, str]] = {}
    wanted = list(job_ids)
    for start in range(0, len(wanted), _ONE_STATEMENT):
        some = submissions.c.job.in_(wanted[start : start + _ONE_STATEMENT])
        found |= {
            row.job: row.labels for row in conn.execute(select(submissions.c.job, submissions.c.labels).where(some))
        }
    return found


def find(conn: Connection, ref: str, tenant: str | None) -> Job:
    """The job meant by an id, a name (its newest) or the beginning of an id; only among the tenant's own if given."""
    own = [] if tenant is None else [jobs.c.tenant == tenant]
    newest = select(*_JOB).where(*own).order_by(jobs.c.submitted_s.desc(), jobs.c.id.desc())
    for exact in (jobs.c.id == ref, jobs.c.name == ref):  # names come before prefixes: a name begins all its jobs' ids
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
        raise NotFound(f"{ref!r} begins several jobs: {several}", value=ref, fix="write more of the id")
    raise _not_found(ref)


def _not_found(ref: str) -> NotFound:
    fix = f"list them with fairlead queue --all; a beginning of an id needs {_MIN_PREFIX} characters"
    return NotFound(f"there is no job {ref!r}", value=ref, fix=fix)


def page(
    conn: Connection, *, tenant: str | None = None, phases: Collection[str] | None = None, name: str | None = None,
    limit: int = 100, before: str | None = None, order: str = "newest", ids: Collection[str] | None = None,
) -> tuple[list[Job], str | None, int]:  # fmt: skip
    """Jobs newest (or oldest) first, the cursor of the next page (None: this is the last) and how many in all.

    In the order of the queue: those on their way, those that wait, the oldest first, and those that have ended.
    Their results are cut: :mod:`.listing`.
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
        found, more = _queue(conn, where, frozenset(PHASES) if wanted is None else wanted, limit, before)
    else:
        at = None if before is None else _position(before)
        found = _ordered(conn, chosen, limit + 1, at, oldest=order == "oldest")
        more = _cursor(found[limit - 1]) if len(found) > limit else None
    return found[:limit], more, total


def _ordered(
    conn: Connection, where: Iterable[Condition], limit: int, at: tuple[float, str] | None, *,
    oldest: bool,
) -> list[Job]:  # fmt: skip
    """So many of these jobs after this position."""
    place = tuple_(jobs.c.submitted_s, jobs.c.id)
    by = [jobs.c.submitted_s, jobs.c.id] if oldest else [jobs.c.submitted_s.desc(), jobs.c.id.desc()]
    query = select(*job_listing.COLUMNS).where(*where).order_by(*by).limit(limit)
    if at is not None:
        query = query.where(place > tuple_(*at) if oldest else place < tuple_(*at))
    return [job_of(job_listing.brief(row)) for row in conn.execute(query)]


def _queue(
    conn: Connection, where: Sequence[Condition], phases: frozenset[str], limit: int, before: str | None
) -> tuple[list[Job], str | None]:  # fmt: skip
    """One page of the queue, read at one moment so that no job appears twice; the cursor begins with its group."""
    first, at = 0, None
    if before is not None:
        group_number, _, place = before.partition("~")
        if group_number not in ("0", "1", "2"):
            raise _no_cursor(before)
        first, at = int(group_number), _position(place)
    found: list[tuple[int, Job]] = []
    for number, (group, oldest) in enumerate(_QUEUE):
        own, room = sorted(phases & group), limit + 1 - len(found)
        if number >= first and own and room > 0:
            fresh = _ordered(conn, [*where, _in_phases(own)], room, at if number == first else None, oldest=oldest)
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
    """How many jobs there are: those that have not ended are counted, the others have been."""
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
    raise _no_cursor(cursor)


def _no_cursor(cursor: str) -> InvalidSpec:
    return InvalidSpec("is not a cursor", field="cursor", value=cursor, fix="pass the cursor of the page before")


def update(conn: Connection, job_id: str, **changes: Any) -> None:
    """Change these fields of a job."""
    ends = changes.get("phase") in ENDED
    before = get(conn, job_id) if ends else None
    if not conn.execute(_UPDATE, {"wanted": job_id, **column_values(changes)}).rowcount:
        raise _not_found(job_id)
    if before is not None and before.phase not in ENDED:
        _note_end(conn, replace(before, **changes))


def update_each(conn: Connection, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Change these fields of each job, in one statement for all whose fields are the same; none of them may end."""
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for job, values in changes.items():
        if values:
            alike.setdefault(tuple(sorted(values)), []).append({"wanted": job, **column_values(values)})
    for names, rows in alike.items():
        conn.execute(_update_of(names), rows)


@cache  # to build a statement costs more than to run it
def _update_of(names: tuple[str, ...]) -> Update:
    return _UPDATE.values({name: bindparam(name) for name in names})


def _note_end(conn: Connection, job: Job) -> None:
    """Count a job that has just ended, so that nobody has to look at all that ever did."""
    count_ended(conn, {(job.tenant, job.phase.value): 1})
    if job.finished_s is not None:
        usage_spans.note_wish(conn, job.tenant, job.submitted_s, job.finished_s)


def note_ends(conn: Connection, phase: JobPhase, ended: Collection[tuple[str, float]], now_s: float) -> None:
    """Count jobs, by tenant and time of submission, that have ended together now."""
    if not ended:
        return
    count_ended(conn, Counter((tenant, phase.value) for tenant, _ in ended))
    for tenant in sorted({tenant for tenant, _ in ended}):
        first_s = min(submitted_s for owner, submitted_s in ended if owner == tenant)
        usage_spans.note_wish(conn, tenant, first_s, now_s)


def count_ended(conn: Connection, more: Mapping[tuple[str, str], int]) -> None:
    """Add so many to the ended jobs of each tenant and phase; fewer, as their rows go, is less than none."""
    rows = [{"tenant": tenant, "phase": phase, "jobs": count} for (tenant, phase), count in more.items()]
    conn.execute(_COUNT[conn.dialect.name], rows)


def counts(conn: Connection) -> dict[str, dict[str, int]]:
    """How many jobs each tenant has in each phase."""
    live = select(jobs.c.tenant, jobs.c.phase, func.count()).where(jobs.c.phase.in_(_ACTIVE))
    found: dict[str, dict[str, int]] = {}
    for query in (live.group_by(jobs.c.phase, jobs.c.tenant), select(ended_jobs).where(ended_jobs.c.jobs > 0)):
        for tenant, phase, count in conn.execute(query):
            found.setdefault(tenant, {})[phase] = count
    return found


def unfinished(conn: Connection, tenant: str) -> int:
    """How many jobs of the tenant run or wait."""
    return int(conn.execute(_UNFINISHED, {"of_tenant": tenant}).scalar_one())


def over(conn: Connection, wanted: Collection[str]) -> set[str]:
    """Of these jobs those that have ended, or are not there any more."""
    query = select(jobs.c.id).where(jobs.c.id.in_(list(wanted)), jobs.c.phase.in_(_ACTIVE))
    return set(wanted) - set(conn.execute(query).scalars())


def ended(conn: Connection, wanted: Collection[str]) -> set[str]:
    """Those of these jobs that have ended."""
    found: set[str] = set()
    ids = sorted(set(wanted))
    for begin in range(0, len(ids), _ONE_STATEMENT):
        found |= set(conn.execute(_ENDED_OF, {"ids": ids[begin : begin + _ONE_STATEMENT]}).scalars())
    return found


def people(conn: Connection) -> dict[tuple[str, str], dict[str, int]]:
    """How many jobs that have not ended each person of each tenant has, in each phase."""
    who = (jobs.c.tenant, jobs.c.submitted_by, jobs.c.phase)
    query = select(*who, func.count()).where(jobs.c.phase.in_(_ACTIVE))
    found: dict[tuple[str, str], dict[str, int]] = {}
    for tenant, person, phase, count in conn.execute(query.group_by(*who)):
        found.setdefault((tenant, person), {})[phase] = count
    return found
