"""What each tenant may claim: weighted max-min shares of the devices, unused share lent to who has demand (U4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.scheduling.queues import Demand, Tree, divided
from fairlead.scheduling.state import TenantState


def entitlements(
    tenants: Iterable[TenantState], demand_by_tenant: Mapping[str, float], capacity: float
) -> Mapping[str, float]:
    """Devices that the jobs of each tenant itself may claim: W_T / ΣW of what its siblings and it divide, never more
    than demand or quota, the rest lent by weight. What a tenant's teams may claim is theirs, and not counted again."""
    named = sorted(tenants, key=lambda tenant: tenant.name)
    tree = Tree.of(named)
    leaf = {tenant.name: tree.own(tenant.name) for tenant in named}
    found = divided(tree, Demand({leaf[name]: amount for name, amount in demand_by_tenant.items() if name in leaf}),
                    capacity)  # fmt: skip
    return {name: found[queue] for name, queue in leaf.items()}
