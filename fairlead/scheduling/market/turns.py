"""Rounds budgets to whole gangs: groups take turns with gangs larger than their shares, others divide the rest."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise

import numpy as np

from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.fairness_over_time import fit_budgets, in_whole_devices
from fairlead.scheduling.market.menus import Bools, Floats
from fairlead.scheduling.market.problem import Problem
from fairlead.scheduling.market.row_reductions import largest
from fairlead.scheduling.market.tenants import Shares

STEP = 0.01
"""Room for fluid groups is kept in steps of this part of their shares."""


@dataclass(frozen=True, slots=True)
class PackedGroups:
    """By group: devices of its fitting gangs, sizes of the others, smallest first, and whether the group is fluid."""

    used: Floats
    others: list[list[int]]
    fluid: Bools  # groups that can use one device more or less


def budgets_in_whole_gangs(problem: Problem, shares: Shares, devices: float, config: MarketConfig) -> Floats:
    """Budgets of groups side by side that fit together and can be used up.

    Each group gets the gangs that fit into the ``guarded`` part of its share; the remaining devices go to further gangs
    in turns. Fluid groups, whose jobs take single devices or gangs of any size, divide the rest by device.
    """
    least = np.minimum(problem.budget, shares.claim) * config.guarded
    packed = _packed(problem, least, shares.claim)
    fluid, budget = packed.fluid, np.where(packed.fluid, least, packed.used)
    _take_turns(problem.budget, budget, packed, shares, devices - float(budget.sum()), config)
    left = max(0.0, devices - float(budget[~fluid].sum()))
    some = fit_budgets(problem.budget[fluid], shares.claim[fluid], left, config.gives)
    some = some * min(1.0, left / max(float(some.sum()), 1e-9))
    total = max(0.0, min(left, float(shares.claim.sum() - budget[~fluid].sum())))
    budget[fluid] = in_whole_devices(some, shares.has[fluid], total)
    return budget


def _take_turns(
    wanted: Floats, budget: Floats, packed: PackedGroups, shares: Shares, room: float, config: MarketConfig
) -> None:
    """Add further gangs while there is room, those of the group furthest behind relative to its share first.

    How far a group is behind counts as if its debt were repaid within ``turn_s``. A gang has its turn once its group is
    behind by half of it, if no other is further behind, and until the group is even; no group gets more than one gang
    beyond its budget. For fluid groups room is only kept.
    """
    owed = shares.behind(config).tolist()
    claim, has, fluid, most, had = (one.tolist() for one in (shares.claim, shares.has, packed.fluid, wanted, budget))

    def turn(at: int, step: int) -> tuple[float, float, float, int, int]:
        if fluid[at]:
            wants = most[at] - had[at]
            return -wants / max(claim[at], 1e-9), wants, min(wants, max(1.0, claim[at] * STEP)), at, step
        size, wants = packed.others[at][step], owed[at] + claim[at] - had[at]
        running = has[at] >= had[at] + size / 2  # its other gangs may have ended meanwhile
        after, spare = (wants, wants) if running else (wants - size, wants - size / 2)
        return -after / max(claim[at], 1e-9), spare, size, at, step

    queue = [turn(at, 0) for at, sizes in enumerate(packed.others) if sizes or fluid[at]]
    heapify(queue)
    while queue:
        _, spare, size, at, step = heappop(queue)
        if spare < -1e-9 or had[at] >= most[at] - 1e-9 or size > room + 1e-9:
            continue
        room -= size
        had[at] += size
        if fluid[at] or step + 1 < len(packed.others[at]):
            heappush(queue, turn(at, step + 1))
    budget[:] = had


def _packed(problem: Problem, budget: Floats, claim: Floats) -> PackedGroups:
    """The gangs of each group that fit into these budgets, by bids. A group whose jobs all fit its share is not cut.

    Where workers count as several devices or types are limited, all groups count as fluid.
    """
    least, groups = problem.least, len(problem.budget)
    grows = largest(np.where(problem.utility > 0, problem.size, 0)) > least
    _, density, order = problem.by_density
    order = order[density[order] > 0]
    order = order[np.argsort(problem.group[order], kind="stable")]
    group, sizes = problem.group[order], least[order]
    wanted = np.bincount(group, sizes, groups)
    budget = np.where(wanted <= np.minimum(problem.budget, claim) + 1e-9, wanted, budget)
    used, fluid = np.zeros(groups), np.full(groups, problem.rules is not None)
    others: list[list[int]] = []
    for at, (begin, end) in enumerate(pairwise(np.searchsorted(group, np.arange(groups + 1)).tolist())):
        taken, some, left = _fitted(sizes[begin:end].tolist(), float(budget[at]))
        some.sort()
        used[at] = budget[at] - left
        fluid[at] |= bool(grows[order[begin:end][taken]].any())
        fluid[at] |= bool(some) and some.count(1) >= problem.budget[at] - used[at] - 1e-9
        others.append(some)
    return PackedGroups(used, others, fluid)


def _fitted(sizes: list[int], room: float) -> tuple[list[int], list[int], float]:
    """Gangs that fit into the room in this order, the sizes of the others, and the room left."""
    smallest, taken, others = min(sizes, default=0), [], []
    for at, size in enumerate(sizes):
        if size <= room + 1e-9:
            taken.append(at)
            room -= size
        elif smallest > room + 1e-9:  # no later gang fits either
            others += sizes[at:]
            break
        else:
            others.append(size)
    return taken, others, room
