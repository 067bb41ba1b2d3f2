"""Budgets in whole gangs: who cannot use a part of a gang has all of it in turns, and others have what that leaves."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from fairlead.scheduling.market.dials import Dials
from fairlead.scheduling.market.menus import Bools, Floats
from fairlead.scheduling.market.problem import Problem
from fairlead.scheduling.market.repay import in_whole_devices, within
from fairlead.scheduling.market.tenants import Shares


@dataclass(frozen=True, slots=True)
class Packed:
    """By group: devices of its gangs that fit, the sizes of those that do not, smallest first, and who is fluid."""

    used: Floats
    others: list[list[int]]
    fluid: Bools  # who can use one device more or less


def in_whole_gangs(problem: Problem, parts: Shares, devices: float, dials: Dials) -> Floats:
    """Budgets of groups side by side that can all be had at once, and used up.

    Everybody has the gangs that fit into its share less ``gives``; what is left of the devices goes to further gangs in
    turns. Groups whose jobs take single devices, or gangs of any size, share the rest out in devices.
    """
    least = np.minimum(problem.budget, parts.claim) * (1.0 - dials.gives)
    packed = _packed(problem, least)
    fluid, budget = packed.fluid, np.where(packed.fluid, problem.budget, packed.used)
    room = devices - float(np.where(fluid, least, budget).sum())
    _take_turns(problem.budget, budget, packed, parts, room, dials)
    taken = float(budget[~fluid].sum())
    some = within(budget[fluid], parts.claim[fluid], max(0.0, devices - taken), dials.gives)
    total = max(0.0, min(devices, float(parts.claim.sum())) - taken)
    budget[fluid] = in_whole_devices(some, parts.has[fluid], total)
    return budget


def _take_turns(most: Floats, budget: Floats, packed: Packed, parts: Shares, room: float, dials: Dials) -> None:
    """Further gangs as far as there is room, those first whose groups are furthest behind, relative to their shares.

    How far behind it is, is told as if what it is owed were to be made up for within ``turn_s``. A gang has its turn as
    soon as its group is behind by half of it, if nobody is further behind, and until the group is behind by nothing; no
    group is given more than one gang beyond its budget.
    """
    owed = [parts.accounts[name].owed / dials.turn_s for name in parts.names]
    claim, has = parts.claim.tolist(), parts.has.tolist()

    def turn(at: int, step: int) -> tuple[float, float, int, int]:
        size, wants = packed.others[at][step], owed[at] + claim[at] - float(budget[at])
        running = has[at] >= budget[at] + size / 2  # its other gangs may have ended since
        after, spare = (wants, wants) if running else (wants - size, wants - size / 2)
        return -after / max(claim[at], 1e-9), spare, at, step

    queue = [turn(at, 0) for at, sizes in enumerate(packed.others) if sizes and not packed.fluid[at]]
    heapify(queue)
    while queue:
        _, spare, at, step = heappop(queue)
        size = packed.others[at][step]
        if spare < -1e-9 or budget[at] >= most[at] - 1e-9 or size > room + 1e-9:
            continue
        room -= size
        budget[at] += size
        if step + 1 < len(packed.others[at]):
            heappush(queue, turn(at, step + 1))


def _packed(problem: Problem, budget: Floats) -> Packed:
    """What fits of each group, by bids. Whose jobs all fit into its whole budget is not cut.

    Where workers count as several devices or types are limited, everybody is taken to be fluid.
    """
    there, groups = problem.utility > 0, len(problem.budget)
    least = np.where(there, problem.size, np.iinfo(np.int64).max).min(axis=1)
    grows = (np.where(there, problem.size, 0).max(axis=1) > least).tolist()
    _, density, order = problem.by_density
    order = order[density[order] > 0]
    wanted = np.bincount(problem.group[order], least[order], groups)
    budget = np.where(wanted <= problem.budget + 1e-9, wanted, budget)
    left, fluid, group, sizes = budget.tolist(), [problem.rules is not None] * groups, problem.lists[3], least.tolist()
    others: list[list[int]] = [[] for _ in range(groups)]
    for job in order.tolist():
        at, size = group[job], sizes[job]
        if size > left[at] + 1e-9:
            others[at].append(size)
        else:
            left[at] -= size
            fluid[at] |= grows[job]
    for some in others:
        some.sort()
    single = [one or some[:1] == [1] for one, some in zip(fluid, others, strict=True)]
    return Packed(budget - np.array(left), others, np.array(single, dtype=bool))
