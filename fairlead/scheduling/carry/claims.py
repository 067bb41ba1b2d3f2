"""Entitlements in whole devices: what a tenant may insist on now, while fractions take turns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import floor

from fairlead.scheduling.state import TenantState

INCUMBENT = 0.25
"""Devices by which a tenant that already uses a shared-out fraction is preferred, so that fractions do not flip."""


def claims(
    entitled: Mapping[str, float],
    tenants: Iterable[TenantState],
    used: Mapping[str, int],
    owed: Mapping[str, float] | None = None,
) -> Mapping[str, int]:
    """Whole devices that add up: largest remainders first, with a preference for who uses it now or is owed some.

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
        return (not last_seat, -round(remainder + (owed or {}).get(name, 0.0), 6),
                tenant.attained_device_s / tenant.weight, name)  # fmt: skip

    fractions = [name for name in whole if entitled[name] - whole[name] > 1e-6]
    for name in sorted(fractions, key=strength)[:spare]:
        whole[name] += 1
    return whole
