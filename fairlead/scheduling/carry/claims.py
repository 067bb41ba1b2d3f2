"""What a tenant may insist on now, in whole devices: its share and what it is owed, while fractions take turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import floor

import numpy as np

from fairlead.scheduling.market.offers import Floats
from fairlead.scheduling.market.repay import within
from fairlead.scheduling.market.tenants import Shares
from fairlead.scheduling.state import TenantState

INCUMBENT = 0.25
"""Devices by which a tenant that already uses a shared-out fraction is preferred, so that fractions do not flip."""


def claims(entitled: Mapping[str, float], tenants: Iterable[TenantState], used: Mapping[str, int]) -> Mapping[str, int]:
    """Whole devices that add up: largest remainders first, with a preference for who uses it now.

    A tenant with less than one device that runs something keeps it, since a last gang is never taken (see preempt):
    its claim says so, so that others look for their devices where they can get them.
    """
    whole = {name: floor(amount + 1e-9) for name, amount in sorted(entitled.items())}
    spare = floor(sum(entitled.values()) + 1e-6) - sum(whole.values())
    standing = {tenant.name: tenant for tenant in tenants}

    def strength(name: str) -> tuple[bool, float, float, str]:
        tenant, incumbent = standing.get(name, TenantState(name)), used.get(name, 0) > whole[name]
        remainder = entitled[name] - whole[name] + (INCUMBENT if incumbent else 0.0)
        last_seat = incumbent and whole[name] == 0
        return not last_seat, -round(remainder, 6), tenant.attained_device_s / tenant.weight, name

    fractions = [name for name in whole if entitled[name] - whole[name] > 1e-6]
    for name in sorted(fractions, key=strength)[:spare]:
        whole[name] += 1
    return whole


def repaid(parts: Shares, wanted: Mapping[str, float], devices: float, gives: float) -> dict[str, float]:
    """By queue: its share with what it is owed, or without what it had too much, as far as that can be used.

    As in the market, nobody is repaid by others with more than a part of their shares for what none of them had. Live,
    devices change hands only when somebody insists on them: so a tenant that had too much insists on less only as far
    as others, who are owed, insist on more, and on one device while it runs anything.
    """
    if len(parts.names) == 1:
        return dict(parts.entitled)
    number = {name: at for at, name in enumerate(parts.names)}
    asks = np.minimum(np.array([wanted.get(name, 0.0) for name in parts.names]), parts.ceiling)
    kept = np.where(parts.has > 0, np.minimum(parts.claim, 1.0), 0.0)
    found = np.maximum(np.minimum(parts.claim + parts.repays, np.maximum(asks, parts.claim)), kept)
    tiers: list[str | None] = [None]
    while tiers:
        parent = tiers.pop()
        below = parts.tree.below.get(parent, ())
        if below:
            at = [number[name] for name in below]
            there = devices if parent is None else float(found[number[parent]])
            found[at] = _given_back(within(found[at], parts.claim[at], there, gives), parts.claim[at], there)
            tiers += below
    return dict(zip(parts.names, found.tolist(), strict=True))


def _given_back(claims: Floats, shares: Floats, devices: float) -> Floats:
    """What nobody is owed stays with those who have a share in it."""
    short = np.maximum(shares - claims, 0.0)
    left = min(devices, float(shares.sum())) - float(claims.sum())
    return claims + short * min(1.0, max(0.0, left) / max(float(short.sum()), 1e-12))
