"""Tiresias (NSDI 19) as a yardstick: queues by attained device time, first come first served within each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairlead.scheduling.state import ClusterState, JobState, Round
from fairlead.simulation.trace import Trace
from fairlead.simulation.yardsticks.seating import Seats, emptiest_first, free_devices, round_of, sit

FLOOR = 0.0


@dataclass(frozen=True, slots=True)
class Tiresias:
    """Two-dimensional least attained service, discretised: a job sinks one queue each time it crosses a threshold.

    It knows neither how long jobs take nor how they scale, and never changes a gang. The thresholds are those of the
    study that is reproduced, in device seconds.
    """

    thresholds: tuple[float, ...] = (57_600.0,)
    waiting_last: bool = False  # within a queue, those that do not run go behind those that do

    def __call__(self, state: ClusterState) -> Round:
        jobs = {job.id: job for job in state.jobs}
        executed = self._executed(state)
        queues = self._queues(state, jobs, executed)
        free = sum(free_devices(state).values())
        running: list[str] = []
        for queue in queues:
            for name in queue:
                if jobs[name].min_workers <= free:
                    running.append(name)
                    free -= jobs[name].min_workers
        if self.waiting_last:
            chosen = set(running)
            queues = [sorted(queue, key=lambda name: name not in chosen) for queue in queues]
        memory = {"queues": queues, "executed": executed, "checked_s": state.now_s}
        return round_of(state, _seats(state, [jobs[name] for name in running]), "Tiresias", memory)

    def _executed(self, state: ClusterState) -> dict[str, float]:
        """Seconds that each job has run for; what it was given, not what it made of it."""
        before: Mapping[str, float] = state.memory.get("executed", {})
        passed = state.now_s - float(state.memory.get("checked_s", state.now_s))
        return {job.id: before.get(job.id, FLOOR) + (passed if job.seats else FLOOR) for job in state.jobs}

    def _queues(
        self, state: ClusterState, jobs: Mapping[str, JobState], executed: Mapping[str, float]
    ) -> list[list[str]]:
        last: Any = state.memory.get("queues") or [[] for _ in range(len(self.thresholds) + 1)]
        queues = [[name for name in queue if name in jobs] for queue in last]
        known = {name for queue in queues for name in queue}
        queues[0] += [job.id for job in sorted(state.jobs, key=lambda job: job.submitted_s) if job.id not in known]
        for level, threshold in reversed(list(enumerate(self.thresholds))):
            sinking = [n for n in queues[level] if executed[n] * jobs[n].min_workers >= threshold and jobs[n].seats]
            queues[level] = [name for name in queues[level] if name not in sinking]
            queues[level + 1] += sinking
        return queues


def for_trace(trace: Trace) -> Tiresias:
    """With the settings of the study that the trace comes from."""
    thresholds = tuple(trace.settings.get("tiresias_thresholds", Tiresias().thresholds))
    return Tiresias(thresholds, bool(trace.settings.get("tiresias_waiting_last", False)))


def _seats(state: ClusterState, running: Sequence[JobState]) -> dict[str, Seats]:
    """Whoever sits stays; newcomers go where the most room is."""
    free = free_devices(state)
    seats = {job.id: job.seats for job in running if job.seats}
    for held in seats.values():
        sit(free, held)
    for job in running:
        if not job.seats:
            seats[job.id] = emptiest_first(free, job.min_workers)
    return seats
