"""Chooses a gang for every job: prices per device type clear the market, then whole gangs by worth, then exchanges."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fairlead.scheduling.market.gang_rounding import GangRounding
from fairlead.scheduling.market.group_exchange import MakeRounding, improve_by_exchange
from fairlead.scheduling.market.menus import Floats, Ints
from fairlead.scheduling.market.problem import ChosenGangs, Problem

__all__ = ["ChosenGangs", "GangRounding", "Problem", "choose"]

ROUNDS = 60
"""Steps of the price iteration; the step length falls geometrically."""

LOOKS = (29, 44, 59)
"""After these steps the prices are tried with whole gangs; the best outcome counts."""

FEW = 200
"""With more jobs only the last prices are tried: there they are close enough to the bound."""


def choose(problem: Problem, rounding: MakeRounding = GangRounding) -> ChosenGangs:
    """The best of some outcomes along the price iteration, rounded to whole gangs that fit."""
    if not problem.jobs or not len(problem.capacity):
        nothing = np.full(problem.jobs, -1, dtype=np.int64)
        return ChosenGangs(nothing, np.zeros(len(problem.capacity)), 0.0, nothing)
    if rounding is GangRounding and _plenty(problem):
        return _everything(problem)
    best: ChosenGangs | None = None
    for price, toll in clearing_prices(problem):
        found = hand_out_gangs(problem, price, toll, rounding(problem, None))
        if best is None or found.utility > best.utility * (1 + 1e-12):
            best = found
    assert best is not None
    return improve_by_exchange(problem, best, rounding)


def _plenty(problem: Problem) -> bool:
    """Whether all jobs can have the most they ask for: then prices do not matter."""
    if problem.utility.shape[1] > 1 or np.isfinite(problem.ceiling).any():
        return False
    wanted = np.bincount(problem.kind[:, 0], problem.size[:, 0] * (problem.utility[:, 0] > 0), len(problem.capacity))
    return bool((wanted <= problem.capacity).all())


def _everything(problem: Problem) -> ChosenGangs:
    """The choice where all fit: what budgets cover first, then the rest."""
    rounding = GangRounding(problem)
    rounding.fill()
    entitled = rounding.column.copy()
    rounding.lend()
    rounding.fill()
    price = np.full(len(problem.capacity), going_price(problem))
    return ChosenGangs(rounding.column, price, problem.worth(rounding.column), entitled)


def clearing_prices(problem: Problem) -> Iterator[tuple[Floats, Floats]]:
    """Prices by type and tolls by group at the steps that are tried. A toll is the price of a group's budget."""
    _, density, order = problem.by_density
    utility, kind, size = problem.utility[order], problem.kind[order], problem.size[order].astype(np.float64)
    group, begins = problem.group[order], np.arange(problem.jobs) * problem.utility.shape[1]
    charge = None if problem.rules is None else problem.rules.charge[order]
    ranked, costs = -density[order], np.empty(utility.shape)
    cell = problem.cell[order]  # of a table by group and type
    price, toll = np.full(len(problem.capacity), going_price(problem)), np.zeros(len(problem.budget))
    unit, alone = float(price.mean()), utility.shape[1] == 1
    kinds, sizes, found = kind.ravel(), size.ravel(), costs.ravel()  # offer by offer
    devices, budget = np.maximum(problem.capacity, 1.0), np.maximum(problem.budget, 1.0)
    for step in range(ROUNDS):
        # jobs that bid less per device than the cheapest type costs want nothing; the others come first in this order
        many = int(ranked.searchsorted(-(1 - 1e-9) * price.min()))
        who, paid, surplus = group[:many], None if charge is None else charge[:many], costs[:many]
        if paid is None:
            (toll[:, None] + price).take(cell[:many], out=surplus, mode="clip")
        else:
            np.add(price.take(kind[:many]), tolls(problem, toll, who, paid)[:, None], out=surplus)
        surplus *= size[:many]
        np.subtract(utility[:many], surplus, out=surplus)
        preferred = begins[:many] if alone else begins[:many] + surplus.argmax(axis=1)
        taken = sizes.take(preferred) * (found.take(preferred) > 0)
        demand = np.bincount(kinds.take(preferred), taken, minlength=len(price))
        stride = 0.5 * 0.93**step + 0.02
        over = stride * (demand / devices - 1.0)
        price = price * np.exp(np.minimum(np.maximum(over, -1.0), 1.0))
        if len(toll) > 1:
            over = by_groups(problem, taken, who, paid) / budget - 1.0
            toll = np.maximum(0.0, toll + unit * stride * np.minimum(np.maximum(over, -1.0), 1.0))
        if step == ROUNDS - 1 or (step in LOOKS and problem.jobs <= FEW):
            yield price, toll


def going_price(problem: Problem) -> float:
    """What a device is worth to the last job that would get any, if all devices were of one type."""
    per_device, density, order = problem.by_density
    reach = np.cumsum(problem.size[order, per_device[order].argmax(axis=1)])
    last = min(int(np.searchsorted(reach, problem.capacity.sum())), problem.jobs - 1)
    return max(float(density[order[last]]), 1e-12)


def tolls(problem: Problem, toll: Floats, group: Ints, charge: Floats | None) -> Floats:
    """The toll per device for each of these jobs: that of its group and of the groups above it."""
    if problem.rules is None or charge is None:
        return toll[group]
    return problem.rules.summed_downwards(toll)[group] * charge


def by_groups(problem: Problem, taken: Floats, group: Ints, charge: Floats | None) -> Floats:
    """Charged devices by group, including the groups below it."""
    if problem.rules is None or charge is None:
        return np.bincount(group, taken, minlength=len(problem.budget)).astype(np.float64)
    charged = np.bincount(group, taken * charge, minlength=len(problem.budget))
    return problem.rules.summed_upwards(charged.astype(np.float64))


def hand_out_gangs(problem: Problem, price: Floats, toll: Floats, rounding: GangRounding) -> ChosenGangs:
    """Hands out whole gangs by surplus per device at these prices, then to jobs that still fit, then grows gangs."""
    charge = None if problem.rules is None else problem.rules.charge
    cost = price[problem.kind] + tolls(problem, toll, problem.group, charge)[:, None]
    surplus = np.where(problem.utility > 0, problem.utility - cost * problem.size, -np.inf)
    rows, first = np.arange(problem.jobs), surplus.argmax(axis=1)
    keen = surplus[rows, first] / np.maximum(problem.size[rows, first], 1)
    rounding.give_guarantees()
    for job in np.nonzero(problem.mandatory >= 0)[0].tolist():
        rounding.give_mandatory(job, int(problem.mandatory[job]))
    order = np.argsort(-keen, kind="stable")
    if len(problem.budget) > 1 and bool((problem.share < 1).any()):
        rounding.round_to_gangs(False)  # no job is rounded up at the cost of a gang that is wholly within its budget
        rounding.serve(order[keen[order] > 0], surplus)
        rounding.fill()
        rounding.round_to_gangs(True)
        rounding.round_up()
    rounding.serve(order[keen[order] > 0], surplus)
    tiers: list[Ints] = []
    if len(problem.budget) > 1:  # all groups up to their budgets, whatever the prices; then budgets end
        for level in rounding.levels:
            rounding.fill()
            rounding.grow()
            rounding.lend(level)
            tiers.append(rounding.column.copy())
    else:
        tiers.append(rounding.column.copy())
    rounding.fill()  # no job waits that fits, also in devices that others leave for something better
    rounding.grow()
    rounding.fill()
    return ChosenGangs(rounding.column, price, problem.worth(rounding.column), tiers[-1], tuple(tiers))
