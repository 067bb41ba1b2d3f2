"""Improves a choice by its last percents: chooses the gangs that are easiest to exchange anew, by exact search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.scheduling.market.ceilings import Ceilings, QueueLimits
from fairlead.scheduling.market.menus import Bools, Floats, Ints
from fairlead.scheduling.market.problem import Problem
from fairlead.scheduling.market.search import PathSearch, Search

OPEN = 32
"""Jobs whose gangs are chosen anew at a time; with no more jobs than this the result is the optimum."""

STEPS = 40
"""Steps of the price iteration, where prices are found anew; the step length falls geometrically."""

PASSES = 4
"""Passes at most, as long as they improve the choice."""

CLOSE = 0.01
"""A smaller relative gain is not worth an exchange, nor the time to find it."""


def exchange_gangs(
    problem: Problem, column: Ints, price: Floats, least: Floats, limits: Ceilings | QueueLimits,
    fixed: Bools | None = None, *, anew: bool = False,
) -> Ints:  # fmt: skip
    """Columns with at least the same total utility. ``column`` must be possible; prices only make the search fast.

    ``least`` is the least utility of each job's gang, 0 if it may have none; ``fixed`` jobs keep their columns. Limits
    count, budgets do not: where prices depend on budgets, they are found ``anew``.
    """
    value, toll = problem.worth(column), np.zeros(len(limits.amount))
    if anew and PricedOffers.of(problem, least, price, toll, limits).bound > value * (1 + CLOSE):
        price, toll = _prices(problem, least, price, limits)
    for _ in range(PASSES):
        before, column = column, _once(problem, column, price, toll, least, limits, fixed)
        if before is column:
            break
    return column


@dataclass(frozen=True, slots=True)
class PricedOffers:
    """The surplus of every offer at these prices, and an upper bound of what any choice can be worth."""

    surplus: Floats  # by job and offer; minus infinity where it is not possible
    nothing: Floats  # by job, surplus of no gang; minus infinity if it must have one
    best: Floats  # by job
    bound: float

    @classmethod
    def of(
        cls, problem: Problem, least: Floats, price: Floats, toll: Floats, limits: Ceilings | QueueLimits
    ) -> PricedOffers:
        possible = (problem.utility > 0) & (problem.utility >= least[:, None])
        cost = (price[problem.kind] + limits.rates(problem, toll)) * problem.size
        surplus = np.where(possible, problem.utility - cost, -np.inf)
        nothing = np.where(least > 0, -np.inf, 0.0)
        best = np.maximum(surplus.max(axis=1), nothing)
        limited = toll > 0
        bound = float(best.sum() + price @ problem.capacity + toll[limited] @ limits.amount[limited])
        return cls(surplus, nothing, best, bound)


def _prices(problem: Problem, least: Floats, price: Floats, limits: Ceilings | QueueLimits) -> tuple[Floats, Floats]:
    """Prices by type, and tolls for limits, at which demand meets supply."""
    rows, limited = np.arange(problem.jobs), np.isfinite(limits.amount)
    unit = max(float(price.mean()), 1e-12)
    price, toll = np.full(len(price), unit), np.zeros(len(limits.amount))
    for step in range(STEPS):
        field = PricedOffers.of(problem, least, price, toll, limits)
        preferred = field.surplus.argmax(axis=1)
        wants = field.surplus[rows, preferred] > field.nothing
        taken, stride = np.where(wants, problem.size[rows, preferred], 0), 0.5 * 0.93**step + 0.02
        kind = problem.kind[rows, preferred]
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
    """One pass. At any prices, the jobs' surpluses plus the cost of all devices bound the worth of every choice.

    So a job that is far from indifferent at the prices keeps its column, and all jobs do once the bound is reached.
    """
    rows, got = np.arange(problem.jobs), column >= 0
    field = PricedOffers.of(problem, least, price, toll, limits)
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
