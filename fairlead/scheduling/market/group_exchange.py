"""Improves a choice group by group: each group exchanges its devices among its jobs, then the rest is lent anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from fairlead.scheduling.market.ceilings import Ceilings, QueueLimits, choice_limits, division_limits
from fairlead.scheduling.market.exchange import exchange_gangs
from fairlead.scheduling.market.gang_rounding import GangRounding
from fairlead.scheduling.market.menus import Bools, Floats, Ints
from fairlead.scheduling.market.problem import ChosenGangs, Problem

SMALL = 256.0
"""Gangs are exchanged in clusters of up to so many devices; in larger ones the prices alone come close enough."""

FEW = 200
"""A group with at most so many jobs gets its own prices; a larger one uses the common prices."""

HANDFUL = 10
"""For so few jobs a full search is faster than finding prices: in a tree most queues have no more."""

MakeRounding = Callable[[Problem, Ints | None], GangRounding]


def improve_by_exchange(problem: Problem, found: ChosenGangs, rounding: MakeRounding) -> ChosenGangs:
    """Exchange among each group's own jobs first, then lend the rest anew; no job gets less by that.

    In a tree the queues below each queue exchange what they have together, the deepest first, tier by tier as budgets
    end; at last all do. At each step jobs keep at least what they had before that tier was lent anything.
    """
    if problem.capacity.sum() > SMALL:
        return found
    columns = [*found.tiers, found.column]
    obliged = (problem.mandatory >= 0) & (columns[0] >= 0)
    floor, lent = np.where(obliged, columns[0], -1), False
    if len(problem.budget) > 1:
        for at, level in enumerate(reversed(range(len(found.tiers)))):
            better = _within(problem, columns[at], floor, found.price, obliged, level)
            lent |= bool((better != columns[at]).any())
            floor = better
            if lent:
                floor, columns[at + 1] = _lent(problem, better, rounding, level)
            columns[at] = floor
    column = columns[-1]
    kept = problem if problem.rules is None else keeping_guarantees(problem, floor, column, -1)
    anew = len(problem.budget) > 1
    best = exchange_gangs(kept, column, found.price, _least(problem, floor), choice_limits(problem), anew=anew)
    column = column if best is column else _lent(problem, best, rounding, 0)[1]
    return replace(found, column=column, utility=problem.worth(column), entitled=columns[-2], tiers=tuple(columns[:-1]))


def _least(problem: Problem, floor: Ints) -> Floats:
    """The utility of each job's gang by these columns; 0 without a gang."""
    return np.where(floor >= 0, problem.utility[np.arange(problem.jobs), np.maximum(floor, 0)], 0.0)


def _within(problem: Problem, column: Ints, floor: Ints, price: Floats, obliged: Bools, level: int) -> Ints:
    """Exchange within each queue of this tier: its devices go to the jobs that make the most of them.

    No queue loses devices, and no job gets less than it has by ``floor``.
    """
    column = column.copy()
    kept, least = problem, np.zeros(problem.jobs)
    if problem.rules is not None:
        kept, least = keeping_guarantees(problem, floor, column, level), _least(problem, floor)
    for jobs in _together(problem, level):
        if len(jobs) > 1 and (column[jobs] >= 0).any():
            part, bounds = _part(kept, jobs, column)
            anew = len(jobs) <= FEW and (problem.rules is None or len(jobs) > HANDFUL)
            column[jobs] = exchange_gangs(part, column[jobs], price, least[jobs], bounds, obliged[jobs], anew=anew)
    return column


def _together(problem: Problem, level: int) -> Iterator[Ints]:
    """The jobs of each group; in a tree all jobs below each queue of a tier, 0 being the top."""
    if problem.rules is None:
        for group in range(len(problem.budget)):
            yield np.nonzero(problem.group == group)[0]
        return
    paths = problem.rules.paths[problem.group]
    for queue in np.nonzero(problem.rules.depth == level)[0].tolist():
        yield np.nonzero((paths == queue).any(axis=1))[0]


def _part(problem: Problem, jobs: Ints, column: Ints) -> tuple[Problem, Ceilings | QueueLimits]:
    """The problem of these jobs on their own devices, with its limits."""
    part = problem.part(jobs, column)
    if problem.rules is None:
        return part, Ceilings(part.ceiling)
    part = replace(part, group=problem.group[jobs])
    return part, division_limits(problem, part, jobs, column)


def keeping_guarantees(problem: Problem, floor: Ints, column: Ints, level: int) -> Problem:
    """The problem without offers for which a job would leave devices guaranteed to a queue below this tier.

    A job that holds such devices by ``floor`` keeps them or its present column, or gets more of the same type: another
    job may have a guarantee for the devices that it would leave.
    """
    rules = problem.rules
    assert rules is not None
    if not rules.guaranteed[rules.depth > level].any():
        return problem
    has = np.nonzero(floor >= 0)[0]
    kind, size = problem.kind[has, floor[has]], problem.size[has, floor[has]]
    deep = np.vstack(
        (np.where(rules.depth[:, None] > level, rules.guaranteed, 0.0), np.zeros(rules.guaranteed.shape[1]))
    )
    bound = np.asarray(deep[rules.paths[problem.group[has]], kind[:, None]].max(axis=1) > 0)
    leaves = (problem.kind[has] != kind[:, None]) | (problem.size[has] < size[:, None])
    leaves[np.arange(len(has)), column[has]] = False
    utility = problem.utility.copy()
    utility[has] = np.where(bound[:, None] & leaves, 0.0, utility[has])
    return replace(problem, utility=utility)


def _lent(problem: Problem, column: Ints, rounding: MakeRounding, level: int) -> tuple[Ints, Ints]:
    """These gangs with guarantees; and with jobs that fit beside them, once the budgets of this tier end."""
    at = rounding(problem, column)
    at.give_guarantees()
    at.lend(level)
    kept = at.column.copy()
    at.fill()
    at.grow()
    if level == 0:
        at.fill()
    return kept, at.column
