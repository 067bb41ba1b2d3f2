"""What another worker brings to a gang, from the speeds that were measured, and the curve that follows from them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache

from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.state import JobState

WORTHWHILE = 0.95  # a size slower than this part of the best smaller one is not tried again, nor is any larger one
CLEARLY_SLOWER = 0.9  # below this part of the best smaller size's speed, the larger size does harm
USUAL_SCALING = 0.8  # of a worker's own speed is what it is expected to add before anybody measured
SLACK = 0.3  # a gang that needs more than this part of the time to its deadline has no time to give
KEPT = 50_000  # curves: as many as the market keeps menus, since another object is another curve to it
PAYBACK = 2.0  # growing must save this many times what the new generation costs


def max_useful_size(job: JobState) -> int:
    """The largest size that is not known to be useless: nobody grows into what was measured to be slower."""
    if not job.speeds:
        return job.max_workers
    slower = first_slower(job)
    return job.max_workers if slower is None else max(job.min_workers, min(slower - 1, job.max_workers))


def first_slower(job: JobState) -> int | None:
    """The smallest size that was measured slower than the best of the smaller ones.

    Measured against the same size as in better_smaller, and less strictly: so a size that a gang shrinks
    away from is always above its ceiling, and it does not grow back to it.
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
    """The speed at this size as measured at the nearest one, in the proportion that the curve sees between both."""
    if curve is None or not known or size not in curve.sizes:
        return None
    nearest, speed = min(known, key=lambda one: (abs(one[0] - size), one[0]))
    there = curve.fastest(nearest)
    return speed * curve.fastest(size) / there if there > 0 else None


def scaled_speed(known: tuple[tuple[int, float], ...], size: int) -> float | None:
    """The speed at this size by those of some sizes."""
    if not known or size <= 0:
        return None
    nearest, speed = known[0] if len(known) == 1 else min(known, key=lambda one: (abs(one[0] - size), one[0]))
    return speed / nearest * (min(size, nearest) + USUAL_SCALING * max(0, size - nearest))


def speed_on(job: JobState, kind: str, size: int) -> float:
    """Of a gang of this size on this type by the curve that the job brought; 1 without one: all types are alike."""
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
    """What a device of a gang of this size ``on`` these types is worth to the job, relative to the best ``of`` those it
    could have; a gang on several types is as fast as on the slowest of them."""
    if job.curve is None:
        return 1.0
    here = min((speed_on(job, kind, size) for kind in on), default=0.0)
    best = max((speed_on(job, kind, size) for kind in of), default=0.0)
    return min(1.0, here / best) if best > 0 else 1.0


def larger(job: JobState, size: int) -> int | None:
    """The next size that the gang could grow to: one more, or the next that its curve knows and is faster."""
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


def relative_gain(job: JobState, size: int) -> float:
    """How much faster, as a part of its present speed, the gang would be with one more worker."""
    if not job.speeds and job.curve is None:
        return USUAL_SCALING / size
    now, then = speed_at(job, size), speed_at(job, larger(job, size) or size + 1)
    return USUAL_SCALING / size if now is None or then is None else then / now - 1.0


def worth_restarting(job: JobState, size: int) -> bool:
    """Whether one more worker saves more time than a new generation takes, as far as one can know."""
    saved = saved_s(job, size)
    return saved is None or saved > PAYBACK * job.restart_cost_s


def saved_s(job: JobState, size: int) -> float | None:
    """Seconds by which the job would be done earlier with one more worker, if it can be told."""
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
    """Seconds until the job is done at this size, if it can be told."""
    left = job.remaining_samples if job.speeds or job.curve is None else job.work_left  # in the units of the speed
    if job.remaining_samples is not None and left is not None and (speed := speed_at(job, size)) is not None:
        return max(0.0, left / speed)
    takes_s = job.facts.get("takes_s")
    return None if takes_s is None or job.seats else float(takes_s) * (job.min_workers / max(1, size)) ** USUAL_SCALING


def deadline_is_tight(job: JobState, size: int, now_s: float) -> bool:
    """Whether this gang keeps the job's deadline if it runs from now on, and has not much time to spare."""
    if job.finish_by_s is None:
        return False
    left_s, has_s = remaining_s(job, size), job.finish_by_s - now_s
    return left_s is not None and SLACK * has_s < left_s <= has_s


def prior_curve(job: JobState, least: int, most: int, types: tuple[str, ...]) -> SpeedCurve:
    """What is expected of every gang before anybody profiled the job, in seconds of work of one worker per second.

    Measured sizes as they were measured; between and beyond them the usual scaling. Jobs of which the same is known
    share one curve.
    """
    known = tuple(sorted((size, speed) for size, speed in job.speeds.items() if speed > 0 and size > 0))
    return _curve(known, least, most, types)


@lru_cache(maxsize=KEPT)
def _curve(known: tuple[tuple[int, float], ...], least: int, most: int, types: tuple[str, ...]) -> SpeedCurve:
    sizes = tuple(range(least, most + 1))
    unit = scaled_speed(known, 1) or 1.0
    speeds = tuple((scaled_speed(known, size) or scaled_speed(((1, 1.0),), size) or 0.0) / unit for size in sizes)
    return SpeedCurve(sizes, dict.fromkeys(types, (speeds, speeds)))
