"""Phrases shared by all reasons: the same words for the same thing in every sentence that people read."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from fairlead.cluster import DEVICE
from fairlead.scheduling.state import Reason, SpentBudget
from fairlead.units import shown_size

LAST_S, BEYOND = 253_402_300_800.0, "a time after the year 9999"
"""The end of the year 9999, the last that has a date."""


def devices(count: int, device_type: str | None = None) -> str:
    """``2 devices of type a100``: the same words in every sentence."""
    kind = f" of type {device_type}" if device_type else ""
    return f"{count} device{'' if count == 1 else 's'}{kind}"


def workers(count: int) -> str:
    return f"{count} worker{'' if count == 1 else 's'}"


def node_list(seats: tuple[str, ...]) -> str:
    """``node-1 and node-2``: the nodes of a gang, each once."""
    names = list(dict.fromkeys(seats))
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} more nodes"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def with_resources(need: Iterable[tuple[str, float]]) -> str:
    """`` with 1 cpu and 2 GB memory``: resources that a worker needs besides its device; empty if none."""
    parts = [_amount(name, value) for name, value in need if name != DEVICE]
    return f" with {' and '.join(parts)}" if parts else ""


def _amount(name: str, value: float) -> str:
    return f"{value / 1e9:.3g} GB {name}" if name == "memory" else f"{value:.3g} {name}"


def amount_shown(name: str, amount: float) -> str:
    """``4GB``, ``2 cpu``: an amount as people write it in a job."""
    return shown_size(int(amount)).replace(" ", "") if name == "memory" else f"{amount:.3g} {name}"


def utc_minute(epoch_s: float) -> str:
    """``2026-12-01 00:00 UTC``: a time to the minute."""
    return f"{datetime.fromtimestamp(epoch_s, UTC):%Y-%m-%d %H:%M} UTC" if 0 <= epoch_s < LAST_S else BEYOND


def utc_second(epoch_s: float) -> str:
    """``2026-12-01 00:00:05 UTC``: a time to the second."""
    return f"{datetime.fromtimestamp(epoch_s, UTC):%Y-%m-%d %H:%M:%S} UTC" if 0 <= epoch_s < LAST_S else BEYOND


def utc_time(epoch_s: float) -> str:
    """``18:04:10 UTC``: the time of day, for events within minutes."""
    return f"{datetime.fromtimestamp(epoch_s, UTC):%H:%M:%S} UTC" if 0 <= epoch_s < LAST_S else BEYOND


def duration_text(seconds: float) -> str:
    """``3.5 minutes``, ``12 hours``: a duration in a readable unit."""
    for length, unit in ((365.25 * 86_400.0, "years"), (86_400.0, "days"), (3600.0, "hours")):
        if seconds >= 1e6 * 365.25 * 86_400.0:
            return "more than a million years"
        if seconds >= 2 * length:
            return f"{rate(seconds / length)} {unit}"
    return f"{max(seconds, 0.0) / 60:.3g} minutes" if seconds >= 0.6 else "a moment"


def budget_text(spent: SpentBudget) -> str:
    return f"budget of {spent.device_hours:g} device hours a {spent.per}"


def budget_used_up(tenant: str, spent: SpentBudget) -> str:
    """Which tenant has used up its budget: this one, or one above it together with all tenants below that one."""
    who = f"tenant {spent.of}, above {tenant}," if spent.of else f"tenant {tenant}"
    return f"{who} has used up its {budget_text(spent)}"


def reason(code: str, text: str, **facts: Any) -> Reason:
    return Reason(code, text, facts)


def rate(per_s: float) -> str:
    """A rate per second, without an exponent."""
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"
