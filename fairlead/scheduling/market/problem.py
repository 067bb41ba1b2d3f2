"""What has to be chosen, as values: offers with their worth, what they take, what there is; and what was chosen."""

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

    @cached_property
    def by_density(self) -> tuple[Floats, Floats, Ints]:
        """Utility per device of every offer, the best of each job, and the jobs in the order of that."""
        per_device = self.utility / np.maximum(self.size, 1)
        density = largest(per_device)
        return per_device, density, np.argsort(-density, kind="stable")

    @cached_property
    def lists(self) -> tuple[list[int], list[int], list[bool], list[int]]:
        """Type and size of every offer and whether it is possible, row after row, and the group of every job: to be
        read one by one, which arrays are slow at."""
        possible = self.possible.ravel().tolist()
        return self.kind.ravel().tolist(), self.size.ravel().tolist(), possible, self.group.tolist()

    @cached_property
    def possible(self) -> Bools:
        """Which offers there are."""
        return self.utility > 0

    @cached_property
    def cell(self) -> Ints:
        """The place of every offer in a table by group and type."""
        return self.group[:, None] * len(self.capacity) + self.kind

    @cached_property
    def least(self) -> Ints:
        """The size of each job's smallest possible gang; more than there could ever be where it has none."""
        return smallest_of(np.where(self.utility > 0, self.size, np.iinfo(np.int64).max))

    @cached_property
    def smallest(self) -> Ints:
        """By job and type, the size of its smallest possible gang; more than there could ever be where it has none."""
        none = np.iinfo(np.int64).max
        possible = np.where(self.possible, self.size, none)
        kinds = range(len(self.capacity))
        return np.stack([np.where(self.kind == kind, possible, none).min(axis=1) for kind in kinds], axis=1)

    def part(self, jobs: Ints, column: Ints) -> Problem:
        """These jobs, as rows, and nothing but the devices that they have by these columns; no group counts."""
        got = jobs[column[jobs] >= 0]
        has = np.bincount(self.kind[got, column[got]], self.size[got, column[got]], len(self.capacity))
        no_limit = np.full(1, np.inf)
        return Problem(
            self.utility[jobs], self.kind[jobs], self.size[jobs], has.astype(np.float64),
            np.zeros(len(jobs), dtype=np.int64), no_limit, no_limit, self.share[jobs], self.first[jobs],
        )  # fmt: skip

    def worth(self, column: Ints) -> float:
        """The sum of utilities of what these columns give."""
        rows = (column >= 0).nonzero()[0]
        return float(self.utility[rows, column[rows]].sum())


@dataclass(frozen=True, slots=True)
class ChosenGangs:
    """The column that each job gets, -1 for none; the prices per device and type; the sum of utilities.

    ``entitled`` is what each got while budgets counted, before what was left was lent; ``tiers`` the same as the
    budgets of one tier of queues after the other ended, the deepest first; the last of them is ``entitled``.
    """

    column: Ints
    price: Floats
    utility: float
    entitled: Ints
    tiers: tuple[Ints, ...] = ()
