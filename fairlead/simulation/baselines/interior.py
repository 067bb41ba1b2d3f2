"""A small interior-point solver for sharing types of devices among jobs, whose answers are central like Gavel's own.

Such problems have many best answers; which one is taken decides who gets what is left over. Gavel's solvers end in the
middle of the best answers (the limit of the central path), so a solver that ends in a corner would be another policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

GROWTH = 8.0
GAP = 1e-7
NEWTON_STEPS = 40
DECREMENT = 1e-9


class Bend(NamedTuple):
    """A barrier term of each job in its speed and the level: value, first and second derivatives."""

    value: Array
    by_speed: Array
    by_level: Array
    speed2: Array
    both: Array
    level2: Array


Barrier = Callable[[Array, float], Bend | None]
"""None where speed and level are outside."""


class Problem(NamedTuple):
    """Fractions x of time, jobs by types: x >= 0, each job at most 1, each type's devices at most all there are."""

    speeds: Array  # jobs x types: what the barrier's speed of a job is per fraction
    gangs: Array
    capacity: Array


def solve(problem: Problem, barrier: Barrier, level: float, toward: float, scale: float) -> tuple[Array, float]:
    """Drive the level up (+1) or down (-1) as far as it goes; the fractions at its end, and the level.

    ``level`` is one at which the starting point is inside; ``scale`` a typical size of levels.
    """
    x = inside(problem)
    count = x.size + len(problem.gangs) * 2 + len(problem.capacity)
    push = 1.0 / scale
    while True:
        x, level = _centre(problem, barrier, x, level, -toward * push)
        if count / push < GAP * max(scale, abs(level)):
            return x, level
        push *= GROWTH


def inside(problem: Problem) -> Array:
    """A point with room on all sides."""
    share = problem.capacity / (2.0 * problem.gangs.sum())
    share /= max(1.0, 2.0 * float(share.sum()))
    return np.tile(share, (len(problem.gangs), 1))


def _centre(problem: Problem, barrier: Barrier, x: Array, level: float, cost: float) -> tuple[Array, float]:
    """Newton's method for the barriers plus cost x level."""
    value, bend = _value(problem, barrier, x, level, cost)
    if bend is None:
        raise ValueError("the starting point is not inside")
    for _ in range(NEWTON_STEPS):
        dx, dlevel, decrement = _direction(problem, bend, x, cost)
        if decrement < DECREMENT:
            break
        step = 1.0
        while step > 1e-12:
            tried, tried_bend = _value(problem, barrier, x + step * dx, level + step * dlevel, cost)
            if tried_bend is not None and tried <= value - 0.1 * step * decrement + 1e-12 * abs(value):
                break
            step *= 0.5
        else:
            break
        x, level, value, bend = x + step * dx, level + step * dlevel, tried, tried_bend
    return x, level


def _value(problem: Problem, barrier: Barrier, x: Array, level: float, cost: float) -> tuple[float, Bend | None]:
    idle, spare = 1.0 - x.sum(axis=1), problem.capacity - problem.gangs @ x
    if x.min() <= 0 or idle.min() <= 0 or spare.min() <= 0:
        return np.inf, None
    bend = barrier((problem.speeds * x).sum(axis=1), level)
    if bend is None:
        return np.inf, None
    sides = np.log(x).sum() + np.log(idle).sum() + np.log(spare).sum()
    return float(cost * level + bend.value.sum() - sides), bend


def _direction(problem: Problem, bend: Bend, x: Array, cost: float) -> tuple[Array, float, float]:
    """The Newton step, job by job, with what couples jobs (capacity, level) eliminated last."""
    a, gangs = problem.speeds, problem.gangs
    jobs, types = x.shape
    idle, spare = 1.0 - x.sum(axis=1), problem.capacity - gangs @ x
    gradient = -1.0 / x + (1.0 / idle)[:, None] + gangs[:, None] / spare + bend.by_speed[:, None] * a
    blocks = bend.speed2[:, None, None] * a[:, :, None] * a[:, None, :] + (1.0 / idle**2)[:, None, None]
    blocks[:, range(types), range(types)] += 1.0 / x**2
    # Right-hand sides: the gradient, the level's column, and one column per type for the capacities.
    columns = np.zeros((jobs, types, 2 + types))
    columns[:, :, 0] = -gradient
    columns[:, :, 1] = bend.both[:, None] * a
    columns[:, range(types), range(2, 2 + types)] = gangs[:, None] / spare
    solved = np.linalg.solve(blocks, columns)
    rest = np.einsum("itp,itq->pq", columns[:, :, 1:], solved)  # (1 + types) x (2 + types)
    # Unknowns: the step of the level, and y = how each type's use changes, scaled by what is spare.
    matrix = np.eye(1 + types)
    matrix[0, 0] = bend.level2.sum() - rest[0, 1]
    matrix[0, 1:] = -rest[0, 2:]
    matrix[1:, 0] = rest[1:, 1]
    matrix[1:, 1:] += rest[1:, 2:]
    slope = cost + bend.by_level.sum()
    right = np.concatenate([[-slope - rest[0, 0]], rest[1:, 0]])
    answer = np.linalg.solve(matrix, right)
    dlevel, y = float(answer[0]), answer[1:]
    dx = solved[:, :, 0] - solved[:, :, 1] * dlevel - solved[:, :, 2:] @ y
    decrement = -float((gradient * dx).sum() + slope * dlevel)
    return dx, dlevel, decrement
