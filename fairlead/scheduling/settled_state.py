"""The cluster as it will be once all that was decided is carried out: who sits where then, and who may still change.

A live round decides while earlier decisions are under way: seats are given up that are not free yet, and gangs were
given seats that others still leave. The market is asked about the settled state, so that it does not decide the same
twice; what of its answer can be done at this moment is worked out afterwards, in ``feasible``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fairlead.cluster import Resources, same_seats, subtract
from fairlead.scheduling.repair import Repairs
from fairlead.scheduling.seating_plan import without
from fairlead.scheduling.situation import Situation
from fairlead.scheduling.state import JobState, Resize

Seats = tuple[str, ...]

COMMITTED_S = 30.0
"""Seats that were given to a gang are kept for it so long once nobody is leaving them any more."""


class Commitment(NamedTuple):
    """Seats that an earlier round gave to a gang that does not sit on all of them yet."""

    seats: Seats
    since_s: float


@dataclass(frozen=True, slots=True)
class SettledState:
    """Final seats by job; who is not asked; what was given before; and the other jobs as the market is to read them."""

    seats: Mapping[str, Seats]
    fixed: frozenset[str]
    committed: Mapping[str, Commitment]
    asked: Mapping[str, JobState]


def settled_state(situation: Situation, repaired: Repairs) -> SettledState:
    """Who sits where in the end; gangs that settle, were repaired now, or sit where nothing new may go, are fixed."""
    final = {name: _final(job, repaired) for name, job in situation.jobs.items()}
    fixed = frozenset(
        name for name, job in situation.jobs.items()
        if name in repaired or job.settling or (job.seats and situation.stays_put(job))
    )  # fmt: skip
    committed = _still_valid(situation, final, fixed, _remembered(situation, final, repaired))
    seats = {name: committed[name].seats if name in committed else has for name, has in final.items()}
    asked = {name: _view(situation, name, committed.get(name)) for name in situation.seen if name not in fixed}
    return SettledState(seats, fixed, committed, asked)


def _final(job: JobState, repaired: Repairs) -> Seats:
    """Where it sits once what was decided about it, before this round or in its repairs, is done."""
    decided = repaired.get(job.id)
    if decided is not None:
        return decided.seats if isinstance(decided, Resize) else ()
    return without(job.seats, job.leaving) if job.leaving else job.seats


def _remembered(situation: Situation, final: Mapping[str, Seats], repaired: Repairs) -> dict[str, Commitment]:
    """What earlier rounds gave, as long as it is not too old, its nodes serve, and the gang is on its way there."""
    nodes, now_s, found = situation.board.nodes, situation.now_s, {}
    departing = Counter(name for job in situation.jobs.values() for name in (job.leaving or ()))
    for name, (seats, since_s) in sorted(situation.state.memory.get("wanted", {}).items()):
        job, given = situation.jobs.get(name), tuple(seats)
        if job is None or name in repaired or same_seats(given, final[name]):
            continue
        if job.settling and (not final[name] or Counter(final[name]) - Counter(given)):
            continue  # it is on its way out, or elsewhere
        awaited = Counter(given) - Counter(final[name])
        since_s = now_s if any(departing[seat] for seat in awaited) else float(since_s)
        serve = all(seat in nodes and nodes[seat].schedulable for seat in awaited)
        if serve and 0.0 <= now_s - since_s <= COMMITTED_S and (job.settling or name in situation.seen):
            found[name] = Commitment(given, since_s)
    return found


def _still_valid(
    situation: Situation, final: Mapping[str, Seats], fixed: frozenset[str], found: dict[str, Commitment]
) -> dict[str, Commitment]:
    """Without those given seats that cannot all be had together: the newest ones go first."""
    while found:
        free = free_amounts(
            situation, {name: found[name].seats if name in found else has for name, has in final.items()}
        )
        over = {name for name, amounts in free.items() if any(left < -1e-6 for left in amounts.values())}
        clashing = [name for name, one in found.items()
                    if not over.isdisjoint((Counter(one.seats) - Counter(final[name])).keys())]  # fmt: skip
        if not clashing:
            break
        del found[max(clashing, key=lambda name: (found[name].since_s, name))]
    return found


def free_amounts(situation: Situation, seats: Mapping[str, Seats]) -> dict[str, Resources]:
    """What is left of each node when everybody sits on these seats."""
    nodes = situation.board.nodes
    free: dict[str, Resources] = {name: node.capacity for name, node in nodes.items()}
    for name, where in seats.items():
        need = situation.jobs[name].need if where else {}
        for seat in where:
            if seat in free:
                free[seat] = subtract(free[seat], need)
    return free


def _view(situation: Situation, name: str, given: Commitment | None) -> JobState:
    """The job as the market reads it: on the seats it was given; a gang that would start over stays on its type."""
    view, job = situation.seen[name], situation.jobs[name]
    if given is not None:
        return replace(view, seats=given.seats, since_s=given.since_s)  # it has its time from then on
    if job.broken:
        return replace(view, broken=True)  # it has no gang now, but sits where it lives on
    if job.starts_over and job.seats and view.device_type is None:
        return replace(view, device_type=situation.board.kind(job.seats))
    return view


def wanted_memory(situation: Situation, settled: SettledState, wanted: Mapping[str, Seats]) -> dict[str, Any]:
    """What the next round has to know of this one: seats that were given to gangs that do not sit on all of them."""
    jobs = situation.jobs
    given = {name: seats for name, seats in wanted.items()
             if seats != jobs[name].seats and Counter(seats) - Counter(jobs[name].seats)}  # fmt: skip
    given |= {name: one.seats for name, one in settled.committed.items() if name in settled.fixed}
    since_s = {
        name: one.since_s for name, one in settled.committed.items() if same_seats(one.seats, given.get(name, ()))
    }
    found = {name: [list(seats), since_s.get(name, situation.now_s)] for name, seats in sorted(given.items()) if seats}
    return {"wanted": found} if found else {}
