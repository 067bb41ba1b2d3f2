"""Computes what each tenant may claim: weighted max-min shares, with unused share lent to tenants with demand (U4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.scheduling.queues import Demand, Tree, divide_capacity
from fairlead.scheduling.state import TenantState


def entitlements(
    tenants: Iterable[TenantState], demand_by_tenant: Mapping[str, float], capacity: float
) -> Mapping[str, float]:
    """Devices that each tenant's own jobs may claim: W_T / ΣW of what it divides with its siblings, at most its demand
    and quota; the rest is lent by weight. What the teams below a tenant may claim is not counted again."""
    named = sorted(tenants, key=lambda tenant: tenant.name)
    tree = Tree.of(named)
    leaf = {tenant.name: tree.own(tenant.name) for tenant in named}
    demand = Demand({leaf[name]: amount for name, amount in demand_by_tenant.items() if name in leaf})
    found = divide_capacity(tree, demand, capacity)
    return {name: found[queue] for name, queue in leaf.items()}
