"""Hands out whole gangs and counts the free devices by type, and the budgets by group of jobs."""

from __future__ import annotations

import numpy as np

from fairlead.scheduling.market.menus import Bools, Floats, Ints
from fairlead.scheduling.market.problem import Problem

MANY = 500
"""With so many gangs only ``GROWN`` growth steps are made; with fewer as many as there is room for."""

GROWN = 200

REFUSED = 16
"""After so many refusals in a row, all jobs that no longer fit are skipped at once."""


class GangRounding:
    """Hands out whole gangs to jobs of groups that stand side by side."""

    levels: tuple[int, ...] = (0,)

    def __init__(self, problem: Problem, column: Ints | None = None) -> None:
        self.problem = problem
        self.column: Ints = np.full(problem.jobs, -1, dtype=np.int64) if column is None else column.copy()
        jobs = np.nonzero(self.column >= 0)[0]
        sizes = problem.size[jobs, self.column[jobs]]
        in_groups = np.bincount(problem.group[jobs], sizes, len(problem.budget))
        in_types = np.bincount(problem.kind[jobs, self.column[jobs]], sizes, len(problem.capacity))
        self.free: list[float] = (problem.capacity - in_types).tolist()
        self.left: list[float] = (problem.budget - in_groups).tolist()
        self.most: list[float] = (problem.ceiling - in_groups).tolist()
        self.share: list[float] = problem.share.tolist()
        self._shares: Floats = problem.share
        self._kinds, self._sizes, self._possible, self._groups = problem.lists
        self._wide = problem.utility.shape[1]

    def give_guarantees(self) -> None:
        """Hand out guaranteed devices before the bidding; groups side by side have none."""

    def round_to_gangs(self, yes: bool) -> None:
        """Set whether a part of a gang is enough to fit a budget, or the whole gang must fit."""
        self._shares = self.problem.share if yes else np.ones(self.problem.jobs)
        self.share = self._shares.tolist()

    def lend(self, level: int = 0) -> None:
        """Budgets do not count from now on: unused devices go to the highest bids."""
        self.left = [np.inf] * len(self.left)

    @property
    def room(self) -> bool:
        return max(self.free) >= 1

    def give_mandatory(self, job: int, column: int) -> None:
        """Give a job this gang, or one of the same size on another type, beyond its group's budget if need be."""
        problem, group = self.problem, int(self.problem.group[job])
        size = int(problem.size[job, column])
        same = np.nonzero((problem.size[job] == size) & (problem.utility[job] > 0))[0]
        for other in (column, *same[np.argsort(-problem.utility[job, same], kind="stable")].tolist()):
            if size <= self.free[int(problem.kind[job, other])] and size <= self.most[group]:
                self._take(job, other, int(problem.kind[job, other]), size)
                return

    def give(self, job: int, preference: Floats, best: int) -> bool:
        """Give a job the fitting gang with the highest preference; ``best`` is the column it prefers most."""
        if self._try(job, best, float(preference[best])):  # nearly always enough, without sorting the others
            return True
        likes = preference.tolist()
        for column in sorted(range(len(likes)), key=likes.__getitem__, reverse=True)[1:]:  # equals stay in order
            if likes[column] <= 0:
                return False
            if self._try(job, column, likes[column]):
                return True
        return False

    def _try(self, job: int, column: int, liked: float) -> bool:
        offer = job * self._wide + column
        if liked <= 0 or not self._possible[offer]:
            return False
        group, kind, size = self._groups[job], self._kinds[offer], self._sizes[offer]
        if size > self.free[kind] or size > self.most[group] or size * self.share[job] > self.left[group] + 1e-9:
            return False
        self._take(job, column, kind, size)
        return True

    def _take(self, job: int, column: int, kind: int, size: int) -> None:
        before = int(self.column[job])
        if before >= 0:
            offer = job * self._wide + before
            back = self._sizes[offer]
            self.free[self._kinds[offer]] += back
            self._count(job, back)
        self.column[job] = column
        self.free[kind] -= size
        self._count(job, -size)

    def _count(self, job: int, devices: int) -> None:
        group = self._groups[job]
        self.left[group] += devices
        self.most[group] += devices

    def fill(self) -> None:
        """Give gangs to jobs without one that fit, by utility per device."""
        if not self.room:
            return
        per_device, density, order = self.problem.by_density
        self.serve(order[(self.column[order] < 0) & (density[order] > 0)], per_device)

    def round_up(self) -> None:
        """Give gangs to jobs that their group's budget covers in part, the largest covered part first.

        So it is not always the groups with the highest bids that are rounded up: a denied group has a larger budget
        later, and then its gang is next.
        """
        problem = self.problem
        per_device, density, order = problem.by_density
        jobs = order[(self.column[order] < 0) & (density[order] > 0)]
        least = problem.least[jobs]
        left = self._covered()[problem.group[jobs]]
        self.serve(jobs[np.argsort(-(left / (least * self._shares[jobs])), kind="stable")], per_device)

    def _covered(self) -> Floats:
        """The rest of each group's budget."""
        return np.array(self.left)

    def serve(self, jobs: Ints, preference: Floats) -> None:
        """Give each of these jobs without a gang, in this order, its most preferred fitting gang."""
        jobs = self._fitting(jobs[self.column[jobs] < 0]) if self.room else jobs[:0]
        while len(jobs):
            jobs = jobs[self._served(jobs, preference) :]
            jobs = self._fitting(jobs) if len(jobs) else jobs

    def _served(self, jobs: Ints, preference: Floats) -> int:
        """Serve the jobs until many in a row are refused, or nothing is left; returns how many it looked at."""
        refused = 0
        for at, (job, best) in enumerate(zip(jobs.tolist(), preference[jobs].argmax(axis=1).tolist(), strict=True)):
            if not self.give(job, preference[job], best):
                refused += 1
                if refused >= REFUSED:
                    return at + 1
            elif self.room:
                refused = 0
            else:
                break
        return len(jobs)

    def _fitting(self, jobs: Ints) -> Ints:
        """The jobs with a gang that fits."""
        problem = self.problem
        size = problem.size[jobs]
        fits = problem.possible[jobs] & (size <= np.array(self.free)[problem.kind[jobs]])
        return jobs[(fits & self._affordable(jobs, size)).any(axis=1)]

    def _affordable(self, jobs: Ints, size: Ints) -> Bools:
        """The sizes that the jobs' groups can afford."""
        group = self.problem.group[jobs]
        left, most = np.array(self.left)[group] + 1e-9, np.array(self.most)[group]
        return (size * self._shares[jobs][:, None] <= left[:, None]) & (size <= most[:, None])

    def grow(self) -> None:
        """Give running gangs larger or better offers, by utility per further device, until nothing fits."""
        problem = self.problem
        everybody = np.nonzero(self.column >= 0)[0]
        if not len(everybody) or problem.utility.shape[1] < 2:
            return
        rows = everybody
        for _ in range(4 * int(problem.capacity.sum()) if len(everybody) < MANY else GROWN):
            if not self.room:
                return
            worth = self._worth_of_growth(rows)
            best = int(worth.argmax())
            if worth.flat[best] <= 0:
                return
            row, column = divmod(best, worth.shape[1])
            job, free = int(rows[row]), sum(self.free)
            before = int(problem.kind[job, self.column[job]])
            kind, size = int(problem.kind[job, column]), int(problem.size[job, column])
            self._take(job, column, kind, size)
            if kind != before:
                self.moved()
            # a job that could not grow still cannot, unless devices became free
            rows = everybody if kind != before or sum(self.free) > free else rows[worth.max(axis=1) > 0]

    def moved(self) -> None:
        """Called after a gang changed its type; a tree gives guaranteed devices that it left to their owners."""

    def _worth_of_growth(self, rows: Ints) -> Floats:
        """By job and column, the utility gained per further device; 0 where the change is not possible."""
        problem = self.problem
        utility, size, kind = problem.utility[rows], problem.size[rows], problem.kind[rows]
        at, has = np.arange(len(rows)), self.column[rows]
        gain = utility - utility[at, has][:, None]
        back = np.where(kind == kind[at, has][:, None], size[at, has][:, None], 0)
        more = size - size[at, has][:, None]
        limit = self._limit(rows, kind, size[at, has], back)
        fits = (size - back <= np.array(self.free)[kind]) & (more <= limit + 1e-9)
        return np.where(fits & (gain > 1e-12), gain / np.maximum(size - back, 0.25), 0.0)

    def _limit(self, rows: Ints, kind: Ints, has: Ints, back: Ints) -> Floats:
        """How many devices more each gang may take, by type where types have limits."""
        return np.minimum(self.left, self.most)[self.problem.group[rows]][:, None]
