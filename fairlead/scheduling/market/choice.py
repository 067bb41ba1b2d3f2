"""Who gets which gang: prices per device type until demand meets what is there, then whole gangs by worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fairlead.scheduling.market.offers import Floats, Ints
from fairlead.scheduling.market.rules import Rules

ROUNDS = 60
"""Steps of the price iteration; the step length falls geometrically."""

LOOKS = (29, 44, 59)
"""After these steps the prices are tried out with whole gangs; the best outcome counts."""

FEW = 2_000
"""Beyond so many jobs only the last prices are tried out: there they are close enough to the bound."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Utility of every offer (0: not possible), what it takes, and what there is.

    ``budget`` is what each group of jobs (a tenant) may use before all others have theirs; ``ceiling`` what it may use
    at all. A gang fits a budget if ``share`` of it does: so whole gangs are rounded to budgets, not cut off at them.
    """

    utility: Floats
    kind: Ints
    size: Ints
    capacity: Floats
    group: Ints
    budget: Floats
    ceiling: Floats
    share: Floats  # by job
    first: Ints  # the column that a job is given before anybody bids; -1 for none
    rules: Rules | None = None  # of groups above and below each other; None: they stand side by side

    @property
    def jobs(self) -> int:
        return len(self.utility)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The column that each job gets, -1 for none; the prices per device and type; the sum of utilities."""

    column: Ints
    price: Floats
    utility: float


def choose(problem: Problem, desk: Callable[[Problem], Desk] | None = None) -> Chosen:
    """The best of some outcomes along the price iteration, repaired to whole gangs that fit at this kind of desk."""
    if not problem.jobs or not len(problem.capacity):
        return Chosen(np.full(problem.jobs, -1), np.zeros(len(problem.capacity)), 0.0)
    rows = np.arange(problem.jobs)
    price, toll = np.full(len(problem.capacity), going_price(problem)), np.zeros(len(problem.budget))
    unit = float(price.mean())
    best: Chosen | None = None
    for step in range(ROUNDS):
        surplus = problem.utility - (price[problem.kind] + tolls(problem, toll)[:, None]) * problem.size
        wish = surplus.argmax(axis=1)
        wants = surplus[rows, wish] > 0
        taken = problem.size[rows, wish] * wants
        demand = np.bincount(problem.kind[rows, wish], taken, minlength=len(price))
        stride = 0.5 * 0.93**step + 0.02
        price = price * np.exp(np.clip(stride * (demand / np.maximum(problem.capacity, 1.0) - 1.0), -1.0, 1.0))
        if len(toll) > 1:
            by_group = by_groups(problem, taken)
            over = np.clip(by_group / np.maximum(problem.budget, 1.0) - 1.0, -1.0, 1.0)
            toll = np.maximum(0.0, toll + unit * stride * over)
        if step == ROUNDS - 1 or (step in LOOKS and problem.jobs <= FEW):
            found = filled(problem, price, toll, (desk or Desk)(problem))
            if best is None or found.utility > best.utility * (1 + 1e-12):
                best = found
    assert best is not None
    return best


def going_price(problem: Problem) -> float:
    """What a device is worth to the last job that would get any, if all devices were alike."""
    density = problem.utility / np.maximum(problem.size, 1)
    best = density.argmax(axis=1)
    rows = np.arange(problem.jobs)
    order = np.argsort(-density[rows, best], kind="stable")
    reach = np.cumsum(problem.size[rows, best][order])
    last = min(int(np.searchsorted(reach, problem.capacity.sum())), problem.jobs - 1)
    return max(float(density[rows, best][order[last]]), 1e-12)


def tolls(problem: Problem, toll: Floats) -> Floats:
    """What a device costs each job beside the price: the toll of its group, and of those above it."""
    if problem.rules is None:
        return toll[problem.group]
    return problem.rules.stacked(toll)[problem.group] * problem.rules.charge


def by_groups(problem: Problem, taken: Ints) -> Floats:
    """Devices by group, with all below it, as they are charged for."""
    if problem.rules is None:
        return np.bincount(problem.group, taken, minlength=len(problem.budget)).astype(np.float64)
    charged = np.bincount(problem.group, taken * problem.rules.charge, minlength=len(problem.budget))
    return problem.rules.rolled(charged.astype(np.float64))


def filled(problem: Problem, price: Floats, toll: Floats, desk: Desk) -> Chosen:
    """Whole gangs by surplus per device at these prices; then whoever still fits; then larger gangs."""
    rows = np.arange(problem.jobs)
    cost = price[problem.kind] + tolls(problem, toll)[:, None]
    surplus = np.where(problem.utility > 0, problem.utility - cost * problem.size, -np.inf)
    first = surplus.argmax(axis=1)
    keen = surplus[rows, first] / np.maximum(problem.size[rows, first], 1)
    desk.secure()
    for job in np.nonzero(problem.first >= 0)[0].tolist():
        desk.oblige(job, int(problem.first[job]))
    for job in np.argsort(-keen, kind="stable").tolist():
        if keen[job] <= 0 or not desk.room:
            break
        if desk.column[job] < 0:
            desk.give(job, surplus[job])
    if len(problem.budget) > 1:  # everybody up to its budget, whatever the prices; then budgets end
        for level in desk.levels:
            desk.fill()
            desk.grow()
            desk.lend(level)
    desk.fill()
    desk.grow()
    column = np.array(desk.column, dtype=np.int64)
    got = column >= 0
    return Chosen(column, price, float(problem.utility[rows[got], column[got]].sum()))


class Desk:
    """Hands out whole gangs and keeps count of what is free, by type and by group."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.column = [-1] * problem.jobs
        self.free: list[float] = problem.capacity.tolist()
        self.left: list[float] = problem.budget.tolist()
        self.most: list[float] = problem.ceiling.tolist()
        self.share: list[float] = problem.share.tolist()

    levels: tuple[int, ...] = (0,)

    def secure(self) -> None:
        """Before anybody bids: nothing is guaranteed where groups stand side by side."""

    def lend(self, level: int = 0) -> None:
        """From now on budgets do not count: what is left is for whoever bids most."""
        self.left = [np.inf] * len(self.left)

    @property
    def room(self) -> bool:
        return any(free >= 1 for free in self.free)

    def oblige(self, job: int, column: int) -> None:
        """This gang, or one of the same size on another type; whatever its group's budget says."""
        problem, group = self.problem, int(self.problem.group[job])
        size = int(problem.size[job, column])
        same = np.nonzero((problem.size[job] == size) & (problem.utility[job] > 0))[0]
        for other in (column, *same[np.argsort(-problem.utility[job, same], kind="stable")].tolist()):
            if size <= self.free[int(problem.kind[job, other])] and size <= self.most[group]:
                self._take(job, other, int(problem.kind[job, other]), size)
                return

    def give(self, job: int, liking: Floats) -> bool:
        """The gang it likes best among those that fit and are possible."""
        problem, group = self.problem, int(self.problem.group[job])
        for column in np.argsort(-liking, kind="stable").tolist():
            if liking[column] <= 0:
                return False
            kind, size = int(problem.kind[job, column]), int(problem.size[job, column])
            fits = size <= self.free[kind] and size <= self.most[group]
            if fits and problem.utility[job, column] > 0 and size * self.share[job] <= self.left[group] + 1e-9:
                self._take(job, column, kind, size)
                return True
        return False

    def _take(self, job: int, column: int, kind: int, size: int) -> None:
        before = self.column[job]
        if before >= 0:
            back = int(self.problem.size[job, before])
            self.free[int(self.problem.kind[job, before])] += back
            self._count(job, back)
        self.column[job] = column
        self.free[kind] -= size
        self._count(job, -size)

    def _count(self, job: int, devices: int) -> None:
        group = int(self.problem.group[job])
        self.left[group] += devices
        self.most[group] += devices

    def fill(self) -> None:
        """Whoever has nothing and fits, by utility per device."""
        per_device = self.problem.utility / np.maximum(self.problem.size, 1)
        density = per_device.max(axis=1)
        for job in np.argsort(-density, kind="stable").tolist():
            if density[job] <= 0 or not self.room:
                return
            if self.column[job] < 0:
                self.give(job, per_device[job])

    def grow(self) -> None:
        """Larger or better gangs for who has one, by utility per further device, until nothing fits."""
        problem = self.problem
        rows = np.array([job for job, column in enumerate(self.column) if column >= 0], dtype=np.int64)
        if not len(rows) or problem.utility.shape[1] < 2:
            return
        utility, size, kind = problem.utility[rows], problem.size[rows], problem.kind[rows]
        for _ in range(4 * int(problem.capacity.sum()) if len(rows) < 500 else 200):
            if not self.room:
                return
            has = np.array([self.column[job] for job in rows.tolist()])
            at = np.arange(len(rows))
            gain = utility - utility[at, has][:, None]
            back = np.where(kind == kind[at, has][:, None], size[at, has][:, None], 0)
            more = size - size[at, has][:, None]
            limit = self._limit(rows, kind, size[at, has], back)
            fits = (size - back <= np.array(self.free)[kind]) & (more <= limit + 1e-9)
            worth = np.where(fits & (gain > 1e-12), gain / np.maximum(size - back, 0.25), 0.0)
            best = int(worth.argmax())
            if worth.flat[best] <= 0:
                return
            row, column = divmod(best, utility.shape[1])
            self._take(int(rows[row]), column, int(kind[row, column]), int(size[row, column]))

    def _limit(self, rows: Ints, kind: Ints, has: Ints, back: Ints) -> Floats:
        """How much larger each gang may become; by type where that makes a difference."""
        return np.minimum(self.left, self.most)[self.problem.group[rows]][:, None]
