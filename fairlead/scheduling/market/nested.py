"""The desk where queues stand above and below each other: guarantees, limits by type, lending to siblings first."""

from __future__ import annotations

import numpy as np

from fairlead.scheduling.market.choice import Desk, Problem
from fairlead.scheduling.market.offers import Floats, Ints


class Nested(Desk):
    """Keeps count for a job's queue and for all above it; the arrays have one more row, for paths that end early."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        assert problem.rules is not None
        self.rules = rules = problem.rules
        self.group = problem.group.tolist()
        self.charge: list[float] = rules.charge.tolist()
        self.share = [share * charge for share, charge in zip(self.share, self.charge, strict=True)]
        kinds = len(problem.capacity)
        self.soft = np.append(problem.budget, np.inf)
        self.hard = np.append(problem.ceiling, np.inf)
        self.typed = np.vstack([rules.most, np.full((1, kinds), np.inf)])
        self.sure = np.vstack([rules.sure, np.zeros((1, kinds))])
        self.levels = tuple(range(int(rules.depth.max(initial=0)), -1, -1))
        self.opened: Ints = np.zeros(0, dtype=np.int64)  # whose guarantee is handed out to each queue, -1 for none
        self.allowed: Floats | None = None  # by queue and type, while guarantees are handed out

    def lend(self, level: int = 0) -> None:
        """Budgets of this level do not count any more: what is left below a queue is for whoever else is below it."""
        self.soft[:-1][self.rules.depth >= level] = np.inf

    def secure(self) -> None:
        """What is guaranteed, to the deepest queues first; what a queue's teams leave of its own, to all below it."""
        if not self.rules.sure.any():
            return
        for level in self.levels:
            if self.rules.sure[self.rules.depth == level].any():
                self._open(level)
                self.fill()
                self.grow()
        self.allowed = None

    def _open(self, level: int) -> None:
        depth, paths = self.rules.depth, self.rules.paths
        at = np.where(depth >= level, np.take_along_axis(paths, np.maximum(depth - level, 0)[:, None], 1)[:, 0], -1)
        self.opened = np.asarray(at, dtype=np.int64)
        self._allow()

    def _allow(self) -> None:
        self.allowed = np.where((self.opened >= 0)[:, None], self.sure[self.opened], 0.0)

    def give(self, job: int, liking: Floats) -> bool:
        group = self.group[job]
        path = self.rules.paths[group]
        room = self.typed[path].min(axis=0)
        if self.allowed is not None:
            room = np.minimum(room, self.allowed[group])
        if not (room >= 1.0).any():
            return False
        self.most[group] = float(self.hard[path].min())
        self.left[group] = float(self.soft[path].min()) if self.allowed is None else np.inf
        problem = self.problem
        return super().give(job, np.where(problem.size[job] <= room[problem.kind[job]], liking, -np.inf))

    def oblige(self, job: int, column: int) -> None:
        """This gang, or one of the same size on another type, beyond what it was guaranteed; budgets do not count."""
        problem, path = self.problem, self.rules.paths[self.group[job]]
        size, before = int(problem.size[job, column]), self.column[job]
        has = 0 if before < 0 else int(problem.size[job, before])
        if has >= size:
            return
        same = np.nonzero((problem.size[job] == size) & (problem.utility[job] > 0))[0]
        room, most = self.typed[path].min(axis=0), float(self.hard[path].min())
        for other in (column, *same[np.argsort(-problem.utility[job, same], kind="stable")].tolist()):
            kind = int(problem.kind[job, other])
            more = size - (has if before >= 0 and problem.kind[job, before] == kind else 0)
            if more <= self.free[kind] and size - has <= most and more <= room[kind]:
                self._take(job, other, kind, size)
                return

    def _take(self, job: int, column: int, kind: int, size: int) -> None:
        before = self.column[job]
        super()._take(job, column, kind, size)
        if before >= 0:
            self._note(job, int(self.problem.kind[job, before]), -int(self.problem.size[job, before]))
        self._note(job, kind, size)
        if self.allowed is not None:
            self._allow()

    def _note(self, job: int, kind: int, devices: int) -> None:
        path = self.rules.paths[self.group[job]]
        path = path[path < len(self.rules.paths)]
        self.soft[path] -= devices * self.charge[job]
        self.hard[path] -= devices
        self.typed[path, kind] -= devices
        self.sure[path, kind] -= devices

    def _limit(self, rows: Ints, kind: Ints, has: Ints, back: Ints) -> Floats:
        group = self.problem.group[rows]
        paths = self.rules.paths[group]
        limit = self.hard[paths].min(axis=1)
        if self.allowed is None:
            limit = np.minimum(limit, self.soft[paths].min(axis=1) / self.rules.charge[rows])
        room = self.typed[paths].min(axis=1)
        if self.allowed is not None:
            room = np.minimum(room, self.allowed[group])
        by_type = np.take_along_axis(room, kind, axis=1) + back - has[:, None]
        return np.asarray(np.minimum(limit[:, None], by_type), dtype=np.float64)
