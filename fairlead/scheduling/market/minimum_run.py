"""Protects gangs that have not run for long, and lets jobs of higher priority displace those of their own tenant."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fairlead.scheduling.job_columns import read_column
from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.device_worth import TINY, BidColumns
from fairlead.scheduling.market.gang_choice import GangRounding, Problem
from fairlead.scheduling.market.offers import Bools, Floats, Ints, Offers
from fairlead.scheduling.market.tree_rounding import TreeRounding
from fairlead.scheduling.state import JobState

OVERRIDE = 1e4
"""Factor of the bid of a job that comes first as it waited longest, or that outranks a running job of its tenant: it
outbids all others, whatever stopping a gang costs."""

PRIORITY_DURING_TURN = 1e2
"""The same factor for a job of higher priority while a sibling has its turn, so that the turn comes first."""

BELOW = 0.99
"""A waiting job bids at most this part of what a running sibling of higher priority bids per device."""


def recently_started(jobs: Sequence[JobState], book: BidColumns, config: MarketConfig) -> Bools:
    """Gangs that have run for less than ``min_run`` times the cost of stopping them, or than ``floor_s``; without those
    that a waiting job of their own tenant outranks."""
    found = book.running & (book.ran_s < np.maximum(config.min_run * book.costs_s, config.floor_s))
    return found & ~outranked(jobs, book) if found.any() else found


def outranked(jobs: Sequence[JobState], book: BidColumns) -> Bools:
    """Running jobs that a waiting job of their own tenant outranks."""
    return book.running & (_priority(jobs) < _of_group(_priority(jobs), book, ~book.running))


def outranking(jobs: Sequence[JobState], book: BidColumns, turn: Bools) -> Bools:
    """Waiting jobs that outrank a running job of their own tenant, other than one whose ``turn`` it is."""
    return ~book.running & (-_priority(jobs) < _of_group(-_priority(jobs), book, book.running & ~turn))


def _priority(jobs: Sequence[JobState]) -> Floats:
    return np.array(read_column(jobs, "priority"), dtype=np.float64)


def _of_group(values: Floats, book: BidColumns, some: Bools) -> Floats:
    """For each job the highest value among ``some`` jobs of its queue."""
    highest = np.full(int(book.group.max(initial=0)) + 1, -np.inf)
    np.maximum.at(highest, book.group[some], values[some])
    return np.asarray(highest[book.group], dtype=np.float64)


def adjusted_utility(
    jobs: Sequence[JobState], problem: Problem, choices: Offers, book: BidColumns, config: MarketConfig, turn: Bools
) -> Floats:
    """The utilities, raised for recent gangs, for jobs whose ``turn`` it is, and for jobs of higher priority.

    A gang that started or changed a moment ago counts ``fresh`` times its bid at its size or larger: so equal jobs do
    not alternate every few seconds, and a job that bids far more need not wait. Jobs whose turn it is, and jobs that
    outrank a running job of their own tenant, outbid all others within their tenant's budget; turns come first. A
    waiting job never outbids a running job of its tenant that outranks it: the two would displace each other for ever.
    """
    recent = book.running & (book.ran_s < config.fresh_s) & (choices.present >= 0)
    rows = np.nonzero(recent & ~outranked(jobs, book))[0]
    kind, size = (table[rows, choices.present[rows]][:, None] for table in (problem.kind, problem.size))
    utility = problem.utility.copy()
    keeps = (problem.kind[rows] == kind) & (problem.size[rows] >= size)
    utility[rows] *= np.where(keeps, config.fresh, 1.0)
    during_turn = np.isin(book.group, book.group[turn])
    utility[turn] *= OVERRIDE
    ahead = outranking(jobs, book, turn)
    utility[ahead & ~turn] *= np.where(during_turn, PRIORITY_DURING_TURN, OVERRIDE)[ahead & ~turn][:, None]
    return utility * _priority_limit(jobs, problem, choices, book, utility, turn)[:, None]


def _priority_limit(
    jobs: Sequence[JobState], problem: Problem, choices: Offers, book: BidColumns, utility: Floats, turn: Bools
) -> Floats:
    """By job, the factor that keeps a waiting job's bid below those of running siblings of higher priority."""
    factor, priority = np.ones(len(jobs)), _priority(jobs)
    runs, waits = np.nonzero(book.running & (choices.present >= 0))[0], np.nonzero(~book.running & ~turn)[0]
    if not len(runs) or not len(waits) or priority[runs].max() <= priority[waits].min():
        return factor
    bids = _present(utility, choices, runs) / np.maximum(_present(problem.size, choices, runs), 1)
    best = (utility[waits] / np.maximum(problem.size[waits], 1)).max(axis=1)
    for group in np.unique(book.group[runs]).tolist():
        mine, others = np.nonzero(book.group[runs] == group)[0], np.nonzero(book.group[waits] == group)[0]
        mine = mine[np.argsort(priority[runs[mine]], kind="stable")]
        lowest = np.append(np.minimum.accumulate(bids[mine][::-1])[::-1], np.inf)  # of these and all that outrank them
        limit = BELOW * lowest[np.searchsorted(priority[runs[mine]], priority[waits[others]], side="right")]
        factor[waits[others]] = np.minimum(1.0, limit / np.maximum(best[others], TINY))
    return factor


def mandatory_gangs(problem: Problem, choices: Offers, stays: Bools, book: BidColumns, config: MarketConfig) -> Ints:
    """The column that each job must have: what deadlines require, and for protected gangs their present size.

    It tries them in a rounding: guarantees first, then deadlines, then protected gangs, which must be within their
    tenant's budget so that no other tenant waits for its share. The others are worth what they bid. For a gang that
    changed a moment ago, a deadline requires at least its present size.
    """
    first = problem.mandatory.copy()
    fresh = np.nonzero(book.running & (first >= 0) & (book.ran_s < config.fresh_s) & (choices.present >= 0))[0]
    larger = problem.size[fresh, choices.present[fresh]] > problem.size[fresh, first[fresh]]
    first[fresh[larger]] = choices.present[fresh[larger]]
    rows = np.nonzero(stays & (first < 0))[0]
    if not len(rows):
        return first
    rounding = GangRounding(problem) if problem.rules is None else TreeRounding(problem)
    rounding.give_guarantees()
    for job in np.nonzero(first >= 0)[0].tolist():
        rounding.give_mandatory(job, int(first[job]))
    density = _present(problem.utility, choices, rows) / np.maximum(_present(problem.size, choices, rows), 1)
    for job in rows[np.argsort(-density, kind="stable")].tolist():
        column = int(choices.present[job])
        only = np.zeros(problem.utility.shape[1])
        only[column] = 1.0
        if rounding.column[job] == column or (rounding.column[job] < 0 and rounding.give(job, only, column)):
            first[job] = column
    return first


def _present(table: Floats | Ints, choices: Offers, rows: Ints) -> Floats:
    return np.asarray(table[rows, choices.present[rows]], dtype=np.float64)
