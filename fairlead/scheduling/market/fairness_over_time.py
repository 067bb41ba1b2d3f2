"""Fairness over time: the index between tenants, what is done when it is low, and budgets in whole devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from fairlead.scheduling.market.config import MarketConfig
from fairlead.scheduling.market.menus import Floats, Ints
from fairlead.scheduling.metrics import jain

INCUMBENT = 0.5
"""Devices by which a tenant that uses a shared-out fraction already is preferred: so that gangs keep their size."""

LEAST_S = 3_600.0
"""Device seconds that were due to a tenant before its part is judged at all."""


class ServiceReceived(Protocol):
    """What was due to a tenant lately, and what it had of that."""

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
    """Jain's index of what tenants had over what was due to them; below the dial it is corrected, and said so (M7).

    Where the last round ``corrects`` already, it goes on until the index is clearly above the dial. What is corrected
    takes hours to see; ``now`` is the index of the last minutes, over everybody to whom anything was due.
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
    """Budgets that can all be had at once, where more is owed than anybody had too much.

    Devices stay idle for want of a gang that fits, or while gangs restart: that is owed to somebody, but nobody had it.
    So who is owed much is repaid by all, in proportion to their shares but with no more than this part of them; what
    is still promised beyond the shares is cut, for all alike.
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
    """Budgets of queues above and below each other, in whole devices: those below one divide what it has.

    ``above`` is the number of the queue above each, -1 at the top; a list of tenants is a tree of one tier.
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
    """The largest remainders are rounded up, those of tenants first who have so many devices already."""
    floor = np.floor(budget + 1e-9)
    remainder = budget - floor
    spare = max(0, int(np.floor(total + 1e-6) - floor.sum()))
    strength = np.where(remainder > 1e-6, remainder + np.where(used > floor, INCUMBENT, 0.0), -np.inf)
    order = np.argsort(-np.round(strength, 6), kind="stable")[:spare]
    floor[order[np.isfinite(strength[order])]] += 1.0
    return floor
