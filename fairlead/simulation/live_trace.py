"""Converts the live cluster's state to a trace that continues from it: all jobs with their work left."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from fairlead.cluster import DEVICE, Node, scaled, total
from fairlead.errors import NotFound
from fairlead.scheduling.curves import FAR, NEAR, SpeedCurve
from fairlead.scheduling.job_speed import FIRST_START_S, counts_samples, speed_without_curve, with_curve
from fairlead.scheduling.round_memory import memory_from_plain
from fairlead.scheduling.state import ClusterState, JobState, TenantState
from fairlead.simulation.clusters import cluster
from fairlead.simulation.job_course import Steady
from fairlead.simulation.trace import Clock, Course, Trace, TraceJob

ROUND_S = 60.0
"""Rounds follow every event, and at least this interval."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a what-if question."""

    add: str = ""  # clusters in words
    remove: Sequence[str] = ()  # names of nodes
    weights: Mapping[str, float] | None = None  # by tenant

    @property
    def any(self) -> bool:
        return bool(self.add or self.remove or self.weights)


@dataclass(frozen=True, slots=True)
class LiveJob:
    """The rest of a job that has begun, or the whole of one that waits."""

    left: float
    done: float
    speeds: SpeedCurve

    @property
    def work(self) -> float:
        return self.done + self.left

    def begin(self) -> Course:
        course = Steady(self)
        course.done = self.done
        return course

    def rate(self, done: float, device_type: str, spread: Sequence[int]) -> float:
        return self.speeds.speed(device_type, sum(spread), NEAR if len(spread) == 1 else FAR)

    def changes_at(self, done: float) -> float:
        return math.inf

    def curve(self, done: float) -> SpeedCurve:
        return self.speeds

    def declared_work_left(self, done: float) -> float:
        return max(self.work - done, 0.0)


def read_state(told: Mapping[str, Any]) -> ClusterState:
    """The state as the platform reports it."""
    state = msgspec.convert(told, ClusterState, strict=False)
    return replace(state, memory=memory_from_plain(state.memory))


def changed(state: ClusterState, changes: Changes) -> ClusterState:
    """The state with other nodes and weights."""
    names = {node.name for node in state.nodes}
    for name in changes.remove:
        if name not in names:
            raise NotFound(f"there is no node {name!r}", field="--remove", fix=f"one of {', '.join(sorted(names))}")
    nodes = [node for node in state.nodes if node.name not in changes.remove]
    fresh = cluster(changes.add, field="--add") if changes.add else ()
    nodes += [_equipped(node, names, state.nodes) for node in fresh]
    weights = changes.weights or {}
    known = {tenant.name for tenant in state.tenants}
    for name in weights:
        if name not in known:
            raise NotFound(f"there is no tenant {name!r}", field="--weights", fix=f"one of {', '.join(sorted(known))}")
    tenants = [replace(tenant, weight=weights.get(tenant.name, tenant.weight)) for tenant in state.tenants]
    return replace(state, nodes=tuple(nodes), tenants=tuple(tenants))


def _equipped(node: Node, taken: set[str], others: Sequence[Node]) -> Node:
    """A new node with a free name, and as many resources per device as the present nodes."""
    whole = total(other.capacity for other in others)
    per_device = scaled(whole, node.devices / max(whole.get(DEVICE, 0.0), 1.0))
    name = f"added.{node.name}" if node.name in taken else node.name
    return replace(node, name=name, capacity={**per_device, **node.capacity})


def trace_of(state: ClusterState, left: Mapping[str, float]) -> Trace:
    """A trace of this state's jobs from now on; ``left`` is the expected work left by job."""
    types = tuple(dict.fromkeys(node.device_type for node in state.nodes))
    devices = sum(node.devices for node in state.nodes)
    jobs = tuple(_job(job, left[job.id], types, devices, state.now_s) for job in state.jobs)
    return Trace(
        "the cluster as it stands",
        "live",
        jobs,
        round_s=ROUND_S,
        restart_cost_s=1.0,
        nodes=tuple(state.nodes),
        clock=Clock.EVENTS,
        tenants=tuple(_owners(state)),
        begins_s=state.now_s,
        seated={job.id: job.seats for job in state.jobs if job.seats},
        memory=state.memory,
        sleep_after_s=state.sleep_after_s,
    )


def _owners(state: ClusterState) -> Sequence[TenantState]:
    """Tenants with jobs, and those above them; the others do not matter."""
    above = {tenant.name: tenant.parent for tenant in state.tenants}
    wanted: set[str] = set()
    for job in state.jobs:
        name: str | None = job.tenant
        while name is not None and name not in wanted:
            wanted.add(name)
            name = above.get(name)
    return [tenant for tenant in state.tenants if tenant.name in wanted]


def _done(job: JobState, now_s: float) -> float:
    """Work done in units of its curve; of a command, its run time, as it would start over."""
    if job.curve is not None or counts_samples(job):
        return job.work_done
    at_work = job.starts_over and job.seats and not job.frozen
    return max(0.0, now_s - job.since_s) * speed_without_curve(job, len(job.seats)) if at_work else 0.0


def _job(job: JobState, left: float, types: Sequence[str], devices: int, now_s: float) -> TraceJob:
    size = len(job.seats)
    fixed = size if size and not job.elastic else 0
    least = fixed or job.min_workers
    most = fixed or max(least, size, min(job.max_workers, devices))
    curve = _curve(job, least, most, [job.device_type] if job.device_type else types)
    done = _done(job, now_s)
    fastest = curve.fastest()
    return TraceJob(
        id=job.id,
        arrival_s=job.submitted_s,
        model=LiveJob(max(left, 1e-6 * fastest), done, curve),
        min_workers=least,
        max_workers=most,
        tenant=job.tenant,
        weight=job.weight,
        priority=job.priority,
        deadline_s=job.finish_by_s,
        exclusive_s=(done + left) / fastest if fastest > 0 else 0.0,
        restart_cost_s=job.restart_cost_s,
        first_start_s=min(job.restart_cost_s, FIRST_START_S) if not job.ran_s and done == 0 else None,
        facts=job.facts,
        demand=job.demand,
        only=job.only,
        near=job.near,
        asked=size or least,
        starts_over=job.starts_over,
        start_by_s=job.start_by_s,
        person=job.person,
    )


def _curve(job: JobState, least: int, most: int, types: Sequence[str]) -> SpeedCurve:
    """The known curve; types without measurements count as fast as the best known type."""
    curve = with_curve(replace(job, min_workers=least, max_workers=most), types, most).curve
    assert curve is not None
    known = curve.speeds
    best = max(known, key=lambda name: max(map(max, known[name]), default=0.0))
    return SpeedCurve(curve.sizes, {name: known.get(name, known[best]) for name in types})
