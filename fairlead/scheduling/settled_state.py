"""Computes the settled state: the seats of all gangs once every earlier decision is carried out.

A live round decides while earlier decisions are under way: jobs still hold seats that they are giving up, and gangs
wait for seats that others are leaving. The market decides on the settled state, so that it does not decide the same
thing twice. :mod:`.feasible_changes` then finds the part of its answer that can begin at this moment.
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
"""Seats promised to a gang are kept for it for so long after the last job has left them."""


class Commitment(NamedTuple):
    """Seats that an earlier round promised to a gang which does not hold all of them yet."""

    seats: Seats
    since_s: float


@dataclass(frozen=True, slots=True)
class SettledState:
    """Final seats by job; jobs that cannot change; promised seats; and the bidders as the market reads them."""

    seats: Mapping[str, Seats]
    fixed: frozenset[str]
    committed: Mapping[str, Commitment]
    bidders: Mapping[str, JobState]


def settled_state(situation: Situation, repaired: Repairs) -> SettledState:
    """The settled state. Fixed are gangs that are frozen, repaired in this round, or on nodes that take no workers."""
    final = {name: _final_seats(job, repaired) for name, job in situation.jobs.items()}
    fixed = frozenset(
        name for name, job in situation.jobs.items()
        if name in repaired or job.frozen or (job.seats and situation.cannot_change(job))
    )  # fmt: skip
    committed = _compatible_commitments(situation, final, fixed, _remembered_commitments(situation, final, repaired))
    seats = {name: committed[name].seats if name in committed else has for name, has in final.items()}
    bidders = {name: _as_bidder(situation, name, committed.get(name)) for name in situation.seen if name not in fixed}
    return SettledState(seats, fixed, committed, bidders)


def _final_seats(job: JobState, repaired: Repairs) -> Seats:
    """Its seats once earlier decisions and the repairs of this round are carried out."""
    decided = repaired.get(job.id)
    if decided is not None:
        return decided.seats if isinstance(decided, Resize) else ()
    return without(job.seats, job.leaving) if job.leaving else job.seats


def _remembered_commitments(
    situation: Situation, final: Mapping[str, Seats], repaired: Repairs
) -> dict[str, Commitment]:
    """Seats that earlier rounds promised, unless they are too old, a node is gone, or the gang went elsewhere."""
    nodes, now_s, found = situation.seating.nodes, situation.now_s, {}
    departing = Counter(name for job in situation.jobs.values() for name in (job.leaving or ()))
    for name, (seats, since_s) in sorted(situation.state.memory.get("wanted", {}).items()):
        job, given = situation.jobs.get(name), tuple(seats)
        if job is None or name in repaired or same_seats(given, final[name]):
            continue
        if job.frozen and (not final[name] or Counter(final[name]) - Counter(given)):
            continue  # it is stopping, or moving elsewhere
        awaited = Counter(given) - Counter(final[name])
        since_s = now_s if any(departing[seat] for seat in awaited) else float(since_s)
        serve = all(seat in nodes and nodes[seat].schedulable for seat in awaited)
        if serve and 0.0 <= now_s - since_s <= COMMITTED_S and (job.frozen or name in situation.seen):
            found[name] = Commitment(given, since_s)
    return found


def _compatible_commitments(
    situation: Situation, final: Mapping[str, Seats], fixed: frozenset[str], found: dict[str, Commitment]
) -> dict[str, Commitment]:
    """The commitments that fit on the nodes together; of clashing ones the newest are dropped first."""
    while found:
        free = free_resources(
            situation, {name: found[name].seats if name in found else has for name, has in final.items()}
        )
        over = {name for name, amounts in free.items() if any(left < -1e-6 for left in amounts.values())}
        clashing = [name for name, one in found.items()
                    if not over.isdisjoint((Counter(one.seats) - Counter(final[name])).keys())]  # fmt: skip
        if not clashing:
            break
        del found[max(clashing, key=lambda name: (found[name].since_s, name))]
    return found


def free_resources(situation: Situation, seats: Mapping[str, Seats]) -> dict[str, Resources]:
    """What is left of each node when all jobs hold these seats."""
    nodes = situation.seating.nodes
    free: dict[str, Resources] = {name: node.capacity for name, node in nodes.items()}
    for name, where in seats.items():
        need = situation.jobs[name].need if where else {}
        for seat in where:
            if seat in free:
                free[seat] = subtract(free[seat], need)
    return free


def _as_bidder(situation: Situation, name: str, given: Commitment | None) -> JobState:
    """The job as the market reads it: on its promised seats. A gang that would start over keeps its device type."""
    view, job = situation.seen[name], situation.jobs[name]
    if given is not None:
        return replace(view, seats=given.seats, since_s=given.since_s)  # its minimum run counts from then on
    if job.broken:
        return replace(view, broken=True)  # its gang is incomplete, but its survivors hold their seats
    if job.starts_over and job.seats and view.device_type is None:
        return replace(view, device_type=situation.seating.kind(job.seats))
    return view


def commitments_memory(situation: Situation, settled: SettledState, wanted: Mapping[str, Seats]) -> dict[str, Any]:
    """For the next round: seats promised to gangs that do not hold all of them yet, with the time of the promise."""
    jobs = situation.jobs
    given = {name: seats for name, seats in wanted.items()
             if seats != jobs[name].seats and Counter(seats) - Counter(jobs[name].seats)}  # fmt: skip
    given |= {name: one.seats for name, one in settled.committed.items() if name in settled.fixed}
    since_s = {
        name: one.since_s for name, one in settled.committed.items() if same_seats(one.seats, given.get(name, ()))
    }
    found = {name: [list(seats), since_s.get(name, situation.now_s)] for name, seats in sorted(given.items()) if seats}
    return {"wanted": found} if found else {}
