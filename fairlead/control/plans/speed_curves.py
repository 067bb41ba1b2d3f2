"""Provides the speed curves of jobs with a known model: the planner's, scaled to what was measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from math import floor, log10

from fairlead.cluster import Node
from fairlead.control.plans.gang_hardware import Machine
from fairlead.control.plans.plan_questions import CurveQuestion, CurveTable, Model, curve_table
from fairlead.control.plans.planner_process import InlinePlanner, Planner, PlannerFailed
from fairlead.control.reconcile.internal_errors import report_error
from fairlead.control.records import Job, KnownModel
from fairlead.planning.profiles import ModelProfile
from fairlead.scheduling.curves import SpeedCurve

DIGITS = 2
"""Significant digits of measured speeds: they change all the time, and every new curve costs thought."""


@dataclass(frozen=True, slots=True)
class CalibratedCurve:
    """A curve in units of one worker's work, as for jobs without a curve, and that unit."""

    curve: SpeedCurve
    unit: float  # samples per second of one worker


BUDGET_S = 0.2
"""How long a round waits for new curves; the others are ready before the next one."""


class SpeedCurves:
    """The curves of the jobs on their way; jobs with the same knowledge share one object, which the market relies
    on."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, planner: Planner | None = None) -> None:
        self._clock = clock
        self._planner = planner or InlinePlanner()
        self._asked: dict[object, Future[CurveTable | None]] = {}  # not answered yet
        self._planned: dict[object, CalibratedCurve | None] = {}  # by everything that a curve depends on
        self._of: dict[str, object] = {}  # by job
        self._calibrated: dict[str, tuple[object, CalibratedCurve]] = {}
        self._hardware: object = None
        self._hardware_changes = 0  # how many there have been

    def __len__(self) -> int:
        return len(self._of)

    def refresh(self, pairs: Sequence[tuple[Job, KnownModel]], nodes: Sequence[Node], machine: Machine) -> None:
        """Get the planner's curves for these jobs, and forget all others."""
        until_s = self._clock() + BUDGET_S
        ground = self._hardware_version((tuple(sorted(_node_fingerprint(node) for node in nodes)), machine.fingerprint))
        before, self._of = self._of, {}
        stamps: dict[str, object] = {}
        for job, known in pairs:
            wants = (job.min_workers, job.max_workers, tuple(sorted(job.demand.items())), _requested_plan(job))
            stamp: object = (
                ground, wants, known.tenant, known.key, tuple(sorted(known.seen.items())), tuple(sorted(known.banned)),
            )  # fmt: skip
            stamps[job.id] = stamp
            if stamp not in self._planned and stamp not in self._asked and self._clock() <= until_s:
                model = Model(dict(known.profile or {}), dict(known.seen), dict(known.banned))
                question = CurveQuestion(model, job, tuple(nodes), machine)
                self._asked[stamp] = self._planner.ask(job.tenant, question, CurveTable | None)
        wait([self._asked[stamp] for stamp in stamps.values() if stamp in self._asked],
             timeout=max(0.0, until_s - self._clock()))  # fmt: skip
        for job, _ in pairs:
            self._take_answer(stamps[job.id], job)
            known_by_now = stamps[job.id] in self._planned
            self._of[job.id] = stamps[job.id] if known_by_now else before.get(job.id)  # an older one will do
        used = {*self._of.values(), *stamps.values()}
        self._planned = {stamp: curve for stamp, curve in self._planned.items() if stamp in used}
        for stamp in self._asked.keys() - used:
            self._asked.pop(stamp).cancel()
        self._calibrated = {job: pulled for job, pulled in self._calibrated.items() if job in self._of}

    def _hardware_version(self, ground: object) -> int:
        """A number for the present nodes and machine, as thousands of keys contain it in every round."""
        if ground != self._hardware:
            self._hardware, self._hardware_changes = ground, self._hardware_changes + 1
        return self._hardware_changes

    def _take_answer(self, stamp: object, job: Job) -> None:
        """Take the answer, if it is there. Without one, the job has no curve until more is known."""
        asked = self._asked.get(stamp)
        if asked is None or not asked.done():
            return
        del self._asked[stamp]
        try:
            curve = _curve(asked.result())
            self._planned[stamp] = None if curve is None else in_worker_units(curve)
        except (PlannerFailed, ArithmeticError, LookupError, ValueError) as error:
            report_error("working out a speed curve", error, job=job.id)
            self._planned[stamp] = None

    def curve_of(self, job: Job) -> CalibratedCurve | None:
        """The job's curve: as measured where it was, elsewhere scaled like the nearest measured size."""
        stamp = self._of.get(job.id)
        pace = self._planned.get(stamp)
        if pace is None:
            return None
        sizes = pace.curve.sizes
        speeds = {size: _rounded(speed) for size, speed in job.speeds.items() if speed > 0 and size in sizes}
        if not speeds:
            return pace
        key = (stamp, tuple(sorted(speeds.items())))
        if self._calibrated.get(job.id, (None, pace))[0] != key:
            self._calibrated[job.id] = key, in_worker_units(scaled_to_measured(_scaled(pace.curve, pace.unit), speeds))
        return self._calibrated[job.id][1]


def _node_fingerprint(node: Node) -> tuple[object, ...]:
    """Everything about a node that a curve depends on."""
    given = node.capacity
    return (
        node.name, node.device_type, node.devices, given.get("cpu", 0.0), given.get("memory", 0.0), node.speed,
        node.path, node.schedulable,
    )  # fmt: skip


def _requested_plan(job: Job) -> str:
    return str(job.facts.get("plan", "auto"))


def planned_curve(
    model: ModelProfile, seen: Mapping[str, float], job: Job, nodes: Iterable[Node], machine: Machine,
    banned: Collection[str] = (),
) -> SpeedCurve | None:  # fmt: skip
    """The planner's curve over all sizes that the job may have; None where it fits nowhere or devices are unknown."""
    return _curve(curve_table(model, seen, job, nodes, machine, banned))


def _curve(table: CurveTable | None) -> SpeedCurve | None:
    curve = None if table is None else SpeedCurve(table.sizes, table.speeds)
    return curve if curve is not None and curve.fastest() > 0 else None


def in_worker_units(curve: SpeedCurve) -> CalibratedCurve:
    """A curve of samples per second, converted to units of one worker."""
    least = curve.sizes[0]
    unit = curve.fastest(least) / least or curve.fastest() / curve.sizes[-1]
    return CalibratedCurve(_scaled(curve, 1 / unit), unit)


def _scaled(curve: SpeedCurve, by: float) -> SpeedCurve:
    table = {kind: tuple(tuple(v * by for v in level) for level in levels) for kind, levels in curve.speeds.items()}
    return SpeedCurve(curve.sizes, table)


def scaled_to_measured(curve: SpeedCurve, measured: Mapping[int, float]) -> SpeedCurve:
    """The curve through the measured speeds, scaled in proportion elsewhere."""
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
