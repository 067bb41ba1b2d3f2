"""Computes how much of its daily, weekly or monthly budget a tenant has used, and when the next period begins.

Counts the ledger plus running gangs that are not metered yet, so a crash loses nothing and no gang is free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from fairlead.control.records import Tenant
from fairlead.control.store import events, generations, ledger
from fairlead.control.store import tenants as tenants_stored
from fairlead.control.store.row_mapping import insert_into
from fairlead.control.store.schema import budget_notes
from fairlead.errors import OverBudget
from fairlead.scheduling.phrases import budget_text, budget_used_up, utc_minute
from fairlead.scheduling.queues import path_to_top
from fairlead.scheduling.state import SpentBudget
from fairlead.specs import Budget

HOUR_S = 3600.0
_LONGEST_S = 31 * 24 * HOUR_S  # the longest period


@dataclass(frozen=True, slots=True)
class Spending:
    """A tenant's budget and its use in the current period."""

    tenant: str
    device_hours: float
    per: str
    warn_at: float
    used_hours: float
    since_s: float
    until_s: float  # when the next period begins

    @property
    def spent(self) -> SpentBudget | None:
        """For the scheduler; None while some budget is left."""
        return SpentBudget(self.device_hours, self.per, self.until_s) if self.used_hours >= self.device_hours else None

    @property
    def text(self) -> str:
        return budget_text(SpentBudget(self.device_hours, self.per, self.until_s))


@dataclass(frozen=True, slots=True)
class BudgetStop:
    """The time in which a tenant's budget was used up."""

    tenant: str
    from_s: float
    to_s: float


def budget_period(per: str, now_s: float) -> tuple[float, float]:
    """Begin and end of the UTC day, week (from Monday) or month around a moment."""
    midnight = datetime.fromtimestamp(now_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if per == "day":
        first, days = midnight, 1
    elif per == "week":
        first, days = midnight - timedelta(days=midnight.weekday()), 7
    else:
        first = midnight.replace(day=1)
        days = ((first + timedelta(days=32)).replace(day=1) - first).days
    return first.timestamp(), (first + timedelta(days=days)).timestamp()


def spendings(connection: Connection, tenants: Iterable[Tenant], now_s: float) -> dict[str, Spending]:
    """By tenant with a budget: how much of it the tenant and all its subtenants have used."""
    tenants = list(tenants)
    limited = [(tenant.name, Budget.model_validate(dict(tenant.budget))) for tenant in tenants if tenant.budget]
    if not limited:
        return {}
    used: dict[str, Mapping[str, float]] = {}
    running = generations.unmetered_devices(connection)
    found = {}
    for name, wanted in limited:
        since_s, until_s = budget_period(wanted.per, now_s)
        if wanted.per not in used:
            own_s = _used_s(ledger.totals(connection, since_s, now_s), running, since_s, now_s)
            used[wanted.per] = _add_to_ancestors(own_s, tenants)
        hours = used[wanted.per].get(name, 0.0) / HOUR_S
        found[name] = Spending(name, wanted.device_hours, wanted.per, wanted.warn_at, hours, since_s, until_s)
    return found


def _used_s(
    metered: Mapping[str, float], running: Iterable[tuple[str, int, float]], since_s: float, now_s: float
) -> dict[str, float]:
    """Device seconds by tenant: the ledger, plus what running gangs held since they were last metered."""
    used_s: dict[str, float] = defaultdict(float, metered)
    for tenant, devices, metered_s in running:
        used_s[tenant] += devices * max(0.0, now_s - max(metered_s, since_s))
    return used_s


def _add_to_ancestors(own_s: Mapping[str, float], tenants: Iterable[Tenant]) -> dict[str, float]:
    parents = {tenant.name: tenant.parent for tenant in tenants}
    sums: dict[str, float] = defaultdict(float)
    for name, seconds in own_s.items():
        for tenant in path_to_top(name, parents):
            sums[tenant] += seconds
    return sums


def spent_budgets(tenants: Iterable[Tenant], found: Mapping[str, Spending]) -> dict[str, SpentBudget]:
    """By tenant: the used-up budget, its own or a parent's, that stops it from starting jobs (the longest one)."""
    spent = {name: spending.spent for name, spending in found.items() if spending.spent is not None}
    parents = {tenant.name: tenant.parent for tenant in tenants} if spent else {}
    bars = {name: [(one, spent[one]) for one in path_to_top(name, parents) if one in spent] for name in parents}
    longest = {name: max(of, key=lambda each: each[1].again_s) for name, of in bars.items() if of}
    return {name: replace(one, of="" if whose == name else whose) for name, (whose, one) in longest.items()}


def require_budget(connection: Connection, tenant: Tenant, now_s: float) -> None:
    """Raise OverBudget, with the time of the next period, if the tenant's budget or a parent's is used up."""
    path = tenants_stored.ancestry(connection, tenant)
    if not any(each.budget for each in path):
        return
    known = [each for each in tenants_stored.all_tenants(connection) if each.name != tenant.name]
    known.append(tenant)
    spent = spent_budgets(known, spendings(connection, known, now_s)).get(tenant.name)
    if spent is not None:
        raise OverBudget(
            budget_used_up(tenant.name, spent), field="budget", value=f"{spent.device_hours:g}h/{spent.per}",
            fix=f"submit it again from {utc_minute(spent.again_s)} on, or ask an admin for a larger budget",
        )  # fmt: skip


def budget_stops(connection: Connection, tenants: Sequence[Tenant], since_s: float, now_s: float) -> list[BudgetStop]:
    """When tenants had used up their budgets, within a range of time.

    A budget that was raised since is left out: when it was raised is not recorded.
    """
    spent = {name for name, spending in spendings(connection, tenants, now_s).items() if spending.spent is not None}
    limited = {tenant.name for tenant in tenants if tenant.budget}
    used_up = events.budgets_used_up(connection, since_s - _LONGEST_S)
    spans = [BudgetStop(str(event.tenant), event.time_s, float(event.facts["until_s"])) for event in used_up]
    kept = [span for span in spans if span.to_s > since_s and span.tenant in (spent if span.to_s > now_s else limited)]
    parents = {tenant.name: tenant.parent for tenant in tenants}
    return [
        replace(span, tenant=name) for span in kept for name in parents if span.tenant in path_to_top(name, parents)
    ]


def record_budget_events(connection: Connection, found: Iterable[Spending], now_s: float) -> None:
    """Write an event when a budget is nearly used up and when it is used up, each once per period."""
    for spending in found:
        if spending.spent is not None:
            kind, part = "budget-used-up", "has used up its"
        elif spending.used_hours >= spending.warn_at * spending.device_hours:
            kind, part = "budget-warning", f"has used {spending.used_hours / spending.device_hours:.0%} of its"
        else:
            continue
        note = {"tenant": spending.tenant, "since_s": spending.since_s, "device_hours": spending.device_hours}
        first = insert_into(connection.dialect.name, budget_notes).values(note | {"kind": kind})
        is_new = connection.execute(first.on_conflict_do_nothing().returning(budget_notes.c.kind)).first()
        if is_new is not None:
            text = f"tenant {spending.tenant} {part} {spending.text}; the next begins {utc_minute(spending.until_s)}"
            events.append(connection, time_s=now_s, kind=kind, text=text, tenant=spending.tenant,
                          facts=note | {"used_hours": spending.used_hours, "until_s": spending.until_s})  # fmt: skip
