"""Who gets which gang: prices per device type until demand meets supply, then whole gangs by worth, then exchanges."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fairlead.scheduling.market.gang_rounding import GangRounding
from fairlead.scheduling.market.group_exchange import MakeDesk, polished
from fairlead.scheduling.market.menus import Floats, Ints
from fairlead.scheduling.market.problem import ChosenGangs, Problem

__all__ = ["ChosenGangs", "GangRounding", "Problem", "choose"]

ROUNDS = 60
"""Steps of the price iteration; the step length falls geometrically."""

LOOKS = (29, 44, 59)
"""After these steps the prices are tried out with whole gangs; the best outcome counts."""

FEW = 200
"""Beyond so many jobs only the last prices are tried out: there they are close enough to the bound."""


def choose(problem: Problem, desk: MakeDesk = GangRounding) -> ChosenGangs:
    """The best of some outcomes along the price iteration, repaired to whole gangs that fit at this kind of desk."""
    if not problem.jobs or not len(problem.capacity):
        nothing = np.full(problem.jobs, -1, dtype=np.int64)
        return ChosenGangs(nothing, np.zeros(len(problem.capacity)), 0.0, nothing)
    if desk is GangRounding and _plenty(problem):
        return _everything(problem)
    best: ChosenGangs | None = None
    for price, toll in clearing(problem):
        found = filled(problem, price, toll, desk(problem, None))
        if best is None or found.utility > best.utility * (1 + 1e-12):
            best = found
    assert best is not None
    return polished(problem, best, desk)


def _plenty(problem: Problem) -> bool:
    """Whether there is enough for everything that anybody could have: then prices tell nothing."""
    if problem.utility.shape[1] > 1 or np.isfinite(problem.ceiling).any():
        return False
    wanted = np.bincount(problem.kind[:, 0], problem.size[:, 0] * (problem.utility[:, 0] > 0), len(problem.capacity))
    return bool((wanted <= problem.capacity).all())


def _everything(problem: Problem) -> ChosenGangs:
    """What budgets cover, and then all the rest."""
    desk = GangRounding(problem)
    desk.fill()
    entitled = desk.column.copy()
    desk.lend()
    desk.fill()
    price = np.full(len(problem.capacity), going_price(problem))
    return ChosenGangs(desk.column, price, problem.worth(desk.column), entitled)


def clearing(problem: Problem) -> Iterator[tuple[Floats, Floats]]:
    """Prices per type and tolls per group, after those steps at which they are worth a look."""
    _, density, order = problem.by_density
    utility, kind, size = problem.utility[order], problem.kind[order], problem.size[order].astype(np.float64)
    group, begins = problem.group[order], np.arange(problem.jobs) * problem.utility.shape[1]
    charge = None if problem.rules is None else problem.rules.charge[order]
    ranked, costs = -density[order], np.empty(utility.shape)
    cell = problem.cell[order]  # of a table by group and type, which every offer looks at
    price, toll = np.full(len(problem.capacity), going_price(problem)), np.zeros(len(problem.budget))
    unit, alone = float(price.mean()), utility.shape[1] == 1
    kinds, sizes, found = kind.ravel(), size.ravel(), costs.ravel()  # offer by offer
    devices, budget = np.maximum(problem.capacity, 1.0), np.maximum(problem.budget, 1.0)
    for step in range(ROUNDS):
        # whoever bids less per device than the cheapest type costs wants nothing: the others come first in this order
        many = int(ranked.searchsorted(-(1 - 1e-9) * price.min()))
        who, paid, surplus = group[:many], None if charge is None else charge[:many], costs[:many]
        if paid is None:
            (toll[:, None] + price).take(cell[:many], out=surplus, mode="clip")
        else:
            np.add(price.take(kind[:many]), tolls(problem, toll, who, paid)[:, None], out=surplus)
        surplus *= size[:many]
        np.subtract(utility[:many], surplus, out=surplus)
        wish = begins[:many] if alone else begins[:many] + surplus.argmax(axis=1)
        taken = sizes.take(wish) * (found.take(wish) > 0)
        demand = np.bincount(kinds.take(wish), taken, minlength=len(price))
        stride = 0.5 * 0.93**step + 0.02
        over = stride * (demand / devices - 1.0)
        price = price * np.exp(np.minimum(np.maximum(over, -1.0), 1.0))
        if len(toll) > 1:
            over = by_groups(problem, taken, who, paid) / budget - 1.0
            toll = np.maximum(0.0, toll + unit * stride * np.minimum(np.maximum(over, -1.0), 1.0))
        if step == ROUNDS - 1 or (step in LOOKS and problem.jobs <= FEW):
            yield price, toll


def going_price(problem: Problem) -> float:
    """What a device is worth to the last job that would get any, if all devices were alike."""
    per_device, density, order = problem.by_density
    reach = np.cumsum(problem.size[order, per_device[order].argmax(axis=1)])
    last = min(int(np.searchsorted(reach, problem.capacity.sum())), problem.jobs - 1)
    return max(float(density[order[last]]), 1e-12)


def tolls(problem: Problem, toll: Floats, group: Ints, charge: Floats | None) -> Floats:
    """What a device costs each of these jobs beside the price: the toll of its group, and of those above it."""
    if problem.rules is None or charge is None:
        return toll[group]
    return problem.rules.stacked(toll)[group] * charge


def by_groups(problem: Problem, taken: Floats, group: Ints, charge: Floats | None) -> Floats:
    """Devices by group, with all below it, as they are charged for."""
    if problem.rules is None or charge is None:
        return np.bincount(group, taken, minlength=len(problem.budget)).astype(np.float64)
    charged = np.bincount(group, taken * charge, minlength=len(problem.budget))
    return problem.rules.rolled(charged.astype(np.float64))


def filled(problem: Problem, price: Floats, toll: Floats, desk: GangRounding) -> ChosenGangs:
    """Whole gangs by surplus per device at these prices; then whoever still fits; then larger gangs."""
    charge = None if problem.rules is None else problem.rules.charge
    cost = price[problem.kind] + tolls(problem, toll, problem.group, charge)[:, None]
    surplus = np.where(problem.utility > 0, problem.utility - cost * problem.size, -np.inf)
    rows, first = np.arange(problem.jobs), surplus.argmax(axis=1)
    keen = surplus[rows, first] / np.maximum(problem.size[rows, first], 1)
    desk.secure()
    for job in np.nonzero(problem.first >= 0)[0].tolist():
        desk.oblige(job, int(problem.first[job]))
    order = np.argsort(-keen, kind="stable")
    if len(problem.budget) > 1 and bool((problem.share < 1).any()):
        desk.round_to_gangs(False)  # nobody is rounded up at the cost of a gang that is wholly within its budget
        desk.serve(order[keen[order] > 0], surplus)
        desk.fill()
        desk.round_to_gangs(True)
        desk.round_up()
    desk.serve(order[keen[order] > 0], surplus)
    tiers: list[Ints] = []
    if len(problem.budget) > 1:  # everybody up to its budget, whatever the prices; then budgets end
        for level in desk.levels:
            desk.fill()
            desk.grow()
            desk.lend(level)
            tiers.append(desk.column.copy())
    else:
        tiers.append(desk.column.copy())
    desk.fill()  # nobody waits who fits: not even in what others leave who get something better
    desk.grow()
    desk.fill()
    return ChosenGangs(desk.column, price, problem.worth(desk.column), tiers[-1], tuple(tiers))
