"""Gavel's allocations, in the manner of its paper (OSDI 20): max-min fairness, finish-time fairness, makespan."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fairlead.simulation.baselines.interior import Bend, Problem, inside, solve
from fairlead.simulation.baselines.mechanism import Scene

Array = NDArray[np.float64]


def max_min(scene: Scene) -> Array:
    """The least of all weighted, normalised speeds as large as possible."""
    normal = scene.speeds @ (scene.capacity / scene.capacity.sum())
    weights = np.array([job.weight for job in scene.jobs])
    # Times the gang: on equal devices, a gang of four gets a quarter of the time that a single worker gets.
    per_fraction = scene.speeds * (scene.gangs / (weights * normal))[:, None]
    return _highest_level(Problem(per_fraction, scene.gangs, scene.capacity))


def max_min_blind(scene: Scene) -> Array:
    """The same for who takes all types for equal: least attained service."""
    return max_min(alike(scene))


def alike(scene: Scene) -> Scene:
    return Scene(scene.now_s, scene.jobs, scene.types, scene.capacity, scene.gangs, np.ones_like(scene.speeds))


def _highest_level(problem: Problem) -> Array:
    def above(speed: Array, level: float) -> Bend | None:
        room = speed - level
        if room.min() <= 0:
            return None
        one, two = 1.0 / room, 1.0 / room**2
        return Bend(-np.log(room), -one, one, two, -two, two)

    least = float((problem.speeds * inside(problem)).sum(axis=1).min())
    fractions, _ = solve(problem, above, level=least / 2, toward=1.0, scale=1.0)
    return fractions
