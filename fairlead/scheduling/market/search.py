"""Searches the best gangs for a few jobs together: extends partial choices and drops those that cannot win."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.scheduling.market.ceilings import QueueLimits
from fairlead.scheduling.market.menus import Bools, Floats, Ints
from fairlead.scheduling.market.problem import Problem

LABELS = 1_000
"""Partial choices followed at the same time; of more, the most promising ones."""

MIX = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5], dtype=np.uint64)
"""Odd multipliers of a hash of device counts: two different uses collide by chance only."""

FINE = 1_024.0
"""Resolution of charged devices in the hash, in parts of a device."""

NO_COLUMN = np.array([-1], dtype=np.int64)


@dataclass(slots=True)
class Labels:
    """Partial choices: their value, the devices they leave free, and the devices of the group at hand."""

    value: Floats
    free: Floats
    used: Floats
    origin: Ints
    option: Ints

    def of(self, keep: Ints) -> Labels:
        return Labels(self.value[keep], self.free[keep], self.used[keep], self.origin[keep], self.option[keep])


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a job: columns with worth, type and size; the last is no gang, where that is allowed."""

    column: Ints
    worth: Floats
    kind: Ints
    size: Ints


class Search:
    """Extends partial choices job by job, dropping those that cannot improve and duplicates in device use."""

    def __init__(
        self, problem: Problem, column: Ints, easiest: Ints, price: Floats, toll: Floats, surplus: Floats,
        nothing: Floats,
    ) -> None:  # fmt: skip
        self.problem, self.column, self.price, self.toll = problem, column, price, toll
        self.surplus, self.nothing = surplus, nothing
        biggest = np.where(np.isfinite(surplus[easiest]), problem.size[easiest], 0).max(axis=1)
        self.group = self._groups()
        self.order = easiest[np.lexsort((easiest, -biggest, self.group[easiest]))]
        self.ordered = self.group[self.order]
        stays = column.copy()
        stays[easiest] = -1
        self.rows = np.nonzero(stays >= 0)[0]  # jobs that keep their columns
        self.kinds, self.sizes = (table[self.rows, stays[self.rows]] for table in (problem.kind, problem.size))
        self.worth = problem.worth(stays)
        self.free = problem.capacity - np.bincount(self.kinds, self.sizes, len(problem.capacity))
        self._prepare()

    def _groups(self) -> Ints:
        """The group of each job; jobs of one group are searched together if ceilings matter."""
        self.ceilings = bool(np.isfinite(self.problem.ceiling).any())
        return self.problem.group if self.ceilings else np.zeros(self.problem.jobs, dtype=np.int64)

    def _prepare(self) -> None:
        ceiling = self.problem.ceiling
        self.used = np.bincount(self.group[self.rows], self.sizes, len(ceiling)).astype(np.float64)
        limited = self.toll > 0  # the rest of the ceilings is worth at most this
        self.spare = float(self.toll[limited] @ (ceiling - self.used)[limited]) if limited.any() else 0.0
        self.mix = np.resize(MIX, len(self.problem.capacity))

    def run(self, value: float, close: float) -> Ints:
        """The best choice found, or the present one if none is better by this factor."""
        order = self.order
        ahead = np.maximum(self.surplus[order].max(axis=1), self.nothing[order])
        ahead = np.concatenate((np.cumsum(ahead[::-1])[::-1], (0.0,)))
        none = np.zeros(0, dtype=np.int64)
        labels = Labels(np.array([self.worth]), self.free[None, :], np.zeros(1), none, none)
        kept: list[Labels] = []
        for at, job in enumerate(order.tolist()):
            self._enter(labels, at)
            found = self._step(labels, job, float(ahead[at + 1]), value * close)
            if found is None:
                return self.column
            labels = found
            kept.append(labels)
        best = int(labels.value.argmax())
        return self._traced(kept, best) if labels.value[best] > value else self.column

    def _enter(self, labels: Labels, at: int) -> None:
        """Before the job at this place: reset the count of its group's devices."""
        group = self.ordered
        if at == 0 or group[at] != group[at - 1]:
            labels.used = np.full(len(labels.value), self.used[group[at]])

    def _options(self, job: int) -> Options:
        problem = self.problem
        columns = np.nonzero(np.isfinite(self.surplus[job]))[0]
        may_wait = self.nothing[job] == 0.0
        columns = np.concatenate((columns, NO_COLUMN)) if may_wait else columns
        worth, kind, size = problem.utility[job, columns], problem.kind[job, columns], problem.size[job, columns]
        if may_wait:
            worth[-1], kind[-1], size[-1] = 0.0, 0, 0
        return Options(columns, worth, kind, size)

    def _step(self, labels: Labels, job: int, ahead: float, worse: float) -> Labels | None:
        """All partial choices extended by every option of this job."""
        may = self._options(job)
        kind, size = may.kind, may.size
        value = labels.value[:, None] + may.worth
        hope = value + (labels.free @ self.price)[:, None] + (ahead + self.spare - self.price[kind] * size)
        fits = (hope > worse) & (labels.free[:, kind] >= size)
        used = labels.used[:, None] + size
        if self.ceilings:
            fits &= used <= self.problem.ceiling[self.problem.group[job]]
        at, option = np.nonzero(fits)
        if not len(at):
            return None
        free = labels.free[at]
        free[np.arange(len(at)), kind[option]] -= size[option]
        found = Labels(value[at, option], free, used[at, option], at, may.column[option])
        return self._best(found, hope[at, option])

    def _best(self, labels: Labels, hope: Floats) -> Labels:
        """Of labels with equal use the most valuable one; of too many the most promising."""
        key = self._key(labels)
        order = np.lexsort((-labels.value, key))
        ordered = key[order]
        first = np.ones(len(order), dtype=bool)
        first[1:] = ordered[1:] != ordered[:-1]
        keep = order[first]
        if len(keep) > LABELS:
            keep = keep[np.argsort(-hope[keep], kind="stable")[:LABELS]]
        return labels.of(keep)

    def _key(self, labels: Labels) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """A hash of the device use of each label."""
        key = labels.free.astype(np.uint64) @ self.mix
        return key * MIX[0] + labels.used.astype(np.uint64) if self.ceilings else key

    def _traced(self, kept: list[Labels], at: int) -> Ints:
        column = self.column.copy()
        for job, labels in zip(self.order[::-1].tolist(), reversed(kept), strict=True):
            column[job] = labels.option[at]
            at = int(labels.origin[at])
        return column


class PathSearch(Search):
    """The search under limits of queues in a tree: the rest of each limit is tracked like free devices."""

    def __init__(
        self, problem: Problem, column: Ints, easiest: Ints, price: Floats, toll: Floats, surplus: Floats,
        nothing: Floats, limits: QueueLimits,
    ) -> None:  # fmt: skip
        self.limits = limits
        super().__init__(problem, column, easiest, price, toll, surplus, nothing)

    def _groups(self) -> Ints:
        return self.limits.place[self.problem.group]

    def _prepare(self) -> None:
        limits, kind, taken = self.limits, np.zeros(self.problem.jobs, dtype=np.int64), np.zeros(self.problem.jobs)
        kind[self.rows], taken[self.rows] = self.kinds, self.sizes
        self.free = np.concatenate((self.free, limits.amount - limits.used(self.problem, kind, taken)))
        self.rates = np.concatenate((self.price, self.toll))
        under = limits.covers[:, self.problem.group[self.order]].any(axis=2)
        last = np.where(under, np.arange(len(self.order)), -1).max(axis=1, initial=-1)
        self.last = np.concatenate((np.full(len(self.price), len(self.order)), last))
        self.mix = np.cumprod(np.full(len(self.free), MIX[0]))

    def _enter(self, labels: Labels, at: int) -> None:
        """Drop limits that count no further job, so that labels are merged."""
        labels.free[:, self.last < at] = 0.0

    def _step(self, labels: Labels, job: int, ahead: float, worse: float) -> Labels | None:
        may, limits = self._options(job), self.limits
        takes = np.zeros((len(may.column), len(self.free)))
        takes[np.arange(len(may.column)), may.kind] = may.size
        takes[:, len(self.price) :] = limits.takes(
            int(self.problem.group[job]), float(limits.charge[job]), may.kind, may.size
        )
        value = labels.value[:, None] + may.worth
        hope = value + (labels.free @ self.rates)[:, None] + (ahead - takes @ self.rates)
        fits = (hope > worse) & self._within(labels.free, takes)
        at, option = np.nonzero(fits)
        if not len(at):
            return None
        free = labels.free[at] - takes[option]
        found = Labels(value[at, option], free, np.zeros(len(at)), at, may.column[option])
        return self._best(found, hope[at, option])

    @staticmethod
    def _within(free: Floats, takes: Floats) -> Bools:
        """By label and option, whether everything it takes is left."""
        fits = np.ones((len(free), len(takes)), dtype=bool)
        for room, taken in zip(free.T, takes.T, strict=True):
            if taken.any():
                fits &= (room[:, None] >= taken - 1e-9) | (taken == 0)
        return fits

    def _key(self, labels: Labels) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        return np.asarray(np.round(np.maximum(labels.free, 0.0) * FINE).astype(np.uint64) @ self.mix)
