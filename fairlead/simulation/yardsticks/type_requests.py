"""Finds seats for policies that choose device types and sizes, not nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from fairlead.cluster import Node
from fairlead.scheduling.state import ClusterState, JobState, Round
from fairlead.simulation.yardsticks.seating import Seats, round_of, sit, tightest


class TypeRequest(NamedTuple):
    device_type: str
    size: int


def capacities(nodes: Iterable[Node]) -> dict[str, int]:
    """Devices in service by type, types by name."""
    found: dict[str, int] = {}
    for node in nodes:
        if node.schedulable:
            found[node.device_type] = found.get(node.device_type, 0) + node.devices
    return dict(sorted(found.items()))


def granted(
    state: ClusterState, wishes: Mapping[str, TypeRequest], policy: str, memory: Mapping[str, Any] | None = None
) -> Round:
    """The decisions that grant these wishes, which fit; everybody else stops. Who can stay where it is, stays."""
    free: dict[str, dict[str, int]] = {}
    for node in state.nodes:
        if node.schedulable:
            free.setdefault(node.device_type, {})[node.name] = node.devices
    jobs = {job.id: job for job in state.jobs}
    seats: dict[str, Seats] = {}
    for name, wish in wishes.items():
        if _stays(jobs[name], wish, free[wish.device_type]):
            seats[name] = jobs[name].seats
            sit(free[wish.device_type], seats[name])
    for name, wish in sorted(wishes.items(), key=lambda item: -item[1].size):
        if name not in seats:
            seats[name] = tightest(free[wish.device_type], wish.size)
    # Only who sits or will sit: a reason for each of thousands that wait would cost more than the choice itself.
    concerned = [job for job in state.jobs if job.seats or job.id in seats]
    return round_of(replace(state, jobs=concerned), seats, policy, memory or {})


def _stays(job: JobState, wish: TypeRequest, free: Mapping[str, int]) -> bool:
    """Whether it may keep exactly the seats it has."""
    return len(job.seats) == wish.size and all(free.get(name, 0) >= n for name, n in Counter(job.seats).items())
