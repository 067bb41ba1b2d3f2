"""Answers to "why?", "when?" and "could it ever?": the same decision as the live one, asked about one job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, takewhile
from typing import Any

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.board import Shape
from fairlead.scheduling.decide import decide
from fairlead.scheduling.live_plan import LivePlan, live_plan
from fairlead.scheduling.live_round import written
from fairlead.scheduling.running_reasons import why_it_stays
from fairlead.scheduling.state import ClusterState, Decision, Hold, JobState, Preempt, Reason, Resize, Start
from fairlead.scheduling.words import devices, moment, on, workers
from fairlead.units import shown_size


@dataclass(frozen=True, slots=True)
class Explanation:
    """What ``fairlead why`` shows: one headline, what would help, and a forecast of the start."""

    job: str
    headline: str
    decision: Decision | None  # None: it runs, and nothing changes for it now
    would_help: tuple[str, ...] = ()
    expected_start_s: float | None = None
    reason: Reason | None = None  # of the decision, or of staying as it is


@dataclass(frozen=True, slots=True)
class Impossible:
    """Why the cluster can never give what a job asks for, in terms of what its author wrote."""

    field: str
    value: Any
    text: str
    fix: str


def explain(state: ClusterState, job_id: str) -> Explanation | None:
    """Why this job waits, runs or changes in this state; None if there is no such job."""
    job = next((job for job in state.jobs if job.id == job_id), None)
    if job is None:
        return None
    plan = live_plan(state)
    decision = next((d for d in written(plan).decisions if d.job == job_id), None)
    match decision:
        case None if job.settling:
            return Explanation(job_id, "is between two generations; nothing is decided until it has settled", None)
        case None:
            return _runs_on(plan, job)
        case Hold(reason=why):
            hints = _would_help(decision, job, state, plan)
            return Explanation(job_id, f"waits: {why.text}", decision, hints, decision.expected_start_s, why)
        case _:
            starts_s = _starts_now(decision, state)
            return Explanation(job_id, decision.reason.text, decision, (), starts_s, decision.reason)


def _runs_on(plan: LivePlan, job: JobState) -> Explanation:
    runs, why = f"runs with {workers(len(job.seats))} on {on(job.seats)}", why_it_stays(plan, job)
    if why is None:
        return Explanation(job.id, runs, None)
    hints = (f"raise the quota of tenant {job.tenant} (now {why.facts['quota']})",) if why.code == "quota" else ()
    if why.code == "budget":
        hints = (f"raise the budget of tenant {why.facts['of']}",)
    return Explanation(job.id, f"{runs} and does not grow: {why.text}", None, hints, None, why)


def _starts_now(decision: Start | Resize | Preempt, state: ClusterState) -> float | None:
    return state.now_s if isinstance(decision, Start) else None


def _would_help(hold: Hold, job: JobState, state: ClusterState, plan: LivePlan) -> tuple[str, ...]:
    facts = hold.reason.facts
    fewer = () if job.min_workers == 1 else (f"lower workers.min (now {job.min_workers})",)
    any_type = () if job.device_type is None else (f"drop resources.device (now {job.device_type})",)
    if hold.reason.code == "no-such-room":
        away = sorted(node.name for node in state.nodes if not node.schedulable)
        back = (f"bring back {on(tuple(away))}",) if away else ()
        return (*back, *fewer, *any_type, *_asking_less(job, plan.board.most), "add nodes")
    if hold.reason.code == "quota":
        limit = "the limit that stands in its way" if facts["quota"] is None else f"its quota (now {facts['quota']})"
        return (f"wait for a job of tenant {job.tenant} to end", f"raise {limit}", *fewer)
    if hold.reason.code == "budget":
        return (f"raise the budget of tenant {facts['of']}", f"wait until {moment(facts['again_s'])}")
    if hold.reason.code == "making-room":
        return ()
    sooner = ("a higher priority (only within its tenant)",) if _siblings_first(plan, job) else ()
    blockers = "the jobs ahead of it" if facts["ahead"] else "running jobs"
    board, lacking = plan.board, max(1, facts["needs"] - facts["free"])
    less = _asking_less(job, lambda shape: board.roomiest(shape)[0])
    more = f"room for {workers(lacking)} more" if less else f"{devices(lacking, job.device_type)} more"
    return (f"{more}, once {blockers} end", *less, *fewer, *any_type, *sooner)


def _asking_less(job: JobState, places: Callable[[Shape], int]) -> tuple[str, ...]:
    """What it asks for besides devices without which there would be places enough, each by itself."""
    shape = Shape.of(job)
    if places(shape) >= job.min_workers:
        return ()
    hints = []
    for name, amount in sorted(job.demand.items()):
        without = shape._replace(need=tuple(one for one in shape.need if one[0] != name))
        if name != DEVICE and amount > 0 and places(without) >= job.min_workers:
            hints.append(f"lower resources.{name} (now {_shown(name, amount)} per worker)")
    if job.only and places(shape._replace(only=frozenset())) >= job.min_workers:
        hints.append(f"drop placement.only (now {', '.join(sorted(job.only))})")
    return tuple(hints)


def _siblings_first(plan: LivePlan, job: JobState) -> bool:
    """Whether its tenant has another job that runs or comes before it: only over those does priority help."""
    before = takewhile(lambda other: other.id != job.id, plan.queue)
    running = (other for other in plan.situation.jobs.values() if plan.board.seats.get(other.id))
    return any(other.tenant == job.tenant for other in chain(before, running))


def dry_run(state: ClusterState, job: JobState) -> Decision:
    """What would be decided about this job if it were submitted now."""
    others = [other for other in state.jobs if other.id != job.id]
    with_it = replace(state, jobs=[*others, job])
    return next(decision for decision in decide(with_it).decisions if decision.job == job.id)


def impossible(job: JobState, nodes: Sequence[Node], quota: int | None = None) -> Impossible | None:
    """Why not even an empty cluster could run this job; None if it could. Lost nodes count: they may return."""
    typed = [node for node in nodes if job.device_type in (None, node.device_type)]
    if job.device_type is not None and not typed:
        return _no_such_type(job.device_type, nodes)
    for name, amount in sorted(job.demand.items()):
        largest = max((node.capacity.get(name, 0.0) for node in typed), default=0.0)
        if amount > largest + 1e-9:
            return _worker_too_big(name, amount, largest)
    if quota is not None and job.min_workers > quota:
        text = f"{job.min_workers} is more than the quota of {devices(quota)} that tenant {job.tenant} has"
        return Impossible("workers.min", job.min_workers, text, "lower workers.min, or ask for a larger quota")
    reachable = [node for node in typed if not job.only or not job.only.isdisjoint(node.places)]
    if not reachable:
        text = f"no node is in {' or '.join(sorted(job.only))}"
        return Impossible("placement.only", sorted(job.only), text, "name places that fairlead nodes shows, or drop it")
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


def _no_such_type(device_type: str, nodes: Sequence[Node]) -> Impossible:
    there = sorted({node.device_type for node in nodes if node.capacity.get(DEVICE, 0)})
    fix = f"use one of: {', '.join(there)}, or drop resources.device" if there else "add nodes (fairlead nodes)"
    return Impossible("resources.device", device_type, f"no node has devices of type {device_type}", fix)


def _worker_too_big(name: str, amount: float, largest: float) -> Impossible:
    if largest <= 0:
        return Impossible(f"resources.{name}", amount, f"no node has any {name}",
                          f"drop resources.{name}, or add a node that has it")  # fmt: skip
    shown, most = _shown(name, amount), _shown(name, largest)
    text = f"{shown} per worker is more than the largest node has ({most})"
    return Impossible(f"resources.{name}", amount, text, f"ask for at most {most}, or add a larger node")


def _gang_too_big(job: JobState, slots: int, nodes: Sequence[Node]) -> Impossible:
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
    return Impossible("workers.min", job.min_workers, text, fix)


def _shown(name: str, amount: float) -> str:
    return shown_size(int(amount)).replace(" ", "") if name == "memory" else f"{amount:.3g} {name}"
