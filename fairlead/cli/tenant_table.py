"""The table of tenants, with child tenants indented below their parent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fairlead.cli import limit_options, output
from fairlead.cli.text_tables import FIXED_SPACE, Column
from fairlead.units import shown_counts

if TYPE_CHECKING:
    from fairlead.views.jobs import TenantView

NEVER = 10_000  # wider than any terminal


def table(tenants: list[TenantView]) -> None:
    """Print the tenants. Columns of budgets and hierarchies appear only when used, and displace minor columns."""
    budgets = any(each.spending is not None for each in tenants)
    nested = any(each.parent or each.guarantee or each.most for each in tenants)
    extra_width = 30 * nested + 10 * budgets
    columns = [
        Column("TENANT"), Column("WEIGHT", right=True),
        Column("QUOTA", right=True, from_width=80 + extra_width if extra_width else 0),
        Column("GUARANTEE", right=True, from_width=0 if nested else NEVER),
        Column("MAX", right=True, from_width=0 if nested else NEVER), Column("ENTITLED", right=True),
        Column("IN USE", right=True), Column("LENT", right=True, from_width=0 if nested else NEVER),
        Column("RUNNING", right=True, from_width=95 if nested else 0),
        Column("QUEUED", right=True, from_width=95 if nested else 0),
        Column("USED", right=True, from_width=110 if nested else 0),
        Column("BUDGET", right=True, from_width=(120 if nested else 0) if budgets else NEVER),
        Column("SLA", from_width=90 + extra_width),
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
    if tenants:
        output.legend(_legend({column.title for column in columns if output.screen().columns >= column.from_width}))


def _legend(shown: set[str]) -> str:
    """Units of the visible columns."""
    units = {
        "devices": ("QUOTA", "GUARANTEE", "MAX", "ENTITLED", "IN USE", "LENT"), "jobs": ("RUNNING", "QUEUED"),
        "device time so far": ("USED",),
    }  # fmt: skip
    names = {unit: [title for title in titles if title in shown] for unit, titles in units.items()}
    return "; ".join(f"{', '.join(titles)}: {unit}" for unit, titles in names.items() if titles)


def in_tree(tenants: list[TenantView]) -> Iterator[tuple[TenantView, int]]:
    """Each tenant with its depth, followed by its children; a tenant whose parent is not visible is top level."""
    names = {each.name for each in tenants}
    below: dict[str | None, list[TenantView]] = {}
    for each in tenants:
        below.setdefault(each.parent if each.parent in names else None, []).append(each)
    stack = [(each, 0) for each in reversed(below.get(None, []))]
    while stack:
        each, depth = stack.pop()
        yield each, depth
        stack += [(child, depth + 1) for child in reversed(below.get(each.name, []))]


def lent(tenant: TenantView) -> str:
    """Devices that the tenant borrowed beyond its share, or lent to others."""
    if abs(tenant.borrowed) < 0.005:
        return "–"
    amount = output.number(round(abs(tenant.borrowed), 2))
    return f"borrowed {amount}" if tenant.borrowed > 0 else f"lent {amount}"


def _spent(tenant: TenantView) -> str:
    if tenant.spending is None:
        return "–"
    used = output.percent(tenant.spending.used_hours / tenant.spending.device_hours)
    return f"{used} of {limit_options.format_budget(tenant.budget)}"
