"""Checks changes to the hierarchy of tenants, and computes each tenant's share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fairlead.cluster import Node
from fairlead.control.reconcile.cluster_state import tenant_state
from fairlead.control.records import Tenant
from fairlead.errors import NotFound, Refused
from fairlead.scheduling.explain import CanNeverRun
from fairlead.scheduling.phrases import devices
from fairlead.scheduling.queues import Demand, Tree, divide_capacity
from fairlead.scheduling.state import JobState
from fairlead.units import shown_counts


def check_tenant(changed: Tenant, others: Iterable[Tenant], nodes: Iterable[Node]) -> None:
    """Refuse a tenant whose parent is missing or below itself, or with guarantees that the tenants above cannot
    keep."""
    known = {tenant.name: tenant for tenant in others} | {changed.name: changed}
    _check_parents(changed, known)
    there: Counter[str] = Counter()
    for node in nodes:
        there[node.device_type] += node.devices
    for parent in (changed.name, changed.parent):
        _check_guarantees(changed, parent, known, there)


def _check_parents(changed: Tenant, known: Mapping[str, Tenant]) -> None:
    if changed.parent is None:
        return
    if changed.parent not in known:
        others = ", ".join(sorted(known.keys() - {changed.name})) or "nobody yet"
        raise NotFound(
            f"there is no tenant {changed.parent!r}", field="parent", value=changed.parent,
            fix=f"create it first: fairlead tenant create {changed.parent}, or name one of: {others}",
        )  # fmt: skip
    path: list[str] = [changed.name]
    at: str | None = changed.parent
    while at is not None:
        if at in path:
            raise Refused(
                f"{changed.name} would stand below itself: {' below '.join([*path, at])}", field="parent",
                value=changed.parent, fix=f"give {path[-1]} another parent first, or name one above {changed.name}",
            )  # fmt: skip
        path.append(at)
        at = known[at].parent


def _check_guarantees(
    changed: Tenant, parent: str | None, known: Mapping[str, Tenant], there: Mapping[str, int]
) -> None:
    """The guarantees below a tenant (None: at the top) must fit within what is guaranteed to it or exists."""
    below = [tenant for tenant in known.values() if tenant.parent == parent and tenant.guarantee]
    have = there if parent is None else known[parent].guarantee
    for kind in sorted({kind for tenant in below for kind in tenant.guarantee}):
        sure = sum(tenant.guarantee.get(kind, 0) for tenant in below)
        if sure <= have.get(kind, 0):
            continue
        parts = ", ".join(f"{tenant.name} {tenant.guarantee[kind]}" for tenant in below if tenant.guarantee.get(kind))
        if parent is None:
            what = f"the {have.get(kind, 0)} devices of type {kind} that there are" if have.get(kind) else (
                f"there are: no node has devices of type {kind}")  # fmt: skip
            fix = f"lower a guarantee of {kind}, or add nodes (fairlead nodes)"
        else:
            what = f"the {have.get(kind, 0)} that are guaranteed to {parent} above"
            fix = f"raise that one first: fairlead tenant update {parent} --guarantee {shown_counts({kind: sure})}"
            if parent == changed.name:
                fix = f"lower theirs first: fairlead tenant update {below[0].name} --guarantee none"
        raise Refused(f"{sure} of {kind} guaranteed ({parts}) are more than {what}", field="guarantee",
                      value=changed.guarantee.get(kind, 0), fix=fix)  # fmt: skip


def why_beyond_limits(job: JobState, path: Sequence[Tenant], nodes: Iterable[Node]) -> CanNeverRun | None:
    """Why a gang could never start under the limits of its tenant and of those above it; None if it could."""
    kinds = [job.device_type] if job.device_type else sorted({node.device_type for node in nodes})
    tightest: list[tuple[float, str, str]] = []
    for kind in kinds:
        limits = [(float(one.quota), one.name, "quota") for one in path if one.quota is not None]
        limits += [(float(one.most[kind]), one.name, f"most of {kind}") for one in path if kind in one.most]
        if not limits or min(limits)[0] >= job.min_workers:
            return None
        tightest.append(min(limits))
    if not tightest:
        return None
    allowed, whose, what = max(tightest)
    text = f"{job.min_workers} is more than the {what} of {devices(int(allowed))} that tenant {whose} has"
    return CanNeverRun("workers.min", job.min_workers, text, "lower workers.min, or ask an admin to raise that limit")


@dataclass(frozen=True, slots=True)
class TenantShare:
    """What a tenant may claim now, its share if all wanted everything, and what the tenants below it hold."""

    entitlement: float
    share: float
    below: int
    borrowed: float  # beyond its share; negative: lent to others


def tenant_shares(
    tenants: Sequence[Tenant], decided: Mapping[str, float], held: Mapping[str, int], number: int,
    barred: Collection[str] = (),
) -> dict[str, TenantShare]:  # fmt: skip
    """The share of each tenant, of this many devices. A tenant without jobs claims nothing: it is shown its share.

    ``barred`` tenants, whose budget is used up, may claim no more than was decided.
    """
    tree = Tree.of(tenant_state(tenant) for tenant in tenants)
    due = shares(tree, number)
    used = tree.summed({name: float(count) for name, count in held.items() if name in tree.queues})
    over = {name: used[name] - due[name] for name in tree.queues}
    leaves = [name for name in sorted(tree.tenants) if name not in tree.below]
    wanted = sum(max(0.0, over[name]) for name in leaves)
    unused = sum(max(0.0, -over[name]) for name in leaves)
    part = min(1.0, wanted / unused) if unused > 0 else 0.0  # fraction of the unused part that others use
    return {
        name: TenantShare(
            entitlement=decided.get(name) or (0.0 if name in barred else due[name]),
            share=due[name],
            below=int(used[name]) - held.get(name, 0),
            borrowed=over[name] if over[name] > 0 else over[name] * part,
        )
        for name in sorted(tree.tenants)
    }


def shares(tree: Tree, number: int) -> dict[str, float]:
    """Each tenant's share if all wanted everything, including tenants below; leaves out own work beside teams."""
    leaves = (name for name in tree.tenants if name not in tree.below)
    return divide_capacity(tree, Demand({name: float(number) for name in leaves}), float(number))
