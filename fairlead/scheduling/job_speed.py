"""Estimates a gang's speed and work left for forecasts, as far as the state tells.

Work is in units of the job's curve; without a curve in samples, if speeds are measured, else in seconds of one worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from statistics import median

import numpy as np

from fairlead.cluster import Node, level_between
from fairlead.scheduling.curves import NEAR, SpeedCurve
from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.estimates import History, class_of, work_left
from fairlead.scheduling.market.menus import SCALING
from fairlead.scheduling.scaling import KEPT
from fairlead.scheduling.state import ClusterState, JobState

CONFIG = MarketConfig()

FIRST_START_S = 2.0
"""Time from a decision to a working gang, where nothing must be stopped or loaded first."""

OVERDUE = 0.1
"""A job that has used up its declared duration needs at least this part of it again."""


def speed_on_seats(job: JobState, seats: Sequence[str], nodes: Mapping[str, Node]) -> float:
    """Units of work per second on these seats; a size unknown to the curve counts as the next smaller known one."""
    there = [nodes[name] for name in dict.fromkeys(seats) if name in nodes]
    if not there:
        return 0.0
    if job.curve is None:
        return speed_without_curve(job, len(seats))
    level = NEAR if len(there) == 1 else level_between(there)
    for size in reversed([size for size in job.curve.sizes if size <= len(seats)]):
        speed = job.curve.speed(there[0].device_type, size, level)
        if speed > 0:
            return speed
    return 0.0


def speed_without_curve(job: JobState, size: int) -> float:
    """Speed without a curve: measured at the nearest size, scaled as usual."""
    measured = {workers: speed for workers, speed in job.speeds.items() if speed > 0 and workers > 0}
    if not counts_samples(job):
        return float(size**SCALING)
    nearest = min(measured, key=lambda workers: (abs(workers - size), workers))
    return float(measured[nearest] * (size / nearest) ** SCALING)


def with_curve(job: JobState, types: Sequence[str], devices: int) -> JobState:
    """The job with a curve over all gangs that so many devices allow, in the units of this module."""
    if job.curve is not None:
        return job
    least = max(1, min(job.min_workers, devices))
    most = max(least, min(job.max_workers, devices))
    speeds = tuple(speed_without_curve(job, size) for size in range(least, most + 1))
    return replace(job, curve=_curve(speeds, least, tuple(types)))


@lru_cache(maxsize=KEPT)
def _curve(speeds: tuple[float, ...], least: int, types: tuple[str, ...]) -> SpeedCurve:
    """One shared object per distinct curve: the market caches results by the identity of a curve."""
    return SpeedCurve(tuple(range(least, least + len(speeds))), dict.fromkeys(types, (speeds, speeds)))


def counts_samples(job: JobState) -> bool:
    """Whether its work left and its speed are known in samples."""
    return job.curve is None and job.remaining_samples is not None and any(speed > 0 for speed in job.speeds.values())


def efficient_speed(job: JobState) -> float:
    """Speed of its most efficient gang; of several the smallest."""
    if job.curve is None:
        return speed_without_curve(job, job.min_workers)
    best, found = 0.0, 0.0
    for size in job.curve.sizes:
        if job.min_workers <= size <= job.max_workers:
            speed = job.curve.fastest(size)
            if speed / size > best:
                best, found = speed / size, speed
    return found


def expected_work_left(state: ClusterState, jobs: Sequence[JobState]) -> list[float]:
    """Units of work each job still has to do: as declared, or as the policy expects it."""
    counted = [_counted(job, state.now_s) for job in jobs]
    history = History.of(state.memory)  # declarations of known jobs; a new job's counts from now
    reference = np.array([efficient_speed(job) for job in counted])
    found = work_left(counted, reference, history, CONFIG)
    return [_by_its_word(job) or _by_precedent(job, history) or float(left)
            for job, left in zip(counted, found, strict=True)]  # fmt: skip


def _by_its_word(job: JobState) -> float | None:
    """Work left by its declared duration. Once that is exceeded, it is expected to need as much again as it is over,
    and at least a tenth of the declaration. (A bid ignores an exceeded declaration.)
    """
    if job.work_left is not None or "takes_s" not in job.facts:
        return None
    said = float(job.facts["takes_s"]) * efficient_speed(job)
    return max(said - job.work_done, job.work_done - said, OVERDUE * said)


def _by_precedent(job: JobState, history: History) -> float | None:
    """Mean work left of the finished jobs of its class that did more than it has done; None without any.

    A bid treats few precedents with more caution; a forecast wants the likeliest value.
    """
    if job.work_left is not None or "takes_s" in job.facts:
        return None
    longer = [one.done - job.work_done for one in history.finished.get(class_of(job), ()) if one.done > job.work_done]
    return sum(longer) / len(longer) if longer else None


def _counted(job: JobState, now_s: float) -> JobState:
    """The job with work left and done in the units of this module, as far as known."""
    if job.curve is not None:
        return job
    if counts_samples(job):
        return replace(job, work_left=job.remaining_samples)
    at_work_s = 0.0 if job.frozen and job.starts_over else max(0.0, now_s - job.since_s)
    return replace(job, work_left=None, work_done=at_work_s * len(job.seats) ** SCALING)


def start_loss_s(state: ClusterState, job: JobState, first_s: float = FIRST_START_S) -> float:
    """Seconds that a new gang of this job loses. Live, a first start costs less than a restart."""
    fresh = not job.seats and not job.ran_s and job.work_done == 0
    return min(job.restart_cost_s, first_s) if fresh and not state.at_once else job.restart_cost_s


def first_start_s(state: ClusterState) -> float:
    """Time for a gang's first start: the median restart of commands, which always start from the beginning."""
    known = [job.restart_cost_s for job in state.jobs if job.seats and job.starts_over and not job.frozen]
    return median(known) if known else FIRST_START_S


def length_known(state: ClusterState, job: JobState) -> bool:
    """Whether its length is known from a declaration, from progress, or from precedents."""
    if job.work_left is not None or counts_samples(job) or "takes_s" in job.facts:
        return True
    return class_of(job) in History.of(state.memory).finished
