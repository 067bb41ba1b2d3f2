"""What each tenant may claim: weighted max-min shares of the devices, unused share lent to who has demand (U4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import floor

from fairlead.scheduling.board import Board
from fairlead.scheduling.gain import ceiling
from fairlead.scheduling.queues import Demand, Tree, divided
from fairlead.scheduling.state import JobState, TenantState

INCUMBENT = 0.25
"""Devices by which a tenant that already uses a shared-out fraction is preferred, so that fractions do not flip."""


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


def claims(
    entitled: Mapping[str, float], tenants: Iterable[TenantState], used: Mapping[str, int]
) -> Mapping[str, int]:
    """Entitlements in whole devices that add up: largest remainders first, with a preference for who uses it now.

    A tenant with less than one device that runs something keeps it, since a last gang is never taken (see preempt):
    its claim says so, so that others look for their devices where they can get them.
    """
    whole = {name: floor(amount + 1e-9) for name, amount in sorted(entitled.items())}
    spare = floor(sum(entitled.values()) + 1e-6) - sum(whole.values())
    standing = {tenant.name: tenant for tenant in tenants}

    def strength(name: str) -> tuple[bool, float, float, str]:
        tenant, incumbent = standing[name], used.get(name, 0) > whole[name]
        remainder = entitled[name] - whole[name] + (INCUMBENT if incumbent else 0.0)
        last_seat = incumbent and whole[name] == 0
        return (not last_seat, -round(remainder, 6), tenant.attained_device_s / tenant.weight, name)

    fractions = [name for name in whole if entitled[name] - whole[name] > 1e-6]
    for name in sorted(fractions, key=strength)[:spare]:
        whole[name] += 1
    return whole


def demands(board: Board, jobs: Iterable[JobState]) -> Mapping[str, int]:
    """Devices each tenant could use now: what no node could ever give is no demand, so its share is lent."""
    wanted: dict[str, int] = {}
    by_type: dict[tuple[str, str], int] = {}
    for job in jobs:
        devices = _wanted(board, job)
        if job.device_type is None:
            wanted[job.tenant] = wanted.get(job.tenant, 0) + devices
        else:
            key = (job.tenant, job.device_type)
            by_type[key] = by_type.get(key, 0) + devices
    for (tenant, device_type), devices in by_type.items():
        there = sum(node.devices for node in board.nodes.values() if node.device_type == device_type)
        wanted[tenant] = wanted.get(tenant, 0) + min(devices, there)
    return wanted


def _wanted(board: Board, job: JobState) -> int:
    sitting = len(board.seats.get(job.id, ()))
    if sitting and not job.elastic:
        return max(sitting, job.min_workers if job.broken else 0)
    most = board.most(board.shape(job))
    if most < job.min_workers:
        return sitting
    return max(sitting if job.settling else 0, min(ceiling(job), most))
