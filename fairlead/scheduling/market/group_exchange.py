"""Exchanges after a choice: each group makes the most of what it has, and what is left is lent anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from fairlead.scheduling.market.ceilings import Ceilings, QueueLimits, inside, limits
from fairlead.scheduling.market.exchange import exchanged
from fairlead.scheduling.market.gang_rounding import GangRounding
from fairlead.scheduling.market.menus import Bools, Floats, Ints
from fairlead.scheduling.market.problem import ChosenGangs, Problem

SMALL = 256.0
"""Up to so many devices gangs are exchanged; in more, prices and whole gangs alone come close enough."""

FEW = 200
"""A group with so many jobs or fewer has prices of its own found for what it has; of more, the common ones will do."""

HANDFUL = 10
"""Of so many jobs all choices are gone through sooner than prices are found: in a tree most queues have no more."""

MakeDesk = Callable[[Problem, Ints | None], GangRounding]


def polished(problem: Problem, found: ChosenGangs, desk: MakeDesk) -> ChosenGangs:
    """Exchanges among each group's own jobs first; then what is left is lent anew, and nobody gets less for that.

    In a tree those below each queue exchange what they have together, the deepest queues first, tier by tier as
    budgets end; at last everybody does. At each step everybody keeps what it had before that tier was lent anything.
    """
    if problem.capacity.sum() > SMALL:
        return found
    columns = [*found.tiers, found.column]
    obliged = (problem.first >= 0) & (columns[0] >= 0)
    floor, lent = np.where(obliged, columns[0], -1), False
    if len(problem.budget) > 1:
        for at, level in enumerate(reversed(range(len(found.tiers)))):
            better = _within(problem, columns[at], floor, found.price, obliged, level)
            lent |= bool((better != columns[at]).any())
            floor = better
            if lent:
                floor, columns[at + 1] = _lent(problem, better, desk, level)
            columns[at] = floor
    column = columns[-1]
    kept = problem if problem.rules is None else guarded(problem, floor, column, -1)
    anew = len(problem.budget) > 1
    best = exchanged(kept, column, found.price, _least(problem, floor), limits(problem), anew=anew)
    column = column if best is column else _lent(problem, best, desk, 0)[1]
    return replace(found, column=column, utility=problem.worth(column), entitled=columns[-2], tiers=tuple(columns[:-1]))


def _least(problem: Problem, floor: Ints) -> Floats:
    """What everybody's gang is worth by these columns; nothing for who has none."""
    return np.where(floor >= 0, problem.utility[np.arange(problem.jobs), np.maximum(floor, 0)], 0.0)


def _within(problem: Problem, column: Ints, floor: Ints, price: Floats, obliged: Bools, level: int) -> Ints:
    """What those below each queue of this tier have, given to those of its jobs that make the most of it.

    So no queue loses by it; nor does anybody below it what it has by ``floor``.
    """
    column = column.copy()
    kept, least = problem, np.zeros(problem.jobs)
    if problem.rules is not None:
        kept, least = guarded(problem, floor, column, level), _least(problem, floor)
    for jobs in _together(problem, level):
        if len(jobs) > 1 and (column[jobs] >= 0).any():
            part, bounds = _part(kept, jobs, column)
            anew = len(jobs) <= FEW and (problem.rules is None or len(jobs) > HANDFUL)
            column[jobs] = exchanged(part, column[jobs], price, least[jobs], bounds, obliged[jobs], anew=anew)
    return column


def _together(problem: Problem, level: int) -> Iterator[Ints]:
    """The jobs of each group; in a tree all those below each queue of a tier, the topmost being 0."""
    if problem.rules is None:
        for group in range(len(problem.budget)):
            yield np.nonzero(problem.group == group)[0]
        return
    paths = problem.rules.paths[problem.group]
    for queue in np.nonzero(problem.rules.depth == level)[0].tolist():
        yield np.nonzero((paths == queue).any(axis=1))[0]


def _part(problem: Problem, jobs: Ints, column: Ints) -> tuple[Problem, Ceilings | QueueLimits]:
    """These jobs with the devices that they have, and what they have to keep within."""
    part = problem.part(jobs, column)
    if problem.rules is None:
        return part, Ceilings(part.ceiling)
    part = replace(part, group=problem.group[jobs])
    return part, inside(problem, part, jobs, column)


def guarded(problem: Problem, floor: Ints, column: Ints, level: int) -> Problem:
    """The same without offers for which somebody would leave devices that are guaranteed to a queue below this tier.

    Who holds such a device by ``floor`` keeps it or what it has by now, or gets more of the same type: what it left
    might be wanted by somebody else to whom it is guaranteed as well.
    """
    rules = problem.rules
    assert rules is not None
    if not rules.sure[rules.depth > level].any():
        return problem
    has = np.nonzero(floor >= 0)[0]
    kind, size = problem.kind[has, floor[has]], problem.size[has, floor[has]]
    deep = np.vstack((np.where(rules.depth[:, None] > level, rules.sure, 0.0), np.zeros(rules.sure.shape[1])))
    bound = np.asarray(deep[rules.paths[problem.group[has]], kind[:, None]].max(axis=1) > 0)
    leaves = (problem.kind[has] != kind[:, None]) | (problem.size[has] < size[:, None])
    leaves[np.arange(len(has)), column[has]] = False
    utility = problem.utility.copy()
    utility[has] = np.where(bound[:, None] & leaves, 0.0, utility[has])
    return replace(problem, utility=utility)


def _lent(problem: Problem, column: Ints, desk: MakeDesk, level: int) -> tuple[Ints, Ints]:
    """These gangs with what is guaranteed; and with whoever fits in what they leave, once this tier's budgets end."""
    at = desk(problem, column)
    at.secure()
    at.lend(level)
    kept = at.column.copy()
    at.fill()
    at.grow()
    if level == 0:
        at.fill()
    return kept, at.column
