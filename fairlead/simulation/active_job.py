"""Tracks a job between arrival and completion: its seats, its progress, and its state for the policy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from fairlead.cluster import Node, level_between
from fairlead.scheduling.curves import FAR, NEAR, SpeedCurve
from fairlead.scheduling.market.seat_requests import workload_class
from fairlead.scheduling.state import JobState
from fairlead.simulation.job_course import begin
from fairlead.simulation.trace import RunOutcome, TraceJob

Segment = tuple[float, float, tuple[str, ...]]
"""(begin, end, nodes) of a gang."""


class ActiveJob:
    """One job in a running simulation. Its state for the policy is cached until it changes."""

    __slots__ = (
        "_state", "attained_device_s", "course", "device_type", "job", "level", "owed_s", "ran_s", "restart_cost_s",
        "seats", "segments", "since_s", "slowed", "spread", "started_s", "starts",
    )  # fmt: skip

    def __init__(self, job: TraceJob, restart_cost_s: float) -> None:
        self.job = job
        self.course = begin(job.model)
        self.restart_cost_s = restart_cost_s if job.restart_cost_s is None else job.restart_cost_s
        self.seats: tuple[str, ...] = ()
        self.device_type = ""
        self.spread: tuple[int, ...] = ()
        self.level = NEAR  # topology level that its workers span
        self.slowed = 0.0  # part of its speed lost to neighbours on its nodes
        self.since_s = job.arrival_s
        self.owed_s = 0.0  # seconds of the restart still to pass
        self.starts = 0
        self.started_s: float | None = None
        self.attained_device_s = 0.0
        self.ran_s: dict[str, float] = {}
        self.segments: list[Segment] = []
        self._state: JobState | None = None

    @property
    def gang(self) -> int:
        """Its smallest gang."""
        return self.job.min_workers

    @property
    def workload(self) -> str:
        return workload_class(self.job.facts)

    def sit(
        self, seats: tuple[str, ...], nodes: Mapping[str, Node], now_s: float, *, free: bool = False, wake_s: float = 0
    ) -> None:
        """Begin a generation on these nodes; it costs a restart unless ``free``, and the waking of nodes."""
        counts = Counter(seats)
        self.seats = seats
        self.spread = tuple(sorted(counts.values(), reverse=True))
        self.level = level_between([nodes[name] for name in counts]) if len(counts) > 1 else NEAR
        self.device_type = nodes[seats[0]].device_type
        self.since_s = now_s
        self.owed_s = (0.0 if free else self._costs(len(seats))) + wake_s
        self.starts += 1
        if self.started_s is None:
            self.started_s = now_s
        self._state = None

    def _costs(self, workers: int) -> float:
        """Seconds that a new generation of so many workers loses."""
        if self.starts == 0 and self.job.first_start_s is not None:
            return self.job.first_start_s
        return (self.job.restart_costs or {}).get(workers, self.restart_cost_s)

    def pause(self, seconds: float) -> None:
        """Lose so many seconds to a decision, unless it is restarting anyway."""
        self.owed_s = max(self.owed_s, seconds)

    def leave(self, now_s: float) -> None:
        if self.job.starts_over:
            self.course.lose(self.course.done)
        self.seats, self.spread = (), ()
        self.since_s, self.owed_s = now_s, 0.0
        self._state = None

    def run(self, seconds: float) -> RunOutcome:
        """Run its gang for at most so many seconds."""
        pace = self._pace()
        if pace == 1.0:
            ran = self.course.run(seconds, self.device_type, self.spread, self.owed_s)
        else:
            ran = self._run_at(pace, seconds)
        self.owed_s = max(0.0, self.owed_s - seconds)
        self.attained_device_s += ran.service_s * len(self.seats)
        self.ran_s[self.device_type] = self.ran_s.get(self.device_type, 0.0) + ran.service_s
        self._state = None
        return ran

    def _pace(self) -> float:
        """Its speed relative to its model: reduced by distance between nodes and by interference.

        Models distinguish one node from several; the cost of wider domains is in the curve.
        """
        pace = 1.0 - self.slowed
        if self.level > FAR:
            curve = self.course.curve()
            far = curve.speed(self.device_type, len(self.seats), FAR)
            if curve.levels > FAR + 1 and far > 0:
                pace *= curve.speed(self.device_type, len(self.seats), self.level) / far
        return pace

    def _run_at(self, pace: float, seconds: float) -> RunOutcome:
        """Run at this pace; the restart is not slowed."""
        lost_s = min(self.owed_s, seconds)
        if pace <= 0:
            return RunOutcome(seconds, 0.0)
        ran = self.course.run(lost_s + (seconds - lost_s) * pace, self.device_type, self.spread, self.owed_s)
        return RunOutcome(min(seconds, lost_s + (ran.took_s - lost_s) / pace), ran.service_s / pace)

    def speed(self) -> float:
        """Units of work per second on its present gang."""
        return self.course.curve().speed(self.device_type, len(self.seats), self.level) * (1.0 - self.slowed)

    def ends_in(self) -> float:
        """Seconds until it is done without changes."""
        left_s, pace = self.course.seconds_left(self.device_type, self.spread), self._pace()
        return self.owed_s + (left_s if pace == 1.0 else left_s / pace if pace > 0 else math.inf)

    def state(self, declared: bool) -> JobState:
        """The job's state for the policy."""
        if self._state is None:
            self._state = self._seen(declared)
        return self._state

    def _stopping_costs_s(self) -> float:
        """Cost of a new generation: the restart, and the time for lost work if it starts over."""
        speed = self.speed() if self.job.starts_over and self.seats else 0.0
        return self.restart_cost_s + (self.course.done / speed if speed > 0 else 0.0)

    def _seen(self, declared: bool) -> JobState:
        job, curve = self.job, self.course.curve()
        left = self.course.work_left() if declared else None
        elastic = job.max_workers > job.min_workers
        return JobState(
            id=job.id, tenant=job.tenant, submitted_s=job.arrival_s, priority=job.priority, min_workers=job.min_workers,
            max_workers=job.max_workers, finish_by_s=job.deadline_s, seats=self.seats, since_s=self.since_s,
            elastic=elastic, speeds=_speeds(curve, self.device_type) if elastic else {}, remaining_samples=left,
            restart_cost_s=self._stopping_costs_s(), curve=curve, work_left=left, work_done=self.course.done,
            weight=job.weight, attained_device_s=self.attained_device_s, ran_s=dict(self.ran_s),
            exclusive_s=job.exclusive_s if declared else None, facts=job.facts, demand=job.demand, only=job.only,
            near=job.near, starts_over=job.starts_over, start_by_s=job.start_by_s, person=job.person,
        )  # fmt: skip


def _speeds(curve: SpeedCurve, device_type: str) -> dict[int, float]:
    """Speed by gang size on its device type, or on the first one: as telemetry would have measured."""
    levels = curve.speeds.get(device_type) or next(iter(curve.speeds.values()))
    return {size: speed for size, speed in zip(curve.sizes, levels[NEAR], strict=True) if speed > 0}
