"""Rotates whole gangs between queues in turns of minutes, where changes cost so little that shares can hold so fast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import chain

import numpy as np

from fairlead.scheduling.market.device_worth import TINY, BidColumns
from fairlead.scheduling.market.gang_choice import GangRounding, Problem
from fairlead.scheduling.market.menus import Bools, Floats, Ints
from fairlead.scheduling.market.offers import Offers
from fairlead.scheduling.market.row_reductions import largest
from fairlead.scheduling.market.tenants import Shares
from fairlead.scheduling.market.tree_rounding import TreeRounding
from fairlead.scheduling.market.turns import STEP

COMMAND_TURNS = 15.0
"""Turns for which a command keeps its gang if it starts over when stopped, does not declare its duration and is larger
than its queue's share. A command with a declared duration runs to its end; one within the share gets one turn."""

Chunk = tuple[int, int, int]
"""(devices that a queue takes at once, job and column of a mandatory gang or -1)."""


def rotate_budgets(
    problem: Problem, shares: Shares, devices: float, choices: Offers, pressed: Sequence[int] = ()
) -> Problem:
    """The problem with budgets of whole gangs that fit together: the queue furthest behind gets its next gang first.

    ``problem.budget`` is what each queue may want: its share plus its savings, or minus its overdraft. How far a queue
    is behind counts relative to its share. A waiting gang has its turn once its queue is behind by half of it; a
    running gang keeps its turn until the queue is even. So gangs do not change at every round, and a queue without
    running gangs gets its next one within size × turn / share. A queue whose best bid is larger than its share saves up
    for it. Mandatory jobs are in the budgets first; then, in each queue, ``pressed`` jobs in this order: they must run
    if the budget has room for them.
    """
    wants, has, most = (one.tolist() for one in (problem.budget, shares.has, problem.ceiling))
    share = [max(float(shares.entitled[name]), 1e-9) for name in shares.names]
    forced = np.nonzero(problem.mandatory >= 0)[0]
    had = np.bincount(problem.group[forced], problem.size[forced, problem.mandatory[forced]], len(wants)).tolist()
    room = devices - sum(had)
    first = problem.mandatory.copy()
    chunks = _chunks(problem, share, _smallest(problem, choices, pressed))

    def turn(at: int) -> tuple[float, int, Chunk] | None:
        """How far the queue is behind, relative to its share, and its next gang."""
        chunk = next((chunk for chunk in chunks[at] if chunk[0] <= most[at] - had[at] + 1e-9), None)
        if chunk is None:
            return None
        spare = wants[at] - had[at] - (0.0 if has[at] >= had[at] + chunk[0] / 2 else chunk[0] / 2)
        return -round(spare / share[at], 9), at, chunk

    queue = [found for at in range(len(wants)) if (found := turn(at)) is not None]
    heapify(queue)
    saving: list[int] = []  # queues whose next gang does not fit now
    while queue or (saving and room >= 1):
        if not queue:  # devices left over go to the other jobs of these queues, in the same order
            queue, saving = [found for at in saving if (found := turn(at)) is not None], []
            heapify(queue)
            continue
        _, at, (size, job, column) = heappop(queue)
        if size > room + 1e-9:
            saving.append(at)
            continue
        room -= size
        had[at] += size
        if job >= 0:
            first[job] = column
        if (found := turn(at)) is not None:
            heappush(queue, found)
    return replace(problem, budget=np.array(had, dtype=np.float64), share=np.ones(problem.jobs), mandatory=first)


def _smallest(problem: Problem, choices: Offers, pressed: Sequence[int]) -> dict[int, int]:
    """By job that can run, the column of its present gang, or else of its smallest one."""
    found = {}
    for job in pressed:
        column = int(choices.present[job])
        if column < 0 or problem.utility[job, column] <= 0:
            least = (problem.size[job] == problem.least[job]) & (problem.utility[job] > 0)
            column = int(np.where(least, problem.utility[job], -1.0).argmax())
        if problem.utility[job, column] > 0 and problem.mandatory[job] < 0:
            found[job] = column
    return found


def _chunks(problem: Problem, share: list[float], pressed: Mapping[int, int]) -> list[Iterator[Chunk]]:
    """By queue, the steps in which its jobs take devices: pressed jobs first, then the others by bids; each takes its
    smallest gang, then what more it can use. Of mandatory jobs only what more they can use.
    """
    _, density, order = problem.by_density
    order = order[density[order] > 0]
    must = problem.mandatory.copy()
    must[list(pressed)] = list(pressed.values())
    has = np.where(must >= 0, problem.size[np.arange(problem.jobs), must], problem.least)
    more = np.maximum(largest(np.where(problem.utility > 0, problem.size, 0)) - has, 0)
    jobs: list[list[tuple[int, int]]] = [[] for _ in share]
    ahead: list[list[Chunk]] = [[] for _ in share]
    for job, column in pressed.items():
        ahead[int(problem.group[job])].append((int(has[job]), job, column))
    least = np.where(must >= 0, 0, has)
    for job, group in zip(order.tolist(), problem.group[order].tolist(), strict=True):
        jobs[group].append((int(least[job]), int(more[job])))
    return [
        chain(before, ((size, -1, -1) for size in _steps(some, max(1, int(one * STEP)))))
        for before, some, one in zip(ahead, jobs, share, strict=True)
    ]


def _steps(jobs: list[tuple[int, int]], step: int) -> Iterator[int]:
    """Steps for these jobs: gangs of several devices one by one, single devices in groups of ``step``."""
    singles = 0
    for least, more in jobs:
        if least > 1:
            yield least
        singles += more + (least if least <= 1 else 0)
        for _ in range(singles // step):
            yield step
        singles %= step
    if singles:
        yield singles


def keep_commands_running(
    problem: Problem, choices: Offers, book: BidColumns, starts_over: Bools, shares: Shares
) -> Problem:
    """The problem in which commands, which would lose all their work, keep their gangs for one turn beyond budgets.

    A command's use beyond its queue's share is a debt of the queue. Its turn is over when the debt is as large as its
    whole run: to the end if it declares its duration, else ``COMMAND_TURNS`` turns, or one turn if the share has room
    for it. The longest running commands that together are within the share are never stopped for others.
    """
    rows = np.nonzero(starts_over & book.running & (problem.mandatory < 0))[0]
    rows = rows[problem.utility[rows, choices.present[rows]] > 0]
    if not len(rows):
        return problem
    column = choices.present[rows]
    size, speed = problem.size[rows, column], np.maximum(choices.speed[rows, column], TINY)
    takes_s = np.where(book.declared[rows], (book.left[rows] + book.done[rows]) / speed, 0.0)
    debt = -np.array([shares.accounts[name].bucket for name in shares.names])[book.group[rows]]
    group = book.group[rows]
    share = np.array([float(shares.entitled[name]) for name in shares.names])[group]
    turns = np.where(size > share, COMMAND_TURNS, 1.0)
    lasts = (debt < size * np.maximum(takes_s, turns * shares.turn_s)) | _within(size, share, book.ran_s[rows], group)
    rounding = GangRounding(problem) if problem.rules is None else TreeRounding(problem)
    rounding.give_guarantees()
    first = problem.mandatory.copy()
    for job in np.nonzero(first >= 0)[0].tolist():
        rounding.give_mandatory(job, int(first[job]))
    for job in rows[lasts][np.argsort(-book.ran_s[rows[lasts]], kind="stable")].tolist():
        rounding.give_mandatory(job, int(choices.present[job]))
        if rounding.column[job] == choices.present[job]:
            first[job] = rounding.column[job]
    return replace(problem, mandatory=first)


def _within(size: Ints, share: Floats, ran_s: Floats, group: Ints) -> Bools:
    """Which of these gangs fit in the share of their queue together, the longest running ones first."""
    had: dict[int, float] = {}
    found = np.zeros(len(size), dtype=bool)
    for at in np.argsort(-ran_s, kind="stable").tolist():
        queue, wants = int(group[at]), had.get(int(group[at]), 0.0) + float(size[at])
        if wants <= share[at] + 1e-9:
            had[queue], found[at] = wants, True
    return found
