"""The desk where queues stand above and below each other: guarantees, limits by type, lending to siblings first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import inf, isfinite

import numpy as np

from fairlead.scheduling.market.gang_choice import GangRounding, Problem
from fairlead.scheduling.market.guarantees import StraddlingJob, straddling
from fairlead.scheduling.market.offers import Floats, Ints


class TreeRounding(GangRounding):
    """Keeps count for a job's queue and for all above it."""

    def __init__(self, problem: Problem, column: Ints | None = None) -> None:
        super().__init__(problem, column)
        assert problem.rules is not None
        self.rules = rules = problem.rules
        self.group: list[int] = problem.group.tolist()
        self.charge: list[float] = rules.charge.tolist()
        self.round_to_gangs(True)
        queues = len(rules.paths)
        self.paths = [tuple(queue for queue in path if queue < queues) for path in rules.paths.tolist()]
        self.soft, self.hard = problem.budget.tolist(), problem.ceiling.tolist()
        self.typed: list[list[float]] = rules.most.tolist()
        named = [any(isfinite(amount) for amount in amounts) for amounts in self.typed]
        self.limited = [tuple(queue for queue in path if named[queue]) for path in self.paths]  # by type
        self.typed_at = [queue for queue in range(queues) if named[queue]]  # the others' are infinite, and stay so
        self.nowhere = [inf] * len(problem.capacity)
        self.sure: list[list[float]] = rules.sure.tolist()
        self.levels = tuple(range(int(rules.depth.max(initial=0)), -1, -1))
        self.kept: list[
            tuple[StraddlingJob, float]
        ] = []  # gangs of which a part is guaranteed, and what is kept for each
        self.opened: list[int] | None = None  # while guarantees are handed out: whose to each queue, -1 for nobody's
        self.least: list[int] = problem.least.tolist()
        for job in np.nonzero(self.column >= 0)[0].tolist():
            has = int(self.column[job])
            self._note(job, int(problem.kind[job, has]), int(problem.size[job, has]))

    def round_to_gangs(self, yes: bool) -> None:
        super().round_to_gangs(yes)
        self._shares = self._shares * self.rules.charge
        self.share = self._shares.tolist()

    def _covered(self) -> Floats:
        return self.rooms()[0]

    def lend(self, level: int = 0) -> None:
        """Budgets of this level do not count any more: what is left below a queue is for whoever else is below it."""
        self.soft = [inf if depth >= level else left for depth, left in zip(self.rules.depth, self.soft, strict=True)]
        self._complete(last=level == 0)

    def secure(self) -> None:
        """What is guaranteed, to the deepest queues first; what a queue's teams leave of its own, to all below it."""
        for _ in self._guaranteed():
            self.fill()
            self.grow()
        self._keep()

    def _guaranteed(self) -> Iterator[int]:
        """Tier by tier, the deepest first, while only what is guaranteed on it can be had."""
        for level in self.levels:
            if self.rules.sure[self.rules.depth == level].any():
                self.opened = [path[len(path) - 1 - level] if len(path) > level else -1 for path in self.paths]
                yield level
        self.opened = None

    def moved(self) -> None:
        """Who moves to a better type may leave devices that are guaranteed to somebody who waits: it has them first."""
        opened = self.opened
        for _ in self._guaranteed():
            self.fill()
        self.opened = opened

    def _keep(self) -> None:
        """What is left of a guarantee, as it is too little for any gang that waits, is kept until others lend the rest.

        So whoever holds it meanwhile gives it back, and the gang starts as soon as the rest of it is nobody's share.
        """
        for waits in straddling(self.problem, self.column, np.array(self.sure)):
            amount = min(float(waits.left), self.free[waits.kind])
            if amount > 0:
                self.free[waits.kind] -= amount
                self.kept.append((waits, amount))

    def _complete(self, *, last: bool) -> None:
        """Gangs of which a part is guaranteed, if the rest is free by now; what is kept for them is lent at last."""
        kept, self.kept = self.kept, []
        for waits, amount in kept:
            self.free[waits.kind] += amount
            if self.column[waits.job] >= 0 or self.give(waits.job, waits.liking, int(waits.liking.argmax())) or last:
                continue
            self.free[waits.kind] -= amount
            self.kept.append((waits, amount))

    def room_of(self, queue: int, kind: int) -> float:
        """What a queue may still take of a type."""
        room: float = min([self.free[kind], *[self.typed[at][kind] for at in self.limited[queue]]])
        if self.opened is None or self.opened[queue] < 0:
            return room
        return min(room, self.sure[self.opened[queue]][kind])

    def room_within(self, queue: int) -> tuple[float, float]:
        """What a queue may still take as it is charged for, and in devices."""
        path = self.paths[queue]
        if self.opened is None:
            return min([self.soft[at] for at in path]), min([self.hard[at] for at in path])
        return inf, 0.0 if self.opened[queue] < 0 else min([self.hard[at] for at in path])

    def rooms(self) -> tuple[Floats, Floats, Floats]:
        """The same for all queues: as it is charged for, in devices, and of each type."""
        paths, free = self.rules.paths, np.array(self.free)
        hard = np.array([*self.hard, inf])[paths].min(axis=1)
        by_type = np.broadcast_to(free, (len(paths), len(free)))
        if self.typed_at:
            typed = np.full((len(paths) + 1, len(free)), inf)
            typed[self.typed_at] = [self.typed[queue] for queue in self.typed_at]
            by_type = np.minimum(typed[paths].min(axis=1), free)
        if self.opened is None:
            return np.array([*self.soft, inf])[paths].min(axis=1), hard, by_type
        whose = np.array(self.opened)
        sure = np.array([*self.sure, self.nowhere])[whose]
        return np.full(len(paths), inf), np.where(whose < 0, 0.0, hard), np.minimum(by_type, sure)

    def _fitting(self, jobs: Ints) -> Ints:
        """Those of the jobs that some gang is free for."""
        problem, group = self.problem, self.problem.group[jobs]
        soft, hard, by_type = self.rooms()
        size = problem.size[jobs]
        fits = problem.possible[jobs] & (size <= by_type.ravel().take(problem.cell[jobs]))
        fits &= size * self._shares[jobs][:, None] <= soft[group][:, None] + 1e-9
        return jobs[(fits & (size <= hard[group][:, None])).any(axis=1)]

    def give(self, job: int, liking: Floats, best: int) -> bool:
        queue, least, share = self.group[job], self.least[job], self.share[job]
        soft, hard = self.room_within(queue)
        if least > hard or least * share > soft + 1e-9 or least > max(self.free):
            return False
        likes = liking.tolist()
        for column in chain((best,), _others(likes)):
            if likes[column] <= 0:
                return False
            offer = job * self._wide + column
            size, kind = self._sizes[offer], self._kinds[offer]
            if size > hard or size * share > soft + 1e-9 or not self._possible[offer]:
                continue
            if size <= self.room_of(queue, kind):
                self._take(job, column, kind, size)
                return True
        return False

    def oblige(self, job: int, column: int) -> None:
        """This gang, or one of the same size on another type, beyond what it was guaranteed; budgets do not count."""
        problem = self.problem
        size, before = int(problem.size[job, column]), int(self.column[job])
        has = 0 if before < 0 else int(problem.size[job, before])
        if has >= size:
            return
        same = np.nonzero((problem.size[job] == size) & (problem.utility[job] > 0))[0]
        _, hard = self.room_within(self.group[job])
        for other in (column, *same[np.argsort(-problem.utility[job, same], kind="stable")].tolist()):
            kind = int(problem.kind[job, other])
            more = size - (has if before >= 0 and problem.kind[job, before] == kind else 0)
            if size - has <= hard and more <= self.room_of(self.group[job], kind):
                self._take(job, other, kind, size)
                return

    def _take(self, job: int, column: int, kind: int, size: int) -> None:
        before = int(self.column[job])
        super()._take(job, column, kind, size)
        if before >= 0:
            self._note(job, int(self.problem.kind[job, before]), -int(self.problem.size[job, before]))
        self._note(job, kind, size)

    def _note(self, job: int, kind: int, devices: int) -> None:
        for queue in self.paths[self.group[job]]:
            self.soft[queue] -= devices * self.charge[job]
            self.hard[queue] -= devices
            self.typed[queue][kind] -= devices
            self.sure[queue][kind] -= devices

    def _limit(self, rows: Ints, kind: Ints, has: Ints, back: Ints) -> Floats:
        group = self.problem.group[rows]
        soft, hard, by_type = self.rooms()
        limit = np.minimum(hard[group], soft[group] / self.rules.charge[rows])
        of_type = np.take_along_axis(by_type[group], kind, axis=1) + back - has[:, None]
        return np.asarray(np.minimum(limit[:, None], of_type), dtype=np.float64)


def _others(likes: list[float]) -> Iterator[int]:
    """All columns but the one that is liked most, in the order of liking, equals as they stand; sorted if asked for."""
    yield from sorted(range(len(likes)), key=likes.__getitem__, reverse=True)[1:]
