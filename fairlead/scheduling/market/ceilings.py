"""Defines the limits that a choice must keep besides the number of devices: of groups, or of queues in a tree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fairlead.scheduling.market.guarantees import devices_held
from fairlead.scheduling.market.menus import Bools, Floats, Ints
from fairlead.scheduling.market.problem import Problem


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Groups side by side: the devices that each may use at all, infinite without a limit."""

    amount: Floats  # by group

    def rates(self, problem: Problem, toll: Floats) -> Floats:
        """The toll per device of each offer."""
        return toll[problem.group][:, None]

    def used(self, problem: Problem, kind: Ints, taken: Floats) -> Floats:
        """Use of each limit by jobs that take so many devices of these types."""
        return np.bincount(problem.group, taken, len(self.amount)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Queues in a tree: the limits that could be reached, each with the queues and types that it counts."""

    amount: Floats  # by limit
    covers: Floats  # by limit, queue and type: 1 where it counts
    heavy: Bools  # by limit: whether it counts charged devices
    charge: Floats  # by job
    place: Ints  # by queue: its position in a depth-first order of the tree

    def rates(self, problem: Problem, toll: Floats) -> Floats:
        if not toll.any():
            return np.zeros((1, 1))
        found = self._table(np.where(self.heavy, 0.0, toll))[problem.group[:, None], problem.kind]
        if self.heavy.any():
            found += self._table(np.where(self.heavy, toll, 0.0))[problem.group[:, None], problem.kind] * self._charges
        return found

    def used(self, problem: Problem, kind: Ints, taken: Floats) -> Floats:
        many = self.covers.shape[1:]
        cell = problem.group * many[1] + kind
        counted, charged = (np.bincount(cell, amount, many[0] * many[1]) for amount in (taken, taken * self.charge))
        flat = self.covers.reshape(len(self.amount), many[0] * many[1])
        return np.asarray(np.where(self.heavy, flat @ charged, flat @ counted), dtype=np.float64)

    def takes(self, group: int, charge: float, kind: Ints, size: Ints) -> Floats:
        """By gang and limit, the use by these gangs of a job."""
        weight = np.where(self.heavy, charge, 1.0)[:, None]
        return np.asarray((self.covers[:, group, kind] * weight * size).T, dtype=np.float64)

    def _table(self, toll: Floats) -> Floats:
        """Tolls by queue and type: the sum over the limits that count them."""
        many = self.covers.shape
        return (toll @ self.covers.reshape(many[0], many[1] * many[2])).reshape(many[1:])

    @property
    def _charges(self) -> Floats:
        return self.charge[:, None]


def choice_limits(problem: Problem) -> Ceilings | QueueLimits:
    """The limits of a choice, without budgets, which the rounding handles."""
    if problem.rules is None:
        return Ceilings(problem.ceiling)
    nobody = np.full(problem.jobs, -1, dtype=np.int64)
    return _paths(problem, problem.capacity, np.arange(problem.jobs), nobody, None)


def division_limits(problem: Problem, part: Problem, jobs: Ints, column: Ints) -> QueueLimits:
    """The limits for these jobs when they divide anew the devices that they have by these columns.

    Limits above them cannot be exceeded, as the jobs use no more devices of any type; their charge is limited, too.
    """
    assert problem.rules is not None
    others = column.copy()
    others[jobs] = -1
    charge = problem.rules.charge[jobs]
    got = np.nonzero(column[jobs] >= 0)[0]
    purse = float(charge[got] @ part.size[got, column[jobs][got]]) if (charge != charge[0]).any() else None
    if (part.group == part.group[0]).all():  # of one queue: only its charge could be exceeded
        shape, some = (len(problem.budget), len(part.capacity)), int(purse is not None)
        amount, place = np.full(some, purse or 0.0), np.zeros(shape[0], dtype=np.int64)
        return QueueLimits(amount, np.ones((some, *shape)), np.ones(some, dtype=bool), charge, place)
    return _paths(problem, part.capacity, jobs, others, purse)


def _paths(problem: Problem, capacity: Floats, jobs: Ints, others: Ints, purse: float | None) -> QueueLimits:
    """The limits that these jobs could reach with so many devices, beside the others; ``purse`` limits their charge."""
    rules = problem.rules
    assert rules is not None
    taken, queues = devices_held(problem, others), len(rules.paths)
    under = np.zeros((queues + 1, queues))
    under[rules.paths.T, np.arange(queues)] = 1.0
    present = np.asarray(under[:queues, np.unique(problem.group[jobs])].max(axis=1) > 0)
    amounts, covers = [], []
    whole, typed = problem.ceiling - taken.sum(axis=1), rules.most - taken
    every = np.ones(len(capacity))
    for queue in np.nonzero(present & (whole < capacity.sum()))[0].tolist():
        amounts.append(whole[queue])
        covers.append(np.outer(under[queue], every))
    for queue, kind in zip(*(at.tolist() for at in np.nonzero(present[:, None] & (typed < capacity))), strict=True):
        amounts.append(typed[queue, kind])
        covers.append(np.outer(under[queue], np.arange(len(capacity)) == kind))
    if purse is not None:
        amounts.append(purse)
        covers.append(np.ones((queues, len(capacity))))
    heavy = np.zeros(len(amounts), dtype=bool)
    heavy[len(amounts) - (purse is not None) :] = True
    tops = np.where(rules.paths == queues, -1, rules.paths)[:, ::-1]
    upright = np.array([[at for at in path if at >= 0] + [-1] * path.count(-1) for path in tops.tolist()])
    place = np.empty(queues, dtype=np.int64)
    place[np.lexsort(upright.T[::-1])] = np.arange(queues)
    return QueueLimits(
        np.array(amounts), np.array(covers).reshape(len(amounts), queues, len(capacity)), heavy, rules.charge[jobs],
        place,
    )  # fmt: skip
