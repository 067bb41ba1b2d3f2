"""Gavel's allocations, in the manner of its paper (OSDI 20): max-min, finish-time fairness, makespan, sum of speeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import scipy.sparse as sparse
from numpy.typing import NDArray

from fairlead.simulation.yardsticks.convex_programs import TimeFractions, minimise, padded
from fairlead.simulation.yardsticks.gavel_mechanism import AllocationState

Array = NDArray[np.float64]

LONGEST_S = 1_000_000.0
SHORTEST_S = 100.0
CLOSE = 1.05
"""The makespan is searched between these, until it is known to this factor."""


def sharing(scene: AllocationState) -> TimeFractions:
    return TimeFractions(scene.gangs, scene.capacity)


def blind(
    allocate: Callable[[AllocationState], Array], reference: str | None = None
) -> Callable[[AllocationState], Array]:
    """The same allocation for who takes all device types for equal: all as fast as the reference, or as 1.

    What does not run on the reference is as fast as on its best type.
    """

    def allocate_blindly(scene: AllocationState) -> Array:
        if reference is None:
            return allocate(replace(scene, speeds=np.ones_like(scene.speeds)))
        speeds = scene.speeds[:, scene.types.index(reference) if reference in scene.types else 0]
        speeds = np.where(speeds > 0, speeds, scene.speeds.max(axis=1))
        return allocate(replace(scene, speeds=np.tile(speeds[:, None], len(scene.types))))

    return allocate_blindly


def max_min(scene: AllocationState) -> Array:
    """The least of all weighted, normalised speeds as large as possible."""
    normal = scene.speeds @ (scene.capacity / scene.capacity.sum())
    weights = np.array([job.weight for job in scene.jobs])
    # Times the gang: on equal devices, a gang of four gets a quarter of the time that a single worker gets.
    table = scene.speeds * (scene.gangs / (weights * normal))[:, None]
    share, jobs = sharing(scene), len(scene.jobs)
    base, bounds = share.rows(1)
    level = sparse.hstack([-share.speeds(table), sparse.csr_array(np.ones((jobs, 1)))])
    cost = np.append(np.zeros(share.size), -1.0)
    found = minimise(cost, sparse.vstack([level, base]), np.concatenate([np.zeros(jobs), bounds]))
    return isolated(scene) if found is None else share.fractions(found)


def max_sum(scene: AllocationState) -> Array:
    """The sum of all speeds as large as possible."""
    share = sharing(scene)
    base, bounds = share.rows(0)
    found = minimise(-scene.speeds.T.ravel(), base, bounds)
    return isolated(scene) if found is None else share.fractions(found)


def first_come(scene: AllocationState) -> Array:
    """All the time on the fastest type with room, in the order of arrival, until somebody does not fit."""
    shares, left = np.zeros_like(scene.speeds), scene.capacity.copy()
    for row, gang in enumerate(scene.gangs):
        speeds = np.where(left >= gang, scene.speeds[row], 0.0)
        if speeds.max() <= 0:
            break
        shares[row, speeds.argmax()] = 1.0
        left[speeds.argmax()] -= gang
    return shares


def isolated(scene: AllocationState) -> Array:
    """An equal part of every type for each job."""
    parts = scene.capacity[None, :] / len(scene.jobs) / scene.gangs[:, None]
    return np.asarray(parts / np.maximum(1.0, parts.sum(axis=1, keepdims=True)), dtype=np.float64)


def shortest_makespan(scene: AllocationState) -> Array:
    """All present jobs done as early as possible."""
    left = np.array([job.work_left or 0.0 for job in scene.jobs])
    share = sharing(scene)
    base, bounds = share.rows(0)
    speeds = share.speeds(scene.speeds / np.maximum(left, 1e-9)[:, None])  # parts of what is left, per second
    low, high, best = SHORTEST_S, LONGEST_S, None
    while best is None or low * CLOSE < high:
        middle = (low + high) / 2
        enough = -np.ones(len(left)) / middle
        # Seconds to days: scaled by the time tried, all numbers stay near 1.
        found = minimise(
            np.zeros(share.size), sparse.vstack([-speeds * middle, base]), np.concatenate([enough * middle, bounds])
        )
        if found is not None:
            best, high = found, middle
        else:
            low = middle
            if low * CLOSE >= high and best is None:
                low, high = high, high * 10
    return share.fractions(best)


class FinishTimeFairness:
    """The worst ratio of finishing with others to finishing with an equal part for oneself, as small as possible."""

    def __init__(self) -> None:
        self._alone_s: dict[str, float] = {}  # what the work done so far would have taken with an equal part
        self._before: dict[str, tuple[float, float]] = {}  # work left and speed with an equal part, the last time

    def __call__(self, scene: AllocationState) -> Array:
        left = np.array([job.work_left or 0.0 for job in scene.jobs])
        alone = (scene.speeds * isolated(scene)).sum(axis=1)
        self._remember(scene, left, alone)
        spent_s = np.array([self._alone_s[job.id] for job in scene.jobs])
        since_s = np.array([scene.now_s - job.submitted_s for job in scene.jobs])
        found = self._solve(scene, left / alone, since_s, spent_s + left / alone)
        return isolated(scene) if found is None else found

    def _remember(self, scene: AllocationState, left: Array, alone: Array) -> None:
        for row, job in enumerate(scene.jobs):
            work, speed = self._before.get(job.id, (left[row], 1.0))
            self._alone_s[job.id] = self._alone_s.get(job.id, 0.0) + (work - left[row]) / speed
        self._before = {job.id: (float(left[row]), float(alone[row])) for row, job in enumerate(scene.jobs)}

    def _solve(self, scene: AllocationState, ahead_s: Array, since_s: Array, fair_s: Array) -> Array | None:
        """Variables: fractions, the inverse u of each relative speed y (as y * u >= 1), and the worst ratio."""
        share, jobs = sharing(scene), len(scene.jobs)
        base, bounds = share.rows(jobs + 1)
        alone = (scene.speeds * isolated(scene)).sum(axis=1)
        speeds = share.speeds(scene.speeds / alone[:, None])
        late = sparse.hstack(
            [sparse.csr_array((jobs, share.size)), sparse.diags_array(ahead_s / fair_s), -np.ones((jobs, 1))]
        )
        inverse = sparse.hstack([sparse.csr_array((jobs, share.size)), sparse.eye_array(jobs)])
        # (u + y, u - y, 2) lies in the second-order cone exactly when y * u >= 1.
        wide, narrow = -inverse - padded(speeds, jobs), -inverse + padded(speeds, jobs)
        cones = sparse.vstack([padded(wide, 1), padded(narrow, 1), sparse.csr_array((jobs, share.size + jobs + 1))])
        turned = np.arange(3 * jobs).reshape(3, jobs).T.ravel()  # cone by cone
        heights = np.tile([0.0, 0.0, 2.0], jobs)
        table = sparse.vstack([base, late, sparse.csr_array(cones)[turned]])
        cost = np.append(np.zeros(share.size + jobs), 1.0)
        found = minimise(cost, table, np.concatenate([bounds, -since_s / fair_s, heights]), hyperbolas=jobs)
        return None if found is None else share.fractions(found)
