"""The questions to the planner about a tenant's job, and their answers: plain values, computed in a process of their
own.

Imports neither the store nor numpy, so that the process starts quickly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead import wire
from fairlead.cluster import Node
from fairlead.control.plans.gang_hardware import HardwareByType, Machine, hardware_by_type
from fairlead.control.plans.replanning import LearnedModel, Review, describe_choice, review
from fairlead.control.records import Generation, Job
from fairlead.planning.curves import speed_curve
from fairlead.planning.model_coarsening import coarsened
from fairlead.planning.model_corrections import corrected, is_predictable
from fairlead.planning.model_sketch import sketch_profile
from fairlead.planning.plan_choice import Choice, choose_plan
from fairlead.planning.profiles import Hardware, ModelProfile, Seat, model_from

PIECES = 20  # into which a model is cut for planning: the planner's time grows with their square

SMALL = 8
"""All sizes up to this are planned for; beyond it powers of two, with linear interpolation between them."""

LARGEST = 64


class Model(msgspec.Struct, frozen=True):
    """What is known of a model, as it is stored."""

    profile: dict[str, Any]
    seen: dict[str, float] = {}
    banned: dict[str, str] = {}

    def pieces(self) -> ModelProfile:
        """Its profile, coarsened so that planning is fast whoever wrote the model."""
        return coarsened(model_from(self.profile), PIECES)


class ChooseQuestion(msgspec.Struct, frozen=True, tag="choose"):
    """Which plan suits these workers?"""

    model: Model
    hardware: Hardware
    wanted: str
    margin: float

    def answer(self) -> ChosenPlan:
        model = corrected(self.model.pieces(), self.hardware, self.model.seen)
        found = choose_plan(model, self.hardware, wanted=self.wanted, banned=self.model.banned, margin=self.margin)
        return stored_choice(found, self.wanted)


class GlanceQuestion(msgspec.Struct, frozen=True, tag="glance"):
    """One process, some copies or one on each device? Decided by the first passes of a model without a profile."""

    ready: wire.Ready
    hardware: Hardware
    margin: float

    def answer(self) -> ChosenPlan:
        ready = self.ready
        if ready.glance is None:
            raise ValueError("there are no measurements of its first passes")
        model = sketch_profile(ready.parameters, ready.batch_size, ready.samples, ready.glance)
        found = choose_plan(model, self.hardware, margin=self.margin)
        reason = f"{found.reason} (judged by its first passes: no run of this model was long enough to look closer)"
        return ChosenPlan(describe_choice(found, reason, "planner"), found.plan.members)


class ReviewQuestion(msgspec.Struct, frozen=True, tag="review"):
    """What does a running gang teach, and would another plan pay off?"""

    model: Model
    job: Job
    generation: Generation
    hardware: Hardware
    now_s: float
    sure: bool
    restart_s: float
    compute_s: float | None = None

    def answer(self) -> Review:
        known = LearnedModel(self.model.pieces(), self.model.seen, self.model.banned)
        return review(self.job, self.generation, known, self.hardware, self.now_s, sure=self.sure,
                      restart_s=self.restart_s, compute_s=self.compute_s)  # fmt: skip


class CurveQuestion(msgspec.Struct, frozen=True, tag="curve"):
    """How fast is the job on any gang?"""

    model: Model
    job: Job
    nodes: tuple[Node, ...]
    machine: Machine

    def answer(self) -> CurveTable | None:
        return curve_table(self.model.pieces(), self.model.seen, self.job, self.nodes, self.machine, self.model.banned)


Question = ChooseQuestion | GlanceQuestion | ReviewQuestion | CurveQuestion


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """A plan as it is stored and shown, and the workers that take part; empty: all, in order."""

    plan: dict[str, Any] | None  # None: no plan to run
    members: tuple[int, ...] = ()
    refused: str = ""  # why the requested plan can never run here


def stored_choice(found: Choice, wanted: str) -> ChosenPlan:
    """A choice as it is stored; ``wanted``: the requested family."""
    said = describe_choice(found, found.reason, "planner" if wanted == "auto" else "asked")
    return ChosenPlan(said, found.plan.members, found.refused)


@dataclass(frozen=True, slots=True)
class CurveTable:
    """Samples per second by type of device, topology level and size."""

    sizes: tuple[int, ...]
    speeds: dict[str, tuple[tuple[float, ...], ...]]


def curve_table(
    model: ModelProfile, seen: Mapping[str, float], job: Job, nodes: Iterable[Node], machine: Machine,
    banned: Collection[str] = (),
) -> CurveTable | None:  # fmt: skip
    """The planner's speeds for all sizes that the job may have; None where it fits nowhere or devices are unknown.

    Only plans that the job may run count: of the requested family, without banned ones.
    """
    ground = hardware_by_type(nodes, job.demand, machine)
    if ground is None or not is_predictable(seen):
        return None
    most = min(job.max_workers, ground.count, LARGEST)
    if most < job.min_workers:
        return None
    sizes = tuple(range(job.min_workers, most + 1))
    some = sorted({size for size in sizes if size <= SMALL or size & (size - 1) == 0} | {sizes[0], sizes[-1]})
    one = corrected(model, _any_gang(ground), seen)
    wanted = str(job.facts.get("plan", "auto"))
    points = speed_curve(
        one, ground.devices, ground.links, some, ground.per_node, ground.speeds, wanted=wanted, banned=banned
    )
    table: dict[str, dict[int, dict[int, float]]] = {}
    for point in points:
        ((kind, size),) = point.devices
        table.setdefault(kind, {}).setdefault(point.level, {})[size] = point.samples_per_s
    speeds = {
        kind: tuple(tuple(_between(levels[level], size) for size in sizes) for level in sorted(levels))
        for kind, levels in table.items()
    }
    return CurveTable(sizes, speeds)


def _any_gang(ground: HardwareByType) -> Hardware:
    seats = tuple(Seat(name, name) for name in sorted(ground.devices))
    return Hardware(devices=dict(ground.devices), seats=seats, links=ground.links)


def _between(known: Mapping[int, float], size: int) -> float:
    if size in known:
        return known[size]
    below, above = max(s for s in known if s < size), min(s for s in known if s > size)
    part = (size - below) / (above - below)
    return known[below] + part * (known[above] - known[below])
