"""Answers questions about one job: why it waits, what would be decided about it, and whether it could ever run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.decide import decide
from fairlead.scheduling.live_round import live_round
from fairlead.scheduling.phrases import amount_shown, devices, workers
from fairlead.scheduling.reasons import Explanation
from fairlead.scheduling.seating_plan import Shape
from fairlead.scheduling.state import ClusterState, Decision, JobState


@dataclass(frozen=True, slots=True)
class CanNeverRun:
    """Why the cluster can never run a job, in terms of the fields that its author wrote."""

    field: str
    value: Any
    text: str
    fix: str


def explain(state: ClusterState, job_id: str) -> Explanation | None:
    """Why this job waits, runs or changes in this state; None if there is no such job."""
    return live_round(state).reasons.get(job_id)


def dry_run(state: ClusterState, job: JobState) -> Decision:
    """What would be decided about this job if it were submitted now."""
    others = [other for other in state.jobs if other.id != job.id]
    with_it = replace(state, jobs=[*others, job])
    return next(decision for decision in decide(with_it).decisions if decision.job == job.id)


def can_never_run(job: JobState, nodes: Sequence[Node], quota: int | None = None) -> CanNeverRun | None:
    """Why even an empty cluster could not run this job; None if it could. Lost nodes count: they may return."""
    typed = [node for node in nodes if job.device_type in (None, node.device_type)]
    if job.device_type is not None and not typed:
        return _no_such_type(job.device_type, nodes)
    for name, amount in sorted(job.demand.items()):
        largest = max((node.capacity.get(name, 0.0) for node in typed), default=0.0)
        if amount > largest + 1e-9:
            return _worker_too_big(name, amount, largest)
    if quota is not None and job.min_workers > quota:
        text = f"{job.min_workers} is more than the quota of {devices(quota)} that tenant {job.tenant} has"
        return CanNeverRun("workers.min", job.min_workers, text, "lower workers.min, or ask for a larger quota")
    reachable = [node for node in typed if not job.only or not job.only.isdisjoint(node.places)]
    if not reachable:
        text = f"no node is in {' or '.join(sorted(job.only))}"
        return CanNeverRun(
            "placement.only", sorted(job.only), text, "name places that fairlead nodes shows, or drop it"
        )
    slots, kind = _largest_gang(Shape.of(job), reachable)
    if job.min_workers <= slots:
        return None
    return _gang_too_big(job, slots, [node for node in reachable if node.device_type == kind])


def _largest_gang(shape: Shape, nodes: Sequence[Node]) -> tuple[int, str]:
    """How many workers of this shape fit on empty nodes of one type, and which type that is."""
    by_type: dict[str, int] = {}
    for node in nodes:
        by_type[node.device_type] = by_type.get(node.device_type, 0) + shape.slots(node.capacity)
    kind = max(sorted(by_type), key=lambda kind: by_type[kind])
    return by_type[kind], kind


def _no_such_type(device_type: str, nodes: Sequence[Node]) -> CanNeverRun:
    there = sorted({node.device_type for node in nodes if node.capacity.get(DEVICE, 0)})
    fix = f"use one of: {', '.join(there)}, or drop resources.device" if there else "add nodes (fairlead nodes)"
    return CanNeverRun("resources.device", device_type, f"no node has devices of type {device_type}", fix)


def _worker_too_big(name: str, amount: float, largest: float) -> CanNeverRun:
    if largest <= 0:
        return CanNeverRun(f"resources.{name}", amount, f"no node has any {name}",
                          f"drop resources.{name}, or add a node that has it")  # fmt: skip
    shown, most = amount_shown(name, amount), amount_shown(name, largest)
    text = f"{shown} per worker is more than the largest node has ({most})"
    return CanNeverRun(f"resources.{name}", amount, text, f"ask for at most {most}, or add a larger node")


def _gang_too_big(job: JobState, slots: int, nodes: Sequence[Node]) -> CanNeverRun:
    total = sum(node.devices for node in nodes)
    have = devices(total, nodes[0].device_type)
    if slots == total:
        text = f"{job.min_workers} is more than the {have} that this cluster can ever give; a gang is of one type"
    else:
        fitting = f"{workers(slots)} that would fit on its {have} with such resources each"
        text = f"{job.min_workers} is more than the {fitting}"
    drop = ", drop resources.device" if job.device_type else ""
    less = ", ask for less per worker" if slots < total else ""
    fix = f"lower workers.min{less}{drop}, or add nodes (fairlead nodes)"
    return CanNeverRun("workers.min", job.min_workers, text, fix)
