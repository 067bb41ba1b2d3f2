"""The last percents of a choice: the gangs that are easiest to exchange are chosen anew, all at once and exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.scheduling.market.menus import Bools, Floats, Ints
from fairlead.scheduling.market.problem import Problem

OPEN = 32
"""Jobs whose gangs are chosen anew at a time: where there are no more jobs, the outcome is the optimum."""

LABELS = 1_000
"""Partial choices that are followed at the same time; beyond that many, the most promising."""

STEPS = 40
"""Of the price iteration, where prices are found anew; the step length falls geometrically."""

PASSES = 4
"""How often that is done, as long as it brings something."""

CLOSE = 0.01
"""Less than this part is not worth an exchange: nobody is moved about for it, and no time is spent on it."""

MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], dtype=np.uint64)
"""Odd numbers that tell uses of devices apart: two that differ have the same sum by chance only."""

NO_COLUMN = np.array([-1], dtype=np.int64)


def exchanged(
    problem: Problem, column: Ints, price: Floats, least: Floats, fixed: Bools | None = None, *, anew: bool = False
) -> Ints:
    """Columns that are worth at least as much in sum; ``column`` has to be possible, prices only make it fast.

    ``least`` is what each job's gang has to be worth, 0 if it may have none; who is ``fixed`` keeps what it has.
    Ceilings are looked at, budgets are not: where prices rest on them, they are found ``anew``.
    """
    value, toll = problem.worth(column), np.zeros(len(problem.ceiling))
    if anew and Field.of(problem, least, price, toll).bound > value * (1 + CLOSE):
        price, toll = _prices(problem, least, price)
    for _ in range(PASSES):
        before, column = column, _once(problem, column, price, toll, least, fixed)
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
    def of(cls, problem: Problem, least: Floats, price: Floats, toll: Floats) -> Field:
        possible = (problem.utility > 0) & (problem.utility >= least[:, None])
        cost = (price[problem.kind] + toll[problem.group][:, None]) * problem.size
        surplus = np.where(possible, problem.utility - cost, -np.inf)
        nothing = np.where(least > 0, -np.inf, 0.0)
        best = np.maximum(surplus.max(axis=1), nothing)
        limited = toll > 0
        bound = float(best.sum() + price @ problem.capacity + toll[limited] @ problem.ceiling[limited])
        return cls(surplus, nothing, best, bound)


def _prices(problem: Problem, least: Floats, price: Floats) -> tuple[Floats, Floats]:
    """Prices by type, and tolls for ceilings, at which what is wanted beyond ``least`` meets what there is."""
    rows, limited = np.arange(problem.jobs), np.isfinite(problem.ceiling)
    unit = max(float(price.mean()), 1e-12)
    price, toll = np.full(len(price), unit), np.zeros(len(problem.ceiling))
    for step in range(STEPS):
        field = Field.of(problem, least, price, toll)
        wish = field.surplus.argmax(axis=1)
        wants = field.surplus[rows, wish] > field.nothing
        taken, stride = np.where(wants, problem.size[rows, wish], 0), 0.5 * 0.93**step + 0.02
        over = np.bincount(problem.kind[rows, wish], taken, len(price)) / np.maximum(problem.capacity, 1.0) - 1.0
        price = price * np.exp(np.clip(stride * over, -1.0, 1.0))
        if limited.any():
            used = np.bincount(problem.group, taken, len(toll))
            over = np.where(limited, used / np.maximum(problem.ceiling, 1.0) - 1.0, -1.0)
            toll = np.where(limited, np.maximum(0.0, toll + unit * stride * np.clip(over, -1.0, 1.0)), 0.0)
    return price, toll


def _once(
    problem: Problem, column: Ints, price: Floats, toll: Floats, least: Floats, fixed: Bools | None
) -> Ints:
    """With any prices, what all jobs would gain at them and all devices cost is a bound of what any choice is worth.

    So a job that is far from being indifferent at the prices stays as it is, and everybody does once the bound is
    reached.
    """
    rows, got = np.arange(problem.jobs), column >= 0
    field = Field.of(problem, least, price, toll)
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
    return Search(problem, column, easiest, price, toll, surplus, nothing).run(value) if len(easiest) else column


@dataclass(slots=True)
class Labels:
    """Partial choices: their worth, what they leave free, and what the group at hand uses with them."""

    value: Floats
    free: Floats
    used: Floats
    origin: Ints
    option: Ints

    def of(self, keep: Ints) -> Labels:
        return Labels(self.value[keep], self.free[keep], self.used[keep], self.origin[keep], self.option[keep])


class Search:
    """Job by job all partial choices that could still lead to something better, each use of devices only once."""

    def __init__(
        self, problem: Problem, column: Ints, easiest: Ints, price: Floats, toll: Floats, surplus: Floats,
        nothing: Floats,
    ) -> None:  # fmt: skip
        self.problem, self.column, self.price = problem, column, price
        self.surplus, self.nothing = surplus, nothing
        self.ceilings = bool(np.isfinite(problem.ceiling).any())
        group = problem.group if self.ceilings else np.zeros(problem.jobs, dtype=np.int64)
        biggest = np.where(np.isfinite(surplus[easiest]), problem.size[easiest], 0).max(axis=1)
        self.order = easiest[np.lexsort((easiest, -biggest, group[easiest]))]
        self.group = group[self.order]
        stays = column.copy()
        stays[easiest] = -1
        rows = np.nonzero(stays >= 0)[0]
        sizes = problem.size[rows, stays[rows]]
        self.free = problem.capacity - np.bincount(problem.kind[rows, stays[rows]], sizes, len(problem.capacity))
        self.used = np.bincount(group[rows], sizes, len(problem.ceiling)).astype(np.float64)
        self.worth = problem.worth(stays)
        limited = toll > 0  # what is left of ceilings could be worth no more than this
        self.spare = float(toll[limited] @ (problem.ceiling - self.used)[limited]) if limited.any() else 0.0
        self.mix = np.resize(MIX, len(problem.capacity))

    def run(self, value: float) -> Ints:
        """The best choice found, or the one there was if none is worth more."""
        order, group = self.order, self.group
        ahead = np.maximum(self.surplus[order].max(axis=1), self.nothing[order])
        ahead = np.concatenate((np.cumsum(ahead[::-1])[::-1], (0.0,)))
        none = np.zeros(0, dtype=np.int64)
        labels = Labels(np.array([self.worth]), self.free[None, :], np.zeros(1), none, none)
        kept: list[Labels] = []
        for at, job in enumerate(order.tolist()):
            if at == 0 or group[at] != group[at - 1]:
                labels.used = np.full(len(labels.value), self.used[group[at]])
            found = self._step(labels, job, float(ahead[at + 1]), value * (1 + CLOSE))
            if found is None:
                return self.column
            labels = found
            kept.append(labels)
        best = int(labels.value.argmax())
        return self._traced(kept, best) if labels.value[best] > value else self.column

    def _step(self, labels: Labels, job: int, ahead: float, worse: float) -> Labels | None:
        """All partial choices, each with all that this job may have."""
        problem = self.problem
        columns = np.nonzero(np.isfinite(self.surplus[job]))[0]
        may_wait = self.nothing[job] == 0.0
        columns = np.concatenate((columns, NO_COLUMN)) if may_wait else columns
        worth, kind, size = problem.utility[job, columns], problem.kind[job, columns], problem.size[job, columns]
        if may_wait:
            worth[-1], kind[-1], size[-1] = 0.0, 0, 0
        value = labels.value[:, None] + worth
        hope = value + (labels.free @ self.price)[:, None] + (ahead + self.spare - self.price[kind] * size)
        fits = (hope > worse) & (labels.free[:, kind] >= size)
        used = labels.used[:, None] + size
        if self.ceilings:
            fits &= used <= problem.ceiling[problem.group[job]]
        at, option = np.nonzero(fits)
        if not len(at):
            return None
        free = labels.free[at]
        free[np.arange(len(at)), kind[option]] -= size[option]
        found = Labels(value[at, option], free, used[at, option], at, columns[option])
        return self._best(found, hope[at, option])

    def _best(self, labels: Labels, hope: Floats) -> Labels:
        """Of those that leave the same, the one worth most; of too many, the most promising."""
        key = labels.free.astype(np.uint64) @ self.mix
        if self.ceilings:
            key = key * MIX[0] + labels.used.astype(np.uint64)
        order = np.lexsort((-labels.value, key))
        ordered = key[order]
        first = np.ones(len(order), dtype=bool)
        first[1:] = ordered[1:] != ordered[:-1]
        keep = order[first]
        if len(keep) > LABELS:
            keep = keep[np.argsort(-hope[keep], kind="stable")[:LABELS]]
        return labels.of(keep)

    def _traced(self, kept: list[Labels], at: int) -> Ints:
        column = self.column.copy()
        for job, labels in zip(self.order[::-1].tolist(), reversed(kept), strict=True):
            column[job] = labels.option[at]
            at = int(labels.origin[at])
        return column
