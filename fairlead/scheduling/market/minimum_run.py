"""Who has not run for long enough to be stopped: a gang that has just come up would only lose what that cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairlead.scheduling.job_columns import read
from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.device_worth import BidColumns
from fairlead.scheduling.market.gang_choice import GangRounding, Problem
from fairlead.scheduling.market.offers import Bools, Floats, Ints, Offers
from fairlead.scheduling.market.tree_rounding import TreeRounding
from fairlead.scheduling.state import JobState

AHEAD = 1e4
"""What the bid of a job counts that has its turn because it has waited longest, or outranks a gang that runs."""


def young(jobs: Sequence[JobState], book: BidColumns, dials: MarketConfig) -> Bools:
    """Who runs, and for less than ``min_run`` times what stopping it would cost, or than ``floor_s``; but no job of its
    own tenant that waits may outrank it."""
    found = book.running & (book.ran_s < np.maximum(dials.min_run * book.costs_s, dials.floor_s))
    return found & ~outranked(jobs, book) if found.any() else found


def outranked(jobs: Sequence[JobState], book: BidColumns) -> Bools:
    """Who runs while a job of its own tenant waits that has a higher priority."""
    return book.running & (_priority(jobs) < _of_group(_priority(jobs), book, ~book.running))


def outranking(jobs: Sequence[JobState], book: BidColumns) -> Bools:
    """Who waits while a job of its own tenant runs that has a lower priority."""
    return ~book.running & (-_priority(jobs) < _of_group(-_priority(jobs), book, book.running))


def _priority(jobs: Sequence[JobState]) -> Floats:
    return np.array(read(jobs, "priority"), dtype=np.float64)


def _of_group(values: Floats, book: BidColumns, some: Bools) -> Floats:
    """For each job the highest value of these in its queue."""
    highest = np.full(int(book.group.max(initial=0)) + 1, -np.inf)
    np.maximum.at(highest, book.group[some], values[some])
    return np.asarray(highest[book.group], dtype=np.float64)


def dearer(
    jobs: Sequence[JobState], problem: Problem, choices: Offers, book: BidColumns, dials: MarketConfig, turn: Bools
) -> Floats:
    """What everything is worth, where a gang that has just come up or changed is worth ``fresh`` times its bid, as it
    is or larger: so equals do not take turns every few seconds, and whoever is worth far more need not wait.

    Jobs whose ``turn`` it is, and those that outrank a gang of their own tenant, outbid all others, within what their
    tenant may have.
    """
    recent = book.running & (book.ran_s < dials.fresh_s) & (choices.present >= 0)
    rows = np.nonzero(recent & ~outranked(jobs, book))[0]
    kind, size = (table[rows, choices.present[rows]][:, None] for table in (problem.kind, problem.size))
    utility = problem.utility.copy()
    keeps = (problem.kind[rows] == kind) & (problem.size[rows] >= size)
    utility[rows] *= np.where(keeps, dials.fresh, 1.0)
    utility[turn | outranking(jobs, book)] *= AHEAD
    return utility


def left_alone(problem: Problem, choices: Offers, stays: Bools, book: BidColumns, dials: MarketConfig) -> Ints:
    """The column that each job must have: what deadlines ask for, and for those who stay the gang that they have.

    It is tried at a desk of the same kind: what is guaranteed comes first, then deadlines, and who is left alone has to
    be within its tenant's budget, so that nobody waits for what it is entitled to. The rest are worth what they bid. A
    deadline asks for no less than a gang has that has just come up to that size.
    """
    first = problem.first.copy()
    fresh = np.nonzero(book.running & (first >= 0) & (book.ran_s < dials.fresh_s) & (choices.present >= 0))[0]
    larger = problem.size[fresh, choices.present[fresh]] > problem.size[fresh, first[fresh]]
    first[fresh[larger]] = choices.present[fresh[larger]]
    rows = np.nonzero(stays & (first < 0))[0]
    if not len(rows):
        return first
    desk = GangRounding(problem) if problem.rules is None else TreeRounding(problem)
    desk.secure()
    for job in np.nonzero(first >= 0)[0].tolist():
        desk.oblige(job, int(first[job]))
    density = _present(problem.utility, choices, rows) / np.maximum(_present(problem.size, choices, rows), 1)
    for job in rows[np.argsort(-density, kind="stable")].tolist():
        column = int(choices.present[job])
        only = np.zeros(problem.utility.shape[1])
        only[column] = 1.0
        if desk.column[job] == column or (desk.column[job] < 0 and desk.give(job, only, column)):
            first[job] = column
    return first


def _present(table: Floats | Ints, choices: Offers, rows: Ints) -> Floats:
    return np.asarray(table[rows, choices.present[rows]], dtype=np.float64)
