"""Shares over time from the ledger and the jobs: what each tenant held and what it was entitled to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil

from fairlead.control.accounting.budgets import BudgetStop
from fairlead.control.accounting.report import Held, fairness
from fairlead.control.reconcile.cluster_state import tenant_state
from fairlead.control.records import Tenant
from fairlead.scheduling.shares import entitlements
from fairlead.views.reports import ShareLine, SharesView

_MAJORITY = 0.5


@dataclass(frozen=True, slots=True)
class Window:
    """A range of time split into equal intervals."""

    since_s: float
    until_s: float
    points: int

    @property
    def step_s(self) -> float:
        return (self.until_s - self.since_s) / self.points

    def overlaps(self, from_s: float, to_s: float) -> Iterable[tuple[int, float]]:
        """The intervals that a period touches, each with the covered fraction."""
        begin, end = ((max(from_s, self.since_s) - self.since_s) / self.step_s,
                      (min(to_s, self.until_s) - self.since_s) / self.step_s)  # fmt: skip
        for index in range(int(begin), min(ceil(end), self.points)):
            yield index, min(end, index + 1) - max(begin, index)


@dataclass(frozen=True, slots=True)
class DemandSpan:
    """A period in which a tenant had at least one job that wanted devices."""

    tenant: str
    from_s: float
    to_s: float


def shares_view(
    tenants: Sequence[Tenant], wishes: Iterable[DemandSpan], ledger: Sequence[Held], devices: int, window: Window,
    barred: Iterable[BudgetStop] = (),
) -> SharesView:  # fmt: skip
    """Held and entitled devices over time, for a plot."""
    held = {tenant.name: [0.0] * window.points for tenant in tenants}
    for line in ledger:
        of_tenant = held.get(line.tenant)
        if of_tenant is not None:
            for index, part in window.overlaps(line.from_s, line.to_s):
                of_tenant[index] += line.devices * part
    entitled = _entitled(tenants, _active(wishes, barred, window), devices)
    return SharesView(
        since_s=window.since_s,
        until_s=window.until_s,
        step_s=window.step_s,
        devices=devices,
        fairness=fairness(tenants, ledger),
        tenants=[
            ShareLine(
                tenant=tenant.name,
                weight=tenant.weight,
                held=[round(value, 3) for value in held[tenant.name]],
                entitlement=entitled[tenant.name],
            )
            for tenant in tenants
        ],
    )


def _active(wishes: Iterable[DemandSpan], barred: Iterable[BudgetStop], window: Window) -> list[set[str]]:
    """Tenants that could claim devices in each interval: with jobs, and with budget left for most of it."""
    active: list[set[str]] = [set() for _ in range(window.points)]
    for wish in wishes:
        for index, _ in window.overlaps(wish.from_s, wish.to_s):
            active[index].add(wish.tenant)
    for span in barred:
        for index, part in window.overlaps(span.from_s, span.to_s):
            if part > _MAJORITY:
                active[index].discard(span.tenant)
    return active


def _entitled(tenants: Sequence[Tenant], active: Sequence[set[str]], devices: int) -> dict[str, list[float]]:
    """Weighted max-min among the active tenants of each interval; the others were entitled to nothing."""
    states = {tenant.name: tenant_state(tenant) for tenant in tenants}
    entitled = {tenant.name: [0.0] * len(active) for tenant in tenants}
    known: dict[frozenset[str], dict[str, float]] = {}  # cache: few sets of tenants, many intervals
    for index, names in enumerate(active):
        present = frozenset(names & states.keys())
        if present not in known:
            want_all = dict.fromkeys(present, float(devices))
            known[present] = dict(entitlements(states.values(), want_all, devices))
        for name, amount in known[present].items():
            entitled[name][index] = round(amount, 3)
    return entitled
