"""Policies that order jobs and give each the fastest devices left: FIFO, SRTF, LAS; and fair sharing (DRF)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fairlead.scheduling.state import ClusterState, JobState, Round
from fairlead.simulation.yardsticks.elastic_gangs import speed_on
from fairlead.simulation.yardsticks.type_requests import TypeRequest, capacities, granted

Key = Callable[[JobState], tuple[float, ...]]


def arrival(job: JobState) -> tuple[float, ...]:
    return (job.submitted_s,)


def attained(job: JobState) -> tuple[float, ...]:
    """Least attained service first: devices times seconds, over the weight."""
    return (job.attained_device_s / job.weight, job.submitted_s)


def remaining(job: JobState) -> tuple[float, ...]:
    """Shortest remaining time first, on the best devices there are; without declared work, least attained service."""
    if job.work_left is None or job.curve is None:
        return attained(job)
    speed = job.curve.fastest(job.min_workers)
    return (job.work_left / speed if speed > 0 else math.inf, job.submitted_s)


@dataclass(frozen=True, slots=True)
class OrderedPolicy:
    """All jobs in one order, anew every round; who falls behind is stopped, unless what runs may go on."""

    name: str
    key: Key
    patient: bool = False  # no job overtakes one that does not fit, and no running job is stopped

    def __call__(self, state: ClusterState) -> Round:
        left = capacities(state.nodes)
        wishes: dict[str, TypeRequest] = {}
        queue = sorted(state.jobs, key=self.key)
        if self.patient:
            wishes = stay(state, left)
            queue = [job for job in queue if job.id not in wishes]
        for job in queue:
            wish = fastest_free(job, left)
            if wish is not None:
                left[wish.device_type] -= wish.size
                wishes[job.id] = wish
            elif self.patient:
                break
        return granted(state, wishes, self.name)


@dataclass(frozen=True, slots=True)
class DominantShare:
    """DRF (NSDI 11) with earliest deadlines first within a tenant: the tenant with the least share for its weight next.

    Nobody who runs is stopped: shares are corrected as devices become free.
    """

    def __call__(self, state: ClusterState) -> Round:
        left = capacities(state.nodes)
        total = max(1, sum(left.values()))
        wishes = stay(state, left)
        weights = {tenant.name: tenant.weight for tenant in state.tenants}
        used: dict[str, float] = {}
        queues: dict[str, list[JobState]] = {}
        for job in sorted(state.jobs, key=due, reverse=True):
            used.setdefault(job.tenant, 0.0)
            if job.id in wishes:
                used[job.tenant] += wishes[job.id].size / total / weights.get(job.tenant, 1.0)
            else:
                queues.setdefault(job.tenant, []).append(job)
        while queues and any(left.values()):
            tenant = min(queues, key=lambda name: (used[name], name))
            job = queues[tenant].pop()
            wish = fastest_free(job, left)
            if wish is not None:
                left[wish.device_type] -= wish.size
                wishes[job.id] = wish
                used[tenant] += wish.size / total / weights.get(tenant, 1.0)
            if not queues[tenant]:
                del queues[tenant]
        return granted(state, wishes, "DRF")


def due(job: JobState) -> tuple[float, ...]:
    return (math.inf if job.finish_by_s is None else job.finish_by_s, job.submitted_s)


def stay(state: ClusterState, left: dict[str, int]) -> dict[str, TypeRequest]:
    """Whoever runs goes on; their devices are taken away from what is left."""
    types = {node.name: node.device_type for node in state.nodes if node.schedulable}
    wishes = {job.id: TypeRequest(types[job.seats[0]], len(job.seats)) for job in running(state.jobs)}
    for wish in wishes.values():
        left[wish.device_type] -= wish.size
    return wishes


def running(jobs: Iterable[JobState]) -> list[JobState]:
    return [job for job in jobs if job.seats]


def fastest_free(job: JobState, left: dict[str, int]) -> TypeRequest | None:
    """The gang it asks for, on the type where it is fastest among those with room for it."""
    size = job.min_workers
    free = [name for name, count in left.items() if count >= size]
    speed, name = max(((speed_on(job, name), name) for name in free), default=(0.0, ""))
    return TypeRequest(name, size) if speed > 0 else None
