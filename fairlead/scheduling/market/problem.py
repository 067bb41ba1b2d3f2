"""Defines the choice problem: offers with utility, size and type, capacities and budgets; and its solution."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairlead.scheduling.market.menus import Bools, Floats, Ints
from fairlead.scheduling.market.queue_rules import Rules
from fairlead.scheduling.market.row_reductions import largest
from fairlead.scheduling.market.row_reductions import smallest as smallest_of


@dataclass(frozen=True)
class Problem:
    """Utility (0: not possible), type and size of every offer, and the devices there are.

    ``budget`` is what each group of jobs (a tenant or queue) may use before all others have had theirs; ``ceiling`` is
    what it may use at all. A gang fits a budget if ``share`` of it does, so budgets are rounded to whole gangs.
    """

    utility: Floats
    kind: Ints
    size: Ints
    capacity: Floats
    group: Ints
    budget: Floats
    ceiling: Floats
    share: Floats  # by job
    mandatory: Ints  # the column that a job is given before the bidding; -1 for none
    rules: Rules | None = None  # of groups in a tree; None: groups side by side

    @property
    def jobs(self) -> int:
        return len(self.utility)

    @cached_property
    def by_density(self) -> tuple[Floats, Floats, Ints]:
        """Utility per device of every offer, the best of each job, and the jobs in the order of that."""
        per_device = self.utility / np.maximum(self.size, 1)
        density = largest(per_device)
        return per_device, density, np.argsort(-density, kind="stable")

    @cached_property
    def lists(self) -> tuple[list[int], list[int], list[bool], list[int]]:
        """Type, size and possibility of every offer, and the group of every job, as lists: faster than arrays where
        elements are read one by one."""
        possible = self.possible.ravel().tolist()
        return self.kind.ravel().tolist(), self.size.ravel().tolist(), possible, self.group.tolist()

    @cached_property
    def possible(self) -> Bools:
        """Which offers there are."""
        return self.utility > 0

    @cached_property
    def cell(self) -> Ints:
        """The index of every offer in a table by group and type."""
        return self.group[:, None] * len(self.capacity) + self.kind

    @cached_property
    def least(self) -> Ints:
        """The size of each job's smallest possible gang; the largest integer where it has none."""
        return smallest_of(np.where(self.utility > 0, self.size, np.iinfo(np.int64).max))

    @cached_property
    def smallest(self) -> Ints:
        """By job and type, the size of its smallest possible gang; the largest integer where it has none."""
        none = np.iinfo(np.int64).max
        possible = np.where(self.possible, self.size, none)
        kinds = range(len(self.capacity))
        return np.stack([np.where(self.kind == kind, possible, none).min(axis=1) for kind in kinds], axis=1)

    def part(self, jobs: Ints, column: Ints) -> Problem:
        """The problem of these jobs alone on the devices that they have by these columns; groups do not count."""
        got = jobs[column[jobs] >= 0]
        has = np.bincount(self.kind[got, column[got]], self.size[got, column[got]], len(self.capacity))
        no_limit = np.full(1, np.inf)
        return Problem(
            self.utility[jobs], self.kind[jobs], self.size[jobs], has.astype(np.float64),
            np.zeros(len(jobs), dtype=np.int64), no_limit, no_limit, self.share[jobs], self.mandatory[jobs],
        )  # fmt: skip

    def worth(self, column: Ints) -> float:
        """The sum of the utilities of these columns."""
        rows = (column >= 0).nonzero()[0]
        return float(self.utility[rows, column[rows]].sum())


@dataclass(frozen=True, slots=True)
class ChosenGangs:
    """The column that each job gets (-1: none), the price per device by type, and the sum of utilities.

    ``entitled`` are the columns while budgets counted, before unused devices were lent. ``tiers`` are the columns as
    budgets ended tier by tier, the deepest queues first; the last of them is ``entitled``.
    """

    column: Ints
    price: Floats
    utility: float
    entitled: Ints
    tiers: tuple[Ints, ...] = ()
