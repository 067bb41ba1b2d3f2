"""Turns the target placement of a published policy into a round of decisions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

from fairlead.cluster import same_seats
from fairlead.scheduling.state import ClusterState, Decision, Hold, JobState, Preempt, Reason, Resize, Round, Start

Seats = tuple[str, ...]


def free_devices(state: ClusterState) -> dict[str, int]:
    """Devices of every node that takes work, as if nobody sat anywhere."""
    return {node.name: node.devices for node in state.nodes if node.schedulable}


def sit(free: dict[str, int], seats: Iterable[str]) -> None:
    """Take these seats away from what is free."""
    for name in seats:
        free[name] = free.get(name, 0) - 1


def emptiest_first(free: dict[str, int], workers: int) -> Seats:
    """Seats on the nodes with the most room, so that the gang is spread over few; they are taken away."""
    seats: list[str] = []
    while len(seats) < workers:
        name = max(free, key=lambda node: free[node])
        taken = min(free[name], workers - len(seats))
        if taken <= 0:
            raise ValueError("more workers than free devices")
        seats += [name] * taken
        free[name] -= taken
    return tuple(seats)


def tightest(free: dict[str, int], workers: int) -> Seats:
    """Seats on one node with the least room that is enough, else as :func:`emptiest_first`; they are taken away."""
    roomy = [name for name, room in free.items() if room >= workers]
    if not roomy:
        return emptiest_first(free, workers)
    name = min(roomy, key=lambda node: free[node])
    free[name] -= workers
    return (name,) * workers


def regrown(state: ClusterState, gangs: Mapping[str, int]) -> dict[str, Seats]:
    """Seats for gangs of these sizes: whose size stays keeps its seats, the others sit anew, the widest first."""
    free = free_devices(state)
    seats: dict[str, Seats] = {}
    for job in state.jobs:
        if job.seats and gangs.get(job.id) == len(job.seats):
            seats[job.id] = job.seats
            sit(free, job.seats)
    for name, size in sorted(gangs.items(), key=lambda item: -item[1]):
        if name not in seats and size > 0:
            seats[name] = tightest(free, size)
    return seats


def round_of(
    state: ClusterState,
    wanted: Mapping[str, Seats],
    policy: str,
    memory: Mapping[str, Any],
    declined: Collection[str] = (),
) -> Round:
    """The decisions that lead from the present seats to the wanted ones; no seats means to wait, or to be declined."""
    made = [_decision(job, wanted.get(job.id, ()), policy, job.id in declined) for job in state.jobs]
    return Round(tuple(one for one in made if one is not None), {}, memory)


def _decision(job: JobState, seats: Seats, policy: str, declined: bool) -> Decision | None:
    if not seats and not job.seats:
        if declined:
            return Hold(job.id, _why("declined", f"{policy}: its deadline cannot be kept"))
        return Hold(job.id, _why("behind-others", f"{policy}: others come first"))
    if not seats:
        return Preempt(job.id, _why("preempted", f"{policy}: others come first"))
    if not job.seats:
        return Start(job.id, seats, _why("starts", f"{policy}: it is its turn"))
    if same_seats(seats, job.seats):
        return None
    return Resize(job.id, seats, _why("moved", f"{policy}: another gang suits better"))


@cache
def _why(code: str, text: str) -> Reason:
    """One object for all who wait for the same reason: there may be thousands in every round."""
    return Reason(code, text)
