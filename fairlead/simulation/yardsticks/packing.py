"""Seats gangs of given sizes on given device types: wide gangs on whole nodes, moving small ones for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fairlead.cluster import Node
from fairlead.scheduling.state import ClusterState, JobState
from fairlead.simulation.yardsticks.seating import Seats, sit, tightest
from fairlead.simulation.yardsticks.type_requests import TypeRequest


def packed(state: ClusterState, wishes: Mapping[str, TypeRequest]) -> dict[str, Seats]:
    """Who can stay, stays; but a gang that fills nodes gets whole ones, even if a smaller gang has to move."""
    jobs = {job.id: job for job in state.jobs}
    seats: dict[str, Seats] = {}
    for kind in sorted({wish.device_type for wish in wishes.values()}):
        nodes = [node for node in state.nodes if node.schedulable and node.device_type == kind]
        sizes = {name: wish.size for name, wish in wishes.items() if wish.device_type == kind}
        seats |= _of_one_type(nodes, [(jobs[name], size) for name, size in sizes.items()])
    return seats


def _of_one_type(nodes: Sequence[Node], wanted: Sequence[tuple[JobState, int]]) -> dict[str, Seats]:
    free = {node.name: node.devices for node in nodes}
    whole = max(free.values())
    seats: dict[str, Seats] = {}
    staying = [(job, size) for job, size in wanted if len(job.seats) == size and set(job.seats) <= set(free)]
    _stay([pair for pair in staying if pair[1] >= whole], free, seats)
    small = Counter(name for job, size in staying if size < whole for name in job.seats)
    for job, size in sorted(wanted, key=lambda pair: -pair[1]):
        if job.id not in seats and size >= whole:
            seats[job.id] = _whole_nodes(free, size, whole, small)
    _stay([pair for pair in staying if pair[1] < whole], free, seats)
    for job, size in sorted(wanted, key=lambda pair: -pair[1]):
        if job.id not in seats:
            seats[job.id] = tightest(free, size)
    return seats


def _stay(staying: Sequence[tuple[JobState, int]], free: dict[str, int], seats: dict[str, Seats]) -> None:
    for job, _ in staying:
        if all(free[name] >= count for name, count in Counter(job.seats).items()):
            seats[job.id] = job.seats
            sit(free, job.seats)


def _whole_nodes(free: dict[str, int], size: int, whole: int, small: Mapping[str, int]) -> Seats:
    """Empty nodes, those first on which the fewest small gangs would like to stay; the rest where it fits best."""
    empty = sorted((name for name, room in free.items() if room == whole), key=lambda name: small.get(name, 0))
    taken = [name for name in empty[: size // whole] for _ in range(whole)]
    sit(free, taken)
    rest = size - len(taken)
    return (*taken, *(tightest(free, rest) if rest else ()))
