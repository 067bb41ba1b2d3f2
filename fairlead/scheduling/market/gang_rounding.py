"""Where whole gangs are handed out: keeps count of what is free, by type and by group of jobs."""

from __future__ import annotations

import numpy as np

from fairlead.scheduling.market.menus import Bools, Floats, Ints
from fairlead.scheduling.market.problem import Problem

MANY = 500
"""Of so many gangs only ``GROWN`` are made larger one by one; of fewer as many as there is room for."""

GROWN = 200

REFUSED = 16
"""After so many refusals in a row, whoever does not fit any more is passed over at once."""


class GangRounding:
    """Hands out whole gangs and keeps count of what is free, by type and by group."""

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

    def secure(self) -> None:
        """Before anybody bids: nothing is guaranteed where groups stand side by side."""

    def round_to_gangs(self, yes: bool) -> None:
        """Whether a part of a gang is enough to fit a budget, or all of it has to."""
        self._shares = self.problem.share if yes else np.ones(self.problem.jobs)
        self.share = self._shares.tolist()

    def lend(self, level: int = 0) -> None:
        """From now on budgets do not count: what is left is for whoever bids most."""
        self.left = [np.inf] * len(self.left)

    @property
    def room(self) -> bool:
        return max(self.free) >= 1

    def oblige(self, job: int, column: int) -> None:
        """This gang, or one of the same size on another type; whatever its group's budget says."""
        problem, group = self.problem, int(self.problem.group[job])
        size = int(problem.size[job, column])
        same = np.nonzero((problem.size[job] == size) & (problem.utility[job] > 0))[0]
        for other in (column, *same[np.argsort(-problem.utility[job, same], kind="stable")].tolist()):
            if size <= self.free[int(problem.kind[job, other])] and size <= self.most[group]:
                self._take(job, other, int(problem.kind[job, other]), size)
                return

    def give(self, job: int, liking: Floats, best: int) -> bool:
        """The gang it likes best among those that fit and are possible; ``best`` is the column it likes most."""
        if self._try(job, best, float(liking[best])):  # nearly always: there is no need to sort the others
            return True
        likes = liking.tolist()
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
        """Whoever has nothing and fits, by utility per device."""
        if not self.room:
            return
        per_device, density, order = self.problem.by_density
        self.serve(order[(self.column[order] < 0) & (density[order] > 0)], per_device)

    def round_up(self) -> None:
        """Who has nothing and is covered by its group's budget in part: those first of whom most is.

        So it is not always the same groups, those whose jobs bid most, that are rounded up: what a group was denied is
        in its budget later, and then its gang is next.
        """
        problem = self.problem
        per_device, density, order = problem.by_density
        jobs = order[(self.column[order] < 0) & (density[order] > 0)]
        least = problem.least[jobs]
        left = self._covered()[problem.group[jobs]]
        self.serve(jobs[np.argsort(-(left / (least * self._shares[jobs])), kind="stable")], per_device)

    def _covered(self) -> Floats:
        """What is left of each group's budget."""
        return np.array(self.left)

    def serve(self, jobs: Ints, liking: Floats) -> None:
        """These jobs in this order, if they have nothing; each the gang it likes best by its row of ``liking``."""
        jobs = self._fitting(jobs[self.column[jobs] < 0]) if self.room else jobs[:0]
        while len(jobs):
            jobs = jobs[self._served(jobs, liking) :]
            jobs = self._fitting(jobs) if len(jobs) else jobs

    def _served(self, jobs: Ints, liking: Floats) -> int:
        """Goes through the jobs until many in a row are refused, or nothing is left; says how far it came."""
        refused = 0
        for at, (job, best) in enumerate(zip(jobs.tolist(), liking[jobs].argmax(axis=1).tolist(), strict=True)):
            if not self.give(job, liking[job], best):
                refused += 1
                if refused >= REFUSED:
                    return at + 1
            elif self.room:
                refused = 0
            else:
                break
        return len(jobs)

    def _fitting(self, jobs: Ints) -> Ints:
        """Those of the jobs that some gang is free for."""
        problem = self.problem
        size = problem.size[jobs]
        fits = problem.possible[jobs] & (size <= np.array(self.free)[problem.kind[jobs]])
        return jobs[(fits & self._affordable(jobs, size)).any(axis=1)]

    def _affordable(self, jobs: Ints, size: Ints) -> Bools:
        """Which sizes are within what the jobs' groups may have."""
        group = self.problem.group[jobs]
        left, most = np.array(self.left)[group] + 1e-9, np.array(self.most)[group]
        return (size * self._shares[jobs][:, None] <= left[:, None]) & (size <= most[:, None])

    def grow(self) -> None:
        """Larger or better gangs for who has one, by utility per further device, until nothing fits."""
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
            # who could not grow cannot do so now either, unless something became free
            rows = everybody if kind != before or sum(self.free) > free else rows[worth.max(axis=1) > 0]

    def moved(self) -> None:
        """After a gang got another type: who comes first to what it left. Nobody, where groups stand side by side."""

    def _worth_of_growth(self, rows: Ints) -> Floats:
        """By job and column, the utility per further device that the change would bring; 0 where it is not possible."""
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
        """How much larger each gang may become; by type where that makes a difference."""
        return np.minimum(self.left, self.most)[self.problem.group[rows]][:, None]
