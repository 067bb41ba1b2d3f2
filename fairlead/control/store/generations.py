"""Stores the generations of the jobs' gangs: which worker ran where, from when to when, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from sqlalchemy import Connection, bindparam, select
from sqlalchemy import insert as insert_row
from sqlalchemy import update as update_rows

from fairlead.cluster import Member, Placement
from fairlead.control.reconcile.rendezvous import Rendezvous
from fairlead.control.records import Generation, GenerationPhase
from fairlead.control.store import damaged_rows
from fairlead.control.store.row_mapping import column_values, row_of
from fairlead.control.store.schema import generations
from fairlead.control.store.schema import jobs as job_rows
from fairlead.errors import NotFound

_LIVE = [phase.value for phase in GenerationPhase if phase is not GenerationPhase.ENDED]
_GENERATION = [generations.c[name] for name in Generation.__slots__]
_IS = (generations.c.job == bindparam("of_job")) & (generations.c.number == bindparam("of_number"))
_INSERT = insert_row(generations)
_UPDATE, _THIS = update_rows(generations).where(_IS), select(*_GENERATION).where(_IS)  # built once
_AT = {name: place for place, name in enumerate(Generation.__slots__)}
_SHAPE = damaged_rows.RowShape(Generation, "generations", phase=GenerationPhase.ENDED.value)
_BY_JOB = select(*_GENERATION).order_by(generations.c.job, generations.c.number)
_OF_JOB = _BY_JOB.where(generations.c.job == bindparam("of_job"))
_BEFORE = (
    select(*_GENERATION)
    .where(generations.c.job == bindparam("of_job"), generations.c.number < bindparam("of_number"))
    .order_by(generations.c.number.desc())
)
_MAX_WORKED = 500  # generations read at most: more restarts since a death only mean short runs
_EVERY_LIVE = _BY_JOB.where(generations.c.phase.in_(_LIVE))
# concat("") hides the phase from the index: by phase, nearly all live generations would be read for a few jobs.
_LIVE_OF = _BY_JOB.where(
    generations.c.job.in_(bindparam("of_jobs", expanding=True)), generations.c.phase.concat("").in_(_LIVE)
)
_METERED = update_rows(generations).where(_IS).values(metered_s=bindparam("until_s"))
_MAX_PARAMETERS = 500  # parameters; well below the limits of both databases
_MAX_BY_JOB = 1000  # for more jobs, one scan over all live generations is cheaper


def insert(conn: Connection, generation: Generation) -> None:
    conn.execute(_INSERT, row_of(generation) | {"members": _member_rows(generation.members)})


def update(conn: Connection, job: str, number: int, **changes: Any) -> None:
    """Change these fields of a generation."""
    values = column_values(changes)
    if "members" in values:
        values["members"] = _member_rows(values["members"])
    if not conn.execute(_UPDATE, values | {"of_job": job, "of_number": number}).rowcount:
        raise NotFound(f"job {job} has no generation {number}", fix=f"see fairlead why {job}")


def get(conn: Connection, job: str, number: int) -> Generation | None:
    row = conn.execute(_THIS, {"of_job": job, "of_number": number}).one_or_none()
    return None if row is None else _generation(row)


def of_job(conn: Connection, job: str) -> list[Generation]:
    """All generations of a job in order."""
    return [_generation(row) for row in conn.execute(_OF_JOB, {"of_job": job})]


def previous(conn: Connection, job: str, number: int) -> Generation | None:
    """The job's last generation before this one."""
    row = conn.execute(_BEFORE.limit(1), {"of_job": job, "of_number": number}).one_or_none()
    return None if row is None else _generation(row)


def failures_before(conn: Connection, job: str, number: int, most: int = 100) -> list[float]:
    """When the generations before this one broke, newest first, back to the last one that made a step."""
    query = _BEFORE.with_only_columns(generations.c.broken_s, generations.c.first_step).limit(most)
    found: list[float] = []
    for broken_s, first_step in conn.execute(query, {"of_job": job, "of_number": number}):
        found += [] if broken_s is None else [broken_s]
        if first_step is not None:
            break  # it had recovered from all earlier failures
    return found


def worked_s(conn: Connection, job: str, since_s: float, now_s: float, *, stepped: bool, enough_s: float) -> float:
    """How long the job's gangs ran since ``since_s``; with ``stepped``, only gangs that made a step.

    Reads newest first and stops at ``enough_s``.
    """
    columns = [generations.c[name] for name in ("running_s", "broken_s", "ended_s", "first_step")]
    since = (generations.c.ended_s.is_(None)) | (generations.c.ended_s > since_s)
    own = (generations.c.job == job) & generations.c.running_s.is_not(None) & since
    total_s = 0.0
    for running_s, broken_s, ended_s, first_step in conn.execute(
        select(*columns).where(own).order_by(generations.c.number.desc()).limit(_MAX_WORKED)
    ):
        if stepped and first_step is None:
            continue
        end_s = min(moment for moment in (broken_s, ended_s, now_s) if moment is not None)
        total_s += max(0.0, end_s - max(running_s, since_s))
        if total_s >= enough_s:
            break
    return total_s


def live_by_job(conn: Connection, jobs: Collection[str]) -> dict[str, list[Generation]]:
    """The unfinished generations of these jobs, ascending; jobs without one are left out."""
    wanted = sorted(set(jobs))
    found: dict[str, list[Generation]] = {}
    if len(wanted) > _MAX_BY_JOB:
        chosen = frozenset(wanted)
        rows: Iterable[Any] = (row for row in conn.execute(_EVERY_LIVE) if row.job in chosen)
    else:
        parts = (wanted[begin : begin + _MAX_PARAMETERS] for begin in range(0, len(wanted), _MAX_PARAMETERS))
        rows = (row for part in parts for row in conn.execute(_LIVE_OF, {"of_jobs": part}))
    for row in rows:
        found.setdefault(row.job, []).append(_generation(row))
    return found


def mark_metered(conn: Connection, pairs: Collection[tuple[str, int]], until_s: float) -> None:
    """The ledger is complete up to ``until_s`` for these generations (job, number)."""
    if pairs:
        conn.execute(_METERED, [{"of_job": job, "of_number": number, "until_s": until_s} for job, number in pairs])


def unmetered_devices(conn: Connection) -> list[tuple[str, int, float]]:
    """Of each running generation: tenant, number of devices, and time up to which the ledger is complete."""
    columns = job_rows.c.tenant, generations.c.members, generations.c.metered_s
    running = generations.c.phase.in_(_LIVE), generations.c.metered_s.is_not(None)
    query = select(*columns).join(job_rows, job_rows.c.id == generations.c.job).where(*running)
    return [(tenant, len(members), float(metered_s)) for tenant, members, metered_s in conn.execute(query)]


def ports_in_use(conn: Connection) -> set[int]:
    """Rendezvous ports of live generations."""
    live = select(generations.c.rendezvous).where(generations.c.phase.in_(_LIVE))
    return {point.port for (stored,) in conn.execute(live) if (point := Rendezvous.parse(stored)) is not None}


def _member_rows(members: Placement) -> list[dict[str, Any]]:
    return [{"worker": m.worker, "rank": m.rank, "node": m.node, "device": m.device} for m in members]


def _generation(row: Iterable[Any]) -> Generation:
    """The generation of a row; an unreadable one has no members, which a readable one always has."""
    values = list(row)
    key = f"{values[0]}/{values[1]}"
    _SHAPE.repair(key, values)
    try:
        values[_AT["phase"]] = GenerationPhase(values[_AT["phase"]])
        values[_AT["members"]] = tuple(Member(**seat) for seat in values[_AT["members"]])
    except (TypeError, ValueError):
        damaged_rows.report_damage("generations", key, "its phase or its members cannot be read")
        values[_AT["phase"]], values[_AT["members"]] = _phase(values[_AT["phase"]]), ()
    return Generation(*values)


def _phase(stored: str) -> GenerationPhase:
    return GenerationPhase(stored) if stored in set(GenerationPhase) else GenerationPhase.ENDED
