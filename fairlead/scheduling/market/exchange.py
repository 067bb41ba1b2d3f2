"""The last percents of a choice: the gangs that are easiest to exchange are chosen anew, all at once and exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.scheduling.market.ceilings import Ceilings, QueueLimits
from fairlead.scheduling.market.menus import Bools, Floats, Ints
from fairlead.scheduling.market.problem import Problem
from fairlead.scheduling.market.search import PathSearch, Search

OPEN = 32
"""Jobs whose gangs are chosen anew at a time: where there are no more jobs, the outcome is the optimum."""

STEPS = 40
"""Of the price iteration, where prices are found anew; the step length falls geometrically."""

PASSES = 4
"""How often that is done, as long as it brings something."""

CLOSE = 0.01
"""Less than this part is not worth an exchange: nobody is moved about for it, and no time is spent on it."""


def exchanged(
    problem: Problem, column: Ints, price: Floats, least: Floats, limits: Ceilings | QueueLimits,
    fixed: Bools | None = None, *, anew: bool = False,
) -> Ints:  # fmt: skip
    """Columns that are worth at least as much in sum; ``column`` has to be possible, prices only make it fast.

    ``least`` is what each job's gang has to be worth, 0 if it may have none; who is ``fixed`` keeps what it has.
    Limits are looked at, budgets are not: where prices rest on them, they are found ``anew``.
    """
    value, toll = problem.worth(column), np.zeros(len(limits.amount))
    if anew and Field.of(problem, least, price, toll, limits).bound > value * (1 + CLOSE):
        price, toll = _prices(problem, least, price, limits)
    for _ in range(PASSES):
        before, column = column, _once(problem, column, price, toll, least, limits, fixed)
        if before is column:
            break
    return column


@dataclass(frozen=True, slots=True)
class Field:
    """What every offer leaves a job at these prices, and what no choice can be worth more than."""

    surplus: Floats  # by job and offer; minus infinity where it is not possible
    nothing: Floats  # by job, of having nothing: minus infinity for who has to have something
    best: Floats  # by job
    bound: float

    @classmethod
    def of(cls, problem: Problem, least: Floats, price: Floats, toll: Floats, limits: Ceilings | QueueLimits) -> Field:
        possible = (problem.utility > 0) & (problem.utility >= least[:, None])
        cost = (price[problem.kind] + limits.rates(problem, toll)) * problem.size
        surplus = np.where(possible, problem.utility - cost, -np.inf)
        nothing = np.where(least > 0, -np.inf, 0.0)
        best = np.maximum(surplus.max(axis=1), nothing)
        limited = toll > 0
        bound = float(best.sum() + price @ problem.capacity + toll[limited] @ limits.amount[limited])
        return cls(surplus, nothing, best, bound)


def _prices(problem: Problem, least: Floats, price: Floats, limits: Ceilings | QueueLimits) -> tuple[Floats, Floats]:
    """Prices by type, and tolls for limits, at which what is wanted beyond ``least`` meets what there is."""
    rows, limited = np.arange(problem.jobs), np.isfinite(limits.amount)
    unit = max(float(price.mean()), 1e-12)
    price, toll = np.full(len(price), unit), np.zeros(len(limits.amount))
    for step in range(STEPS):
        field = Field.of(problem, least, price, toll, limits)
        wish = field.surplus.argmax(axis=1)
        wants = field.surplus[rows, wish] > field.nothing
        taken, stride = np.where(wants, problem.size[rows, wish], 0), 0.5 * 0.93**step + 0.02
        kind = problem.kind[rows, wish]
        over = np.bincount(kind, taken, len(price)) / np.maximum(problem.capacity, 1.0) - 1.0
        price = price * np.exp(np.clip(stride * over, -1.0, 1.0))
        if limited.any():
            used = limits.used(problem, kind, taken)
            over = np.where(limited, used / np.maximum(limits.amount, 1.0) - 1.0, -1.0)
            toll = np.where(limited, np.maximum(0.0, toll + unit * stride * np.clip(over, -1.0, 1.0)), 0.0)
    return price, toll


def _once(
    problem: Problem, column: Ints, price: Floats, toll: Floats, least: Floats, limits: Ceilings | QueueLimits,
    fixed: Bools | None,
) -> Ints:  # fmt: skip
    """With any prices, what all jobs would gain at them and all devices cost is a bound of what any choice is worth.

    So a job that is far from being indifferent at the prices stays as it is, and everybody does once the bound is
    reached.
    """
    rows, got = np.arange(problem.jobs), column >= 0
    field = Field.of(problem, least, price, toll, limits)
    surplus, nothing, best, bound = field.surplus, field.nothing, field.best, field.bound
    value = problem.worth(column)
    if bound <= value * (1 + CLOSE):
        return column
    has = np.where(got, surplus[rows, np.maximum(column, 0)], 0.0)
    surplus = np.where(best[:, None] - surplus < bound - value, surplus, -np.inf)
    others = surplus.copy()
    others[rows[got], column[got]] = -np.inf
    loss = has - np.maximum(others.max(axis=1), np.where(got, nothing, -np.inf))
    if fixed is not None:
        loss = np.where(fixed, np.inf, loss)
    easiest = np.argsort(loss, kind="stable")[:OPEN]
    easiest = easiest[np.isfinite(loss[easiest])]
    if not len(easiest):
        return column
    if isinstance(limits, QueueLimits):
        return PathSearch(problem, column, easiest, price, toll, surplus, nothing, limits).run(value, 1 + CLOSE)
    return Search(problem, column, easiest, price, toll, surplus, nothing).run(value, 1 + CLOSE)
