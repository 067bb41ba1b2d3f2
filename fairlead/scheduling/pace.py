"""How fast a gang gets on and how much it has left, as far as the state says: what forecasts reckon with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fairlead.cluster import Node, level_between
from fairlead.scheduling.curves import NEAR
from fairlead.scheduling.gain import remaining_s
from fairlead.scheduling.market.dials import Dials
from fairlead.scheduling.market.estimates import History, class_of, work_left
from fairlead.scheduling.market.menus import SCALING
from fairlead.scheduling.state import ClusterState, JobState

DIALS = Dials()


def speed_on(job: JobState, seats: Sequence[str], nodes: Mapping[str, Node]) -> float:
    """Units of work per second on these seats; of a size that its curve does not know, as on the next smaller one."""
    there = [nodes[name] for name in dict.fromkeys(seats) if name in nodes]
    if not there or not seats:
        return 0.0
    if job.curve is None:
        return float(len(seats) ** SCALING)
    level = NEAR if len(there) == 1 else level_between(there)
    for size in reversed([size for size in job.curve.sizes if size <= len(seats)]):
        speed = job.curve.speed(there[0].device_type, size, level)
        if speed > 0:
            return speed
    return 0.0


def efficient_speed(job: JobState) -> float:
    """On the gang that gets most out of each device; of several the smallest."""
    if job.curve is None:
        return float(job.min_workers**SCALING)
    best, found = 0.0, 0.0
    for at, size in enumerate(job.curve.sizes):
        if job.min_workers <= size <= max(job.max_workers, job.min_workers):
            speed = max((level[at] for levels in job.curve.speeds.values() for level in levels), default=0.0)
            if speed / size > best:
                best, found = speed / size, speed
    return found


def expected_left(state: ClusterState, jobs: Sequence[JobState]) -> list[float]:
    """Units of work each job still has to do: as declared, or as the policy expects it."""
    history = History.of(state.memory).updated(state.jobs)
    history = History(history.finished, {**History.of(state.memory).updated(jobs).seen, **history.seen})
    reference = np.array([efficient_speed(job) for job in jobs])
    found = work_left(jobs, reference, history, DIALS).tolist()
    for at, job in enumerate(jobs):
        if job.curve is None and job.work_left is None:
            seconds = remaining_s(job, job.min_workers)
            found[at] = found[at] if seconds is None else seconds * job.min_workers**SCALING
    return [float(one) for one in found]


def known(state: ClusterState, job: JobState) -> bool:
    """Whether its length rests on more than a general expectation: on its own word, on progress, or on precedents."""
    if job.work_left is not None or job.remaining_samples is not None or "takes_s" in job.facts:
        return True
    return class_of(job) in History.of(state.memory).finished
