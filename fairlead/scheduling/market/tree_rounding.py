"""Hands out whole gangs in a tree of queues: guarantees, limits by type, lending to siblings first."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from math import inf, isfinite

import numpy as np

from fairlead.scheduling.market.gang_choice import GangRounding, Problem
from fairlead.scheduling.market.guarantees import StraddlingJob, straddling_jobs
from fairlead.scheduling.market.offers import Floats, Ints


class TreeRounding(GangRounding):
    """Counts devices for a job's queue and for all queues above it."""

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
        self.typed_at = [queue for queue in range(queues) if named[queue]]  # the others have no limits by type
        self.nowhere = [inf] * len(problem.capacity)
        self.guaranteed: list[list[float]] = rules.guaranteed.tolist()
        self.levels = tuple(range(int(rules.depth.max(initial=0)), -1, -1))
        self.kept: list[tuple[StraddlingJob, float]] = []  # partly guaranteed gangs, and the devices kept for each
        self.opened: list[int] | None = None  # while guarantees are handed out: by queue its guarantor, -1: none
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
        """Budgets of this level do not count any more: devices unused below a queue are lent to others below it."""
        self.soft = [inf if depth >= level else left for depth, left in zip(self.rules.depth, self.soft, strict=True)]
        self._complete(last=level == 0)

    def give_guarantees(self) -> None:
        """Hand out guarantees, the deepest queues first; what a queue's teams leave goes to the queues below it."""
        for _ in self._guaranteed():
            self.fill()
            self.grow()
        self._keep()

    def _guaranteed(self) -> Iterator[int]:
        """Yields each tier with guarantees, the deepest first; meanwhile only guaranteed devices can be given."""
        for level in self.levels:
            if self.rules.guaranteed[self.rules.depth == level].any():
                self.opened = [path[len(path) - 1 - level] if len(path) > level else -1 for path in self.paths]
                yield level
        self.opened = None

    def moved(self) -> None:
        """Give devices that a gang left for a better type to waiting jobs that they are guaranteed to."""
        opened = self.opened
        for _ in self._guaranteed():
            self.fill()
        self.opened = opened

    def _keep(self) -> None:
        """Keep the rest of a guarantee that is too small for a waiting gang until it can borrow what is missing.

        So a borrower of these devices gives them back, and the gang starts once its missing devices can be lent.
        """
        for waits in straddling_jobs(self.problem, self.column, np.array(self.guaranteed)):
            amount = min(float(waits.left), self.free[waits.kind])
            if amount > 0:
                self.free[waits.kind] -= amount
                self.kept.append((waits, amount))

    def _complete(self, *, last: bool) -> None:
        """Give partly guaranteed gangs their devices if the missing ones are free; last, lend what was kept."""
        kept, self.kept = self.kept, []
        for waits, amount in kept:
            self.free[waits.kind] += amount
            if (
                self.column[waits.job] >= 0
                or self.give(waits.job, waits.preference, int(waits.preference.argmax()))
                or last
            ):
                continue
            self.free[waits.kind] -= amount
            self.kept.append((waits, amount))

    def room_of(self, queue: int, kind: int) -> float:
        """Devices of a type that a queue may still take."""
        room: float = min([self.free[kind], *[self.typed[at][kind] for at in self.limited[queue]]])
        if self.opened is None or self.opened[queue] < 0:
            return room
        return min(room, self.guaranteed[self.opened[queue]][kind])

    def room_within(self, queue: int) -> tuple[float, float]:
        """What a queue may still take in charged devices, and in devices."""
        path = self.paths[queue]
        if self.opened is None:
            return min([self.soft[at] for at in path]), min([self.hard[at] for at in path])
        return inf, 0.0 if self.opened[queue] < 0 else min([self.hard[at] for at in path])

    def rooms(self) -> tuple[Floats, Floats, Floats]:
        """The same for all queues: charged devices, devices, and devices of each type."""
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
        guaranteed = np.array([*self.guaranteed, self.nowhere])[whose]
        return np.full(len(paths), inf), np.where(whose < 0, 0.0, hard), np.minimum(by_type, guaranteed)

    def _fitting(self, jobs: Ints) -> Ints:
        """The jobs with a gang that fits."""
        problem, group = self.problem, self.problem.group[jobs]
        soft, hard, by_type = self.rooms()
        size = problem.size[jobs]
        fits = problem.possible[jobs] & (size <= by_type.ravel().take(problem.cell[jobs]))
        fits &= size * self._shares[jobs][:, None] <= soft[group][:, None] + 1e-9
        return jobs[(fits & (size <= hard[group][:, None])).any(axis=1)]

    def give(self, job: int, preference: Floats, best: int) -> bool:
        queue, least, share = self.group[job], self.least[job], self.share[job]
        soft, hard = self.room_within(queue)
        if least > hard or least * share > soft + 1e-9 or least > max(self.free):
            return False
        likes = preference.tolist()
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

    def give_mandatory(self, job: int, column: int) -> None:
        """Give this gang, or one of the same size on another type; guarantees count, budgets do not."""
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
            self.guaranteed[queue][kind] -= devices

    def _limit(self, rows: Ints, kind: Ints, has: Ints, back: Ints) -> Floats:
        group = self.problem.group[rows]
        soft, hard, by_type = self.rooms()
        limit = np.minimum(hard[group], soft[group] / self.rules.charge[rows])
        of_type = np.take_along_axis(by_type[group], kind, axis=1) + back - has[:, None]
        return np.asarray(np.minimum(limit[:, None], of_type), dtype=np.float64)


def _others(likes: list[float]) -> Iterator[int]:
    """All columns but the most preferred, by preference; sorted lazily, as most callers stop at once."""
    yield from sorted(range(len(likes)), key=likes.__getitem__, reverse=True)[1:]
