"""Predicts gang speeds at other sizes from measured speeds, and whether growing or shrinking pays."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache

from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.state import JobState

WORTHWHILE = 0.95  # a size slower than this part of the best smaller one is not used again, nor any larger one
CLEARLY_SLOWER = 0.9  # below this part of the best smaller size's speed, the larger size does harm
USUAL_SCALING = 0.8  # without a measurement, a further worker adds this part of its own speed
SLACK = 0.3  # a gang that needs more than this part of the time to its deadline is tight
KEPT = 50_000  # cached curves: as many as the market caches menus, which go by the identity of the curve
PAYBACK = 2.0  # growing must save this many times what the new generation costs


def max_useful_size(job: JobState) -> int:
    """The largest size that was not measured slower than a smaller one."""
    if not job.speeds:
        return job.max_workers
    slower = first_slower(job)
    return job.max_workers if slower is None else max(job.min_workers, min(slower - 1, job.max_workers))


def first_slower(job: JobState) -> int | None:
    """The smallest size that was measured slower than the best of the smaller ones.

    The threshold is less strict than in :func:`better_smaller`, so a gang never grows back to a size that it left.
    """
    best = 0.0
    for size in sorted(size for size, speed in job.speeds.items() if speed > 0 and size >= job.min_workers):
        if job.speeds[size] < best * WORTHWHILE:
            return size
        best = max(best, job.speeds[size])
    return None


def speed_at(job: JobState, size: int) -> float | None:
    """Samples per second with this many workers: measured, or scaled from the nearest size measured."""
    if job.curve is not None and not job.speeds:
        return job.curve.fastest(size) or None if size in job.curve.sizes else None
    known = tuple((n, speed) for n, speed in job.speeds.items() if speed > 0 and n > 0)
    return _along(job.curve, known, size) or scaled_speed(known, size)


def _along(curve: SpeedCurve | None, known: tuple[tuple[int, float], ...], size: int) -> float | None:
    """The speed measured at the nearest size, scaled by the curve's ratio between the two sizes."""
    if curve is None or not known or size not in curve.sizes:
        return None
    nearest, speed = min(known, key=lambda one: (abs(one[0] - size), one[0]))
    there = curve.fastest(nearest)
    return speed * curve.fastest(size) / there if there > 0 else None


def scaled_speed(known: tuple[tuple[int, float], ...], size: int) -> float | None:
    """The speed at this size from the nearest measured size by the usual scaling."""
    if not known or size <= 0:
        return None
    nearest, speed = known[0] if len(known) == 1 else min(known, key=lambda one: (abs(one[0] - size), one[0]))
    return speed / nearest * (min(size, nearest) + USUAL_SCALING * max(0, size - nearest))


def speed_on(job: JobState, kind: str, size: int) -> float:
    """Speed of a gang of this size on this type by the job's curve; 1 without a curve."""
    if job.curve is None:
        return 1.0
    sizes, best = job.curve.sizes, 0.0
    if size in sizes:
        at = sizes.index(size)
        for level in job.curve.speeds.get(kind, ()):
            if level and level[at] > best:
                best = level[at]
    return best


def device_usefulness(job: JobState, on: Iterable[str], of: Iterable[str], size: int) -> float:
    """Worth of a device of this gang ``on`` these types, relative to the best ``of`` the types it could have; a gang on
    several types is as fast as on the slowest."""
    if job.curve is None:
        return 1.0
    here = min((speed_on(job, kind, size) for kind in on), default=0.0)
    best = max((speed_on(job, kind, size) for kind in of), default=0.0)
    return min(1.0, here / best) if best > 0 else 1.0


def larger(job: JobState, size: int) -> int | None:
    """The next size to grow to: one more worker, or the next faster size of its curve."""
    most = max_useful_size(job)
    if job.curve is None:
        return size + 1 if size < most else None
    now = job.curve.fastest(size) if size in job.curve.sizes else 0.0
    return next((one for one in job.curve.sizes if size < one <= most and job.curve.fastest(one) > now), None)


def smaller(job: JobState, size: int) -> int | None:
    """The next size that the gang could shrink to."""
    if job.curve is None:
        return size - 1 if size > job.min_workers else None
    running = job.curve.running
    at = bisect_left(running, size) - 1
    return running[at] if at >= 0 and running[at] >= job.min_workers else None


def worth_restarting(job: JobState, size: int) -> bool:
    """Whether one more worker saves more time than the change costs, as far as is known."""
    saved = saved_s(job, size)
    return saved is None or saved > PAYBACK * job.restart_cost_s


def saved_s(job: JobState, size: int) -> float | None:
    """Seconds that one more worker would save; None if unknown."""
    now, then = remaining_s(job, size), remaining_s(job, size + 1)
    if job.remaining_samples is None or now is None or then is None:
        return None
    return now - then


def better_smaller(job: JobState, size: int) -> int | None:
    """A smaller size at which the gang was clearly faster than at this one."""
    if size not in job.speeds:
        return None
    smaller = [n for n, speed in job.speeds.items() if job.min_workers <= n < size and speed > 0]
    best = max(smaller, key=lambda n: (job.speeds[n], -n), default=None)
    return best if best is not None and job.speeds[size] < CLEARLY_SLOWER * job.speeds[best] else None


def remaining_s(job: JobState, size: int) -> float | None:
    """Seconds until the job is done at this size; None if unknown."""
    left = job.remaining_samples if job.speeds or job.curve is None else job.work_left  # in the units of the speed
    if job.remaining_samples is not None and left is not None and (speed := speed_at(job, size)) is not None:
        return max(0.0, left / speed)
    takes_s = job.facts.get("takes_s")
    return None if takes_s is None or job.seats else float(takes_s) * (job.min_workers / max(1, size)) ** USUAL_SCALING


def deadline_is_tight(job: JobState, size: int, now_s: float) -> bool:
    """Whether this gang keeps the job's deadline if it runs from now on, but with little slack."""
    if job.finish_by_s is None:
        return False
    left_s, has_s = remaining_s(job, size), job.finish_by_s - now_s
    return left_s is not None and SLACK * has_s < left_s <= has_s


def prior_curve(job: JobState, least: int, most: int, types: tuple[str, ...]) -> SpeedCurve:
    """The expected curve of a job without a profile, in seconds of one worker's work per second.

    Measured sizes keep their speeds; other sizes follow the usual scaling. Jobs with equal measurements share a curve.
    """
    known = tuple(sorted((size, speed) for size, speed in job.speeds.items() if speed > 0 and size > 0))
    return _curve(known, least, most, types)


@lru_cache(maxsize=KEPT)
def _curve(known: tuple[tuple[int, float], ...], least: int, most: int, types: tuple[str, ...]) -> SpeedCurve:
    sizes = tuple(range(least, most + 1))
    unit = scaled_speed(known, 1) or 1.0
    speeds = tuple((scaled_speed(known, size) or scaled_speed(((1, 1.0),), size) or 0.0) / unit for size in sizes)
    return SpeedCurve(sizes, dict.fromkeys(types, (speeds, speeds)))
