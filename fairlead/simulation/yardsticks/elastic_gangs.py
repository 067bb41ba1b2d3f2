"""Reads for elastic policies a job's possible gangs, its speed on each, and its work left."""

from __future__ import annotations

import math

from fairlead.scheduling.curves import FAR, NEAR, SpeedCurve
from fairlead.scheduling.state import JobState

_LEVELS: dict[tuple[int, int, int], tuple[SpeedCurve, dict[int, float]]] = {}
"""By curve object and limits. The curve is kept beside its answer, so that its id cannot be taken by another."""


def levels(job: JobState) -> dict[int, float]:
    """Gang sizes between its limits, ascending, with the best speed there is on any devices; no curve: one size."""
    if job.curve is None:
        return {job.min_workers: 1.0}
    key = (id(job.curve), job.min_workers, job.max_workers)
    if key not in _LEVELS:
        if len(_LEVELS) > 10_000:
            _LEVELS.clear()
        _LEVELS[key] = (job.curve, _levels(job.curve, job.min_workers, job.max_workers))
    return _LEVELS[key][1]


def speed_on(job: JobState, device_type: str) -> float:
    """Of the gang it asks for: on one node, or where that is not known, over several.

    Between two measured sizes the devices beyond the smaller one do nothing.
    """
    if job.curve is None:
        return 1.0
    size = max((size for size in job.curve.sizes if size <= job.min_workers), default=0)
    return job.curve.speed(device_type, size, NEAR) or job.curve.speed(device_type, size, FAR)


def work_left(job: JobState) -> float:
    """As declared; without it nothing can be planned, and the job counts as endless."""
    return math.inf if job.work_left is None else job.work_left


def _levels(curve: SpeedCurve, least: int, most: int) -> dict[int, float]:
    best = {}
    for size in curve.sizes:
        speed = max((curve.speed(kind, size, level) for kind in curve.speeds for level in (NEAR, FAR)), default=0.0)
        if least <= size <= most and speed > 0:
            best[size] = speed
    return best
