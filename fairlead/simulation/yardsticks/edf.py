"""Earliest deadline first as a yardstick, with and without admission control, in the manner of ElasticFlow's study."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fairlead.scheduling.state import ClusterState, JobState, Round
from fairlead.simulation.yardsticks.elastic_gangs import levels, work_left
from fairlead.simulation.yardsticks.seating import free_devices, regrown, round_of


@dataclass(frozen=True, slots=True)
class Edf:
    """Each job in the order of deadlines takes as many devices as it can run on; the rest waits.

    With ``admission`` a job that would make itself or an earlier one miss its deadline, as far as this plan can tell,
    is declined when it comes and does not run.
    """

    admission: bool = False

    def __call__(self, state: ClusterState) -> Round:
        jobs = sorted(state.jobs, key=lambda job: (_deadline(job), job.submitted_s, job.id))
        admitted: dict[str, bool] = {job.id: True for job in jobs}
        if self.admission:
            admitted = self._admitted(state, jobs)
            jobs = [job for job in jobs if admitted[job.id]]
        gangs = greedy(jobs, sum(free_devices(state).values()))
        declined = {name for name, taken in admitted.items() if not taken}
        return round_of(state, regrown(state, gangs), "EDF", {"admitted": admitted}, declined)

    def _admitted(self, state: ClusterState, jobs: Sequence[JobState]) -> dict[str, bool]:
        """Who was let in before, and which newcomers, in the order they came, can be let in now."""
        known: Mapping[str, bool] = state.memory.get("admitted", {})
        answers = {job.id: known[job.id] for job in jobs if job.id in known}
        devices = sum(free_devices(state).values())
        for job in sorted(jobs, key=lambda job: (job.submitted_s, job.id)):
            if job.id not in answers:
                inside = [other for other in jobs if answers.get(other.id) or other is job]
                answers[job.id] = all_in_time(inside, devices, state.now_s, state.round_s or 60.0)
        return answers


def admitting() -> Edf:
    """With admission control."""
    return Edf(admission=True)


def _deadline(job: JobState) -> float:
    return math.inf if job.finish_by_s is None else job.finish_by_s


def greedy(jobs: Iterable[JobState], devices: int) -> dict[str, int]:
    """The gang of each, in this order: the widest measured one that is left."""
    gangs = {}
    for job in jobs:
        fitting = [size for size in levels(job) if size <= devices]
        gangs[job.id] = fitting[-1] if fitting else 0
        devices -= gangs[job.id]
    return gangs


def all_in_time(jobs: Sequence[JobState], devices: int, now_s: float, slot_s: float) -> bool:
    """Whether nobody is late when these run in this order from now on; devices change hands at slots' ends."""
    left = {job.id: work_left(job) for job in jobs}
    waiting = list(jobs)
    at_s = now_s
    while waiting:
        gangs = greedy(waiting, devices)
        ends = {}
        for job in waiting:
            speed = levels(job).get(gangs[job.id], 0.0)
            if speed > 0:
                ends[job.id] = at_s + math.ceil(left[job.id] / speed)
        if not ends:
            return False
        until_s = min(now_s + slot_s * math.ceil((end - now_s) / slot_s) for end in ends.values())
        for job in waiting:
            if ends.get(job.id, math.inf) <= until_s:
                if ends[job.id] > _deadline(job):
                    return False
                left[job.id] = 0.0
            else:
                left[job.id] -= levels(job).get(gangs[job.id], 0.0) * (until_s - at_s)
        waiting = [job for job in waiting if left[job.id] > 0]
        at_s = until_s
    return True
