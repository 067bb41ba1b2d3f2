"""What each tenant may use this round: its share of the devices, and what it was denied or lent too much lately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairlead.scheduling.market.dials import Dials
from fairlead.scheduling.market.offers import Floats
from fairlead.scheduling.shares import entitlements
from fairlead.scheduling.state import JobState, TenantState


@dataclass(frozen=True, slots=True)
class Account:
    """Device seconds that a tenant is owed (positive) or has had too much (negative), and what it has now."""

    owed: float = 0.0
    entitled: float = 0.0
    used: float = 0.0


@dataclass(frozen=True, slots=True)
class Shares:
    """By tenant in the order of names: the share now, the budget that follows from it, and the hard limit."""

    names: tuple[str, ...]
    entitled: Mapping[str, float]
    budget: Floats
    ceiling: Floats
    accounts: Mapping[str, Account]
    now_s: float

    def memory(self, used: Mapping[str, float]) -> dict[str, Any]:
        """To be seen again next round, with what was given out now."""
        kept = {
            name: Account(self.accounts[name].owed, self.entitled[name], float(used.get(name, 0)))
            for name in self.names
        }
        return {"accounts": kept, "at_s": self.now_s}


def shares(
    tenants: Sequence[TenantState], jobs: Sequence[JobState], devices: float, now_s: float,
    memory: Mapping[str, Any], dials: Dials,
) -> Shares:  # fmt: skip
    """Weighted max-min shares of the devices, corrected by what is owed, so that whole gangs even out over time."""
    known = {tenant.name: tenant for tenant in tenants}
    for job in jobs:
        known.setdefault(job.tenant, TenantState(job.tenant))
    names = tuple(sorted(known))
    demand: dict[str, float] = dict.fromkeys(names, 0.0)
    for job in jobs:
        demand[job.tenant] += min(job.max_workers, devices)
    entitled = entitlements([known[name] for name in names], demand, devices)
    accounts = _aged(memory, names, now_s, dials)
    budget = np.array([_budget(entitled[name], accounts[name], dials) for name in names])
    ceiling = np.array([np.inf if known[name].quota is None else float(known[name].quota or 0) for name in names])
    ceiling = np.where([known[name].spent is not None for name in names], 0.0, ceiling)
    if len(names) == 1:
        budget = np.array([devices])
    return Shares(names, entitled, budget, ceiling, accounts, now_s)


def _budget(entitled: float, account: Account, dials: Dials) -> float:
    return max(0.0, entitled + account.owed / dials.repay_s)


def _aged(memory: Mapping[str, Any], names: Sequence[str], now_s: float, dials: Dials) -> dict[str, Account]:
    """What was owed fades; what the last round gave or denied is added."""
    before: Mapping[str, Account] = memory.get("accounts", {})
    seconds = max(0.0, now_s - float(memory.get("at_s", now_s)))
    fading = 0.5 ** (seconds / dials.forget_s)
    found = {}
    for name in names:
        account = before.get(name, Account())
        found[name] = Account(account.owed * fading + (account.entitled - account.used) * seconds)
    return found
