"""Measures fairness over time (Jain's index), speeds repayment up while it is low, and rounds budgets to devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.menus import Floats, Ints
from fairlead.scheduling.metrics import jain

INCUMBENT = 0.5
"""Bonus in devices for a tenant that already uses a fraction that is rounded up, so that gangs keep their size."""

LEAST_S = 3_600.0
"""A tenant counts in the index once so many device seconds were due to it."""


class ServiceReceived(Protocol):
    """Device time that was due to a tenant lately, and what it had of it."""

    @property
    def due_s(self) -> float: ...

    @property
    def ratio(self) -> float: ...

    @property
    def now_ratio(self) -> float | None: ...

    @property
    def owed(self) -> float: ...


def judge_fairness(
    accounts: Mapping[str, ServiceReceived], config: MarketConfig, *, corrects: bool = False
) -> dict[str, Any]:
    """Jain's index of what tenants had over what was due to them; below ``fair`` it is corrected and reported (M7).

    If the last round ``corrects`` already, correction continues until the index is clearly above ``fair``. A correction
    takes hours to show; ``now`` is the index of the last minutes, over all tenants with a claim.
    """
    ratios = [ratio for account in accounts.values() if (ratio := account.now_ratio) is not None]
    seen = {name: account for name, account in sorted(accounts.items()) if account.due_s >= LEAST_S}
    index = jain(account.ratio for account in seen.values()) if len(seen) > 1 else 1.0
    corrects = index < min(1.0, config.fair + config.restored if corrects else config.fair)
    behind = {name: seen[name].ratio for name in seen if seen[name].owed > 0} if corrects else {}
    ahead = [name for name in seen if seen[name].owed < 0] if corrects else []
    return {"index": index, "now": jain(ratios), "threshold": config.fair, "corrects": corrects, "behind": behind,
            "ahead": ahead, "within_s": config.hurry_s if corrects else config.repay_s,
            "text": _said(index, behind, config) if corrects else ""}  # fmt: skip


def _said(index: float, behind: Mapping[str, float], config: MarketConfig) -> str:
    who = ", ".join(f"{name} had {ratio:.0%} of what was due" for name, ratio in behind.items())
    low = f", below {config.fair:.2f}" if index < config.fair else f", not yet clearly above {config.fair:.2f}"
    return (
        f"the index of fairness between tenants is {index:.2f}{low}: what is owed is repaid within "
        f"{config.hurry_s / 60:.0f} minutes" + (f" ({who})" if who else "")
    )


def fit_budgets(budget: Floats, entitled: Floats, devices: float, gives: float) -> Floats:
    """Budgets reduced to what there is, where debts are larger than what other tenants had too much.

    Devices stay idle for want of a fitting gang, or while gangs restart: that creates debts that no tenant profited
    from. All tenants repay them in proportion to their shares, with at most the part ``gives`` of them; budgets still
    beyond the shares are cut in proportion.
    """
    over = float(budget.sum()) - devices
    if over <= 0:
        return budget
    level = min(gives, over / max(float(entitled.sum()), 1e-12))
    least = entitled * (1.0 - level)
    budget = np.maximum(budget - entitled * level, 0.0)
    over, beyond = float(budget.sum()) - devices, np.maximum(budget - least, 0.0)
    return budget if over <= 0 else budget - beyond * min(1.0, over / max(float(beyond.sum()), 1e-12))


def budgets_by_tier(
    budget: Floats, entitled: Floats, used: Floats, above: Ints, devices: float, gives: float
) -> Floats:
    """Budgets of a queue tree in whole devices: children divide the budget of their parent.

    ``above`` is the index of each queue's parent, -1 at the top; flat tenants are a tree of one tier.
    """
    found, tiers = budget.copy(), [-1]
    while tiers:
        parent = tiers.pop()
        at = np.nonzero(above == parent)[0]
        if len(at):
            there = devices if parent < 0 else float(found[parent])
            some = fit_budgets(found[at], entitled[at], there, gives)
            found[at] = in_whole_devices(some, used[at], min(there, float(entitled[at].sum())) if parent < 0 else there)
            tiers += at.tolist()
    return found


def in_whole_devices(budget: Floats, used: Floats, total: float) -> Floats:
    """Rounds up the largest remainders, with a bonus for tenants that have so many devices already."""
    floor = np.floor(budget + 1e-9)
    remainder = budget - floor
    spare = max(0, int(np.floor(total + 1e-6) - floor.sum()))
    strength = np.where(remainder > 1e-6, remainder + np.where(used > floor, INCUMBENT, 0.0), -np.inf)
    order = np.argsort(-np.round(strength, 6), kind="stable")[:spare]
    floor[order[np.isfinite(strength[order])]] += 1.0
    return floor
