"""Speed curves of jobs whose model is known: the planner's first, then pulled to what was measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, log10

from fairlead.cluster import Node
from fairlead.control.hardware import Kinds, Machine, kinds
from fairlead.control.knowing import usable
from fairlead.control.records import Job, KnownModel
from fairlead.planning.curves import speed_curve
from fairlead.planning.learning import corrected, understood
from fairlead.planning.profiles import Hardware, ModelProfile, Seat
from fairlead.scheduling.curves import SpeedCurve

SMALL = 8
"""Sizes up to this are all planned for; beyond it powers of two, with straight lines between them."""

LARGEST = 64
DIGITS = 2
"""Of measured speeds that count: they change all the time, and every new curve is thought about anew."""


@dataclass(frozen=True, slots=True)
class Pace:
    """A curve in seconds of work of one worker per second, as jobs without one are reckoned, too; and what that is."""

    curve: SpeedCurve
    unit: float  # samples per second of one worker


BUDGET_S = 0.2
"""Of thinking about new curves before a round; those that are not ready come before the next one."""


class Curves:
    """The curves of the jobs on their way; one object for all of which the same is known, as the market wants it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._planned: dict[object, Pace | None] = {}  # by all that it depends on
        self._of: dict[str, object] = {}  # by job
        self._pulled: dict[str, tuple[object, Pace]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def learn(self, pairs: Sequence[tuple[Job, KnownModel]], nodes: Sequence[Node], machine: Machine) -> None:
        """Have the planner's curves for these jobs ready, and forget all others."""
        until_s = self._clock() + BUDGET_S
        ground = tuple(sorted(_looks(node) for node in nodes)), machine.looks
        before, self._of = self._of, {}
        for job, known in pairs:
            wants = (job.min_workers, job.max_workers, tuple(sorted(job.demand.items())), _wanted(job))
            stamp = (
                ground, wants, known.tenant, known.key, tuple(sorted(known.seen.items())), tuple(sorted(known.banned)),
            )  # fmt: skip
            if stamp not in self._planned:
                if self._clock() > until_s:
                    self._of[job.id] = before.get(job.id)  # an older one will do until there is time
                    continue
                curve = planned(usable(known), known.seen, job, nodes, machine, known.banned)
                self._planned[stamp] = None if curve is None else paced(curve)
            self._of[job.id] = stamp
        used = set(self._of.values())
        self._planned = {stamp: curve for stamp, curve in self._planned.items() if stamp in used}
        self._pulled = {job: pulled for job, pulled in self._pulled.items() if job in self._of}

    def of(self, job: Job) -> Pace | None:
        """As measured at the sizes that were, elsewhere as planned and off by as much as the nearest measured size."""
        stamp = self._of.get(job.id)
        pace = self._planned.get(stamp)
        if pace is None:
            return None
        sizes = pace.curve.sizes
        speeds = {size: _rounded(speed) for size, speed in job.speeds.items() if speed > 0 and size in sizes}
        if not speeds:
            return pace
        key = (stamp, tuple(sorted(speeds.items())))
        if self._pulled.get(job.id, (None, pace))[0] != key:
            self._pulled[job.id] = key, paced(pulled(_times(pace.curve, pace.unit), speeds))
        return self._pulled[job.id][1]


def _looks(node: Node) -> tuple[object, ...]:
    """All of a node that a curve depends on."""
    given = node.capacity
    return (
        node.name, node.device_type, node.devices, given.get("cpu", 0.0), given.get("memory", 0.0), node.speed,
        node.path, node.schedulable,
    )  # fmt: skip


def _wanted(job: Job) -> str:
    return str(job.facts.get("plan", "auto"))


def planned(
    model: ModelProfile, seen: Mapping[str, float], job: Job, nodes: Iterable[Node], machine: Machine,
    banned: Collection[str] = (),
) -> SpeedCurve | None:  # fmt: skip
    """The planner's curve over all sizes that the job may have; None where it fits nowhere or devices are unknown.

    It is that of plans that the job would be given: of those that it asks for, without those that failed with it.
    """
    ground = kinds(nodes, job.demand, machine)
    if ground is None or not understood(seen):
        return None
    most = min(job.max_workers, ground.count, LARGEST)
    if most < job.min_workers:
        return None
    sizes = tuple(range(job.min_workers, most + 1))
    some = sorted({size for size in sizes if size <= SMALL or size & (size - 1) == 0} | {sizes[0], sizes[-1]})
    one = corrected(model, _any_gang(ground), seen)
    points = speed_curve(
        one, ground.devices, ground.links, some, ground.per_node, ground.speeds, wanted=_wanted(job), banned=banned
    )
    table: dict[str, dict[int, dict[int, float]]] = {}
    for point in points:
        ((kind, size),) = point.devices
        table.setdefault(kind, {}).setdefault(point.level, {})[size] = point.samples_per_s
    speeds = {
        kind: tuple(tuple(_between(levels[level], size) for size in sizes) for level in sorted(levels))
        for kind, levels in table.items()
    }
    curve = SpeedCurve(sizes, speeds)
    return curve if curve.fastest() > 0 else None


def _any_gang(ground: Kinds) -> Hardware:
    seats = tuple(Seat(name, name) for name in sorted(ground.devices))
    return Hardware(devices=dict(ground.devices), seats=seats, links=ground.links)


def paced(curve: SpeedCurve) -> Pace:
    """A curve of samples per second in the units of the scheduler."""
    least = curve.sizes[0]
    unit = curve.fastest(least) / least or curve.fastest() / curve.sizes[-1]
    return Pace(_times(curve, 1 / unit), unit)


def _times(curve: SpeedCurve, by: float) -> SpeedCurve:
    table = {kind: tuple(tuple(v * by for v in level) for level in levels) for kind, levels in curve.speeds.items()}
    return SpeedCurve(curve.sizes, table)


def _between(known: Mapping[int, float], size: int) -> float:
    if size in known:
        return known[size]
    below, above = max(s for s in known if s < size), min(s for s in known if s > size)
    part = (size - below) / (above - below)
    return known[below] + part * (known[above] - known[below])


def pulled(curve: SpeedCurve, measured: Mapping[int, float]) -> SpeedCurve:
    """The curve through what was measured, in proportion between and beyond."""
    off = {size: speed / curve.fastest(size) for size, speed in measured.items() if curve.fastest(size) > 0}
    if not off:
        return curve
    ratio = [off[min(off, key=lambda known: (abs(known - size), known))] for size in curve.sizes]
    speeds = {
        kind: tuple(tuple(speed * by for speed, by in zip(level, ratio, strict=True)) for level in levels)
        for kind, levels in curve.speeds.items()
    }
    return SpeedCurve(curve.sizes, speeds)


def _rounded(speed: float) -> float:
    return round(speed, DIGITS - 1 - floor(log10(speed)))
