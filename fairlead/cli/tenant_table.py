"""Tenants as a table: those that divide another's share stand indented below it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fairlead.cli import limit_options, output
from fairlead.cli.text_tables import FIXED_SPACE, Column
from fairlead.units import shown_counts

if TYPE_CHECKING:
    from fairlead.views.jobs import TenantView

NEVER = 10_000  # columns that no terminal has


def table(tenants: list[TenantView]) -> None:
    """With a budget or with queues above and below each other, what is less important gives way."""
    limited = any(each.spending is not None for each in tenants)
    nested = any(each.parent or each.guarantee or each.most for each in tenants)
    crowded = 30 * nested + 10 * limited
    columns = [
        Column("TENANT"), Column("WEIGHT", right=True),
        Column("QUOTA", right=True, from_width=80 + crowded if crowded else 0),
        Column("SURE", right=True, from_width=0 if nested else NEVER),
        Column("MOST", right=True, from_width=0 if nested else NEVER), Column("ENTITLED", right=True),
        Column("HOLDS", right=True), Column("LENT", right=True, from_width=0 if nested else NEVER),
        Column("RUNNING", right=True, from_width=95 if nested else 0),
        Column("QUEUED", right=True, from_width=95 if nested else 0),
        Column("USED", right=True, from_width=110 if nested else 0),
        Column("BUDGET", right=True, from_width=(120 if nested else 0) if limited else NEVER),
        Column("SLA", from_width=90 + crowded),
    ]  # fmt: skip
    rows = (
        [
            FIXED_SPACE * 2 * depth + each.name, output.number(each.weight), "–" if each.quota is None else each.quota,
            shown_counts(each.guarantee) or "–", shown_counts(each.most) or "–", output.number(each.entitlement),
            each.devices + each.devices_below, lent(each), each.running, each.queued, output.duration(each.device_s),
            _spent(each), " ".join(f"{name} {value}" for name, value in each.sla.items() if value) or "–",
        ]
        for each, depth in in_tree(tenants)
    )  # fmt: skip
    output.table(columns, rows, empty="no tenants; create one: fairlead tenant create NAME")


def in_tree(tenants: list[TenantView]) -> Iterator[tuple[TenantView, int]]:
    """Each tenant followed by those below it, with how deep it stands; of whom one may not see, nobody knows."""
    names = {each.name for each in tenants}
    below: dict[str | None, list[TenantView]] = {}
    for each in tenants:
        below.setdefault(each.parent if each.parent in names else None, []).append(each)
    open_ = [(each, 0) for each in reversed(below.get(None, []))]
    while open_:
        each, depth = open_.pop()
        yield each, depth
        open_ += [(child, depth + 1) for child in reversed(below.get(each.name, []))]


def lent(tenant: TenantView) -> str:
    """Devices beyond its share that it was lent, or that others have of its share."""
    if abs(tenant.borrowed) < 0.005:
        return "–"
    amount = output.number(round(abs(tenant.borrowed), 2))
    return f"has {amount} of others" if tenant.borrowed > 0 else f"{amount} to others"


def _spent(tenant: TenantView) -> str:
    if tenant.spending is None:
        return "–"
    used = output.percent(tenant.spending.used_hours / tenant.spending.device_hours)
    return f"{used} of {limit_options.written(tenant.budget)}"
