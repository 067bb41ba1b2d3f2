"""Converts live jobs to the form that the market reads: work in seconds of one worker, sizes that can run.

A live job says less than a trace: its speeds are those that were measured, and its work left is a count of samples.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairlead.scheduling.scaling import max_useful_size, prior_curve, speed_at
from fairlead.scheduling.state import JobState

URGENT_S = 60.0
"""A promise that must be kept within this time is urgent."""


def job_view(job: JobState, there: int, types: tuple[str, ...], now_s: float) -> JobState | None:
    """The job as the market reads it; None if its smallest gang is larger than ``there``, the largest that fits."""
    size = len(job.seats)
    if size and not job.elastic and not job.broken:
        least = most = size
    else:
        least = job.min_workers
        if least > there:
            return None
        most = max_useful_size(job) if job.speeds else job.max_workers
        if not size <= most <= there:
            most = max(min(most, there), size)
        most = max(most, least)  # a spec may give a max below its min
    if job.curve is not None or _unknown(job):
        same = least == job.min_workers and most == job.max_workers and not job.broken
        return job if same else replace(job, min_workers=least, max_workers=most, broken=False)
    unit = speed_at(job, 1)
    left, done = _work(job, unit, now_s)
    return replace(
        job, min_workers=least, max_workers=most, work_left=left, work_done=done,
        curve=prior_curve(job, least, most, types), broken=False,
        finish_by_s=None if left is None else job.finish_by_s,
    )  # fmt: skip


def _unknown(job: JobState) -> bool:
    """Whether it has not begun and nothing is known that its offers or its bid could depend on."""
    return not (job.seats or job.speeds or job.broken or job.finish_by_s is not None or "takes_s" in job.facts)


def _work(job: JobState, unit: float | None, now_s: float) -> tuple[float | None, float]:
    """Work left, None if unknown, and work done, in seconds of one worker."""
    if unit is not None:
        left = None if job.remaining_samples is None else job.remaining_samples / unit
        return left, job.work_done / unit
    done = max(0.0, now_s - job.since_s) * len(job.seats) ** 0.9 if job.seats else 0.0
    takes_s = job.facts.get("takes_s")
    return (None if takes_s is None else max(1.0, float(takes_s) * job.min_workers**0.9 - done)), done


def urgent(job: JobState, now_s: float) -> bool:
    """Whether a promise must be acted on now; a promise that is broken already no longer displaces others."""
    if job.finish_by_s is None and job.start_by_s is None:
        return False
    slack_s = np.inf if job.start_by_s is None or job.seats else job.start_by_s - now_s
    if job.finish_by_s is not None:
        slack_s = min(slack_s, job.finish_by_s - now_s - shortest_remaining_s(job, job.max_workers, now_s))
    return bool(0.0 <= slack_s <= URGENT_S)


def shortest_remaining_s(job: JobState, size: int, now_s: float) -> float:
    """The shortest time it still takes on a gang of this size: by measured speed, or else as declared."""
    speed = speed_at(job, size)
    if speed:
        return (job.remaining_samples or 0.0) / speed
    left, _ = _work(job, None, now_s)
    return 0.0 if left is None else left / size**0.9
