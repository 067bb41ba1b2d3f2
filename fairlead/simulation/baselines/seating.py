"""From who should run where to a round of decisions: the part that all yardstick policies share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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


def round_of(state: ClusterState, wanted: Mapping[str, Seats], policy: str, memory: Mapping[str, Any]) -> Round:
    """The decisions that lead from the present seats to the wanted ones; no seats means to wait."""
    made = [_decision(job, wanted.get(job.id, ()), policy) for job in state.jobs]
    return Round(tuple(one for one in made if one is not None), {}, memory)


def _decision(job: JobState, seats: Seats, policy: str) -> Decision | None:
    if not seats and not job.seats:
        return Hold(job.id, Reason("behind-others", f"{policy}: others come first"))
    if not seats:
        return Preempt(job.id, Reason("preempted", f"{policy}: others come first"))
    if not job.seats:
        return Start(job.id, seats, Reason("starts", f"{policy}: it is its turn"))
    if same_seats(seats, job.seats):
        return None
    return Resize(job.id, seats, Reason("moved", f"{policy}: another gang suits better"))
