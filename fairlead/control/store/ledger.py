"""The append-only usage ledger. Shares, fairness and reports are computed from it, also after a crash."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, func, insert, select

from fairlead.control.records import Usage, UsageSum
from fairlead.control.store import ledger_sums, retention_marks, usage_spans
from fairlead.control.store.connections import READER_CACHE
from fairlead.control.store.row_mapping import row_of
from fairlead.control.store.schema import usage, usage_days, usage_hours

_MAX_HALF_LIVES = 40  # half-lives after which a line weighs less than a millionth of a millionth
_APPEND = insert(usage)
_NEWEST = select(func.max(usage.c.id))
_LINE = [usage.c[name] for name in Usage.__slots__]


def append(conn: Connection, lines: Sequence[Usage]) -> None:
    """Add lines, split at full hours, and update all sums in the same transaction."""
    if lines:
        pieces = [piece for line in lines for piece in ledger_sums.split_at_hours(line)]
        conn.execute(_APPEND, [row_of(piece) for piece in pieces])
        ledger_sums.add(conn, pieces)
        usage_spans.add(conn, pieces)


@dataclass(slots=True)
class _Attained:
    """Decayed sums as of a moment, up to a line of the ledger."""

    line: int = -1  # no line yet
    as_of_s: float = 0.0
    device_s: dict[str, float] = field(default_factory=dict)


def attained(conn: Connection, now_s: float, half_life_s: float) -> dict[str, float]:
    """Device seconds of each tenant, halved for every half-life that has passed since (attained service).

    A line counts as the integral of the decay over its time, so splitting a line changes nothing. Lines never change,
    so a reading connection caches its sums and adds only new lines. Its first call reads the existing lines and, for
    the 40 half-lives before them, the sums by hour and day.
    """
    kept: dict[float, _Attained] = conn.info.get(READER_CACHE, {}).setdefault("attained", {})
    known = kept.setdefault(half_life_s, _Attained(as_of_s=now_s))
    if now_s < known.as_of_s:  # asked about an earlier moment: start over
        known = kept[half_life_s] = _Attained(as_of_s=now_s)
    aged = 0.5 ** ((now_s - known.as_of_s) / half_life_s)
    device_s = {tenant: amount * aged for tenant, amount in known.device_s.items()}
    newest = conn.execute(_NEWEST).scalar() or 0
    oldest_s = now_s - _MAX_HALF_LIVES * half_life_s
    whole_s = retention_marks.kept_since(conn, retention_marks.LINES)  # older lines are deleted
    # A range with both ends: PostgreSQL uses the index for it even without statistics.
    fresh = usage.c.id.between(known.line + 1, newest) & (usage.c.to_s > max(oldest_s, whole_s))
    query = select(usage.c.tenant, usage.c.devices, usage.c.from_s, usage.c.to_s).where(fresh)
    held = _pruned_usage(conn, oldest_s, whole_s) if known.line < 0 else []
    mean_life_s = half_life_s / math.log(2)
    for tenant, devices, from_s, to_s in [*conn.execute(query), *held]:
        weight_s = mean_life_s * (0.5 ** ((now_s - to_s) / half_life_s) - 0.5 ** ((now_s - from_s) / half_life_s))
        device_s[tenant] = device_s.get(tenant, 0.0) + devices * weight_s
    known.line, known.as_of_s, known.device_s = newest, now_s, device_s
    return dict(device_s)


def _pruned_usage(conn: Connection, since_s: float, until_s: float) -> list[tuple[str, float, float, float]]:
    """Tenant, mean devices, begin and end of the usage whose lines are deleted."""
    if since_s >= until_s:
        return []
    hours_s = retention_marks.kept_since(conn, retention_marks.COARSE)
    found = [(each.tenant, each.devices, each.from_s, each.to_s)
             for each in usage_spans.hours_by_tenant(conn, max(since_s, hours_s), until_s)]  # fmt: skip
    if since_s < hours_s:
        days = usage_days.c.day >= since_s / ledger_sums.DAY_S, usage_days.c.day < hours_s / ledger_sums.DAY_S
        for day, tenant, device_s in conn.execute(select(usage_days).where(*days)):
            found.append((tenant, device_s / ledger_sums.DAY_S, day * ledger_sums.DAY_S, (day + 1) * ledger_sums.DAY_S))
    return found


def lines_between(conn: Connection, since_s: float, until_s: float) -> list[Usage]:
    """The lines that overlap a time range, unclipped."""
    within = usage.c.to_s > since_s, usage.c.from_s < until_s
    return _usage(conn.execute(select(*_LINE).where(*within).order_by(usage.c.id)))


def hours_of_job(conn: Connection, job: str) -> list[UsageSum]:
    """Usage of a job by hour, node and device type."""
    hour = usage_hours.c
    query = select(hour.tenant, hour.device_s, hour.cpu_s, hour.hour, hour.node, hour.device_type)
    rows = conn.execute(query.where(hour.job == job).order_by(hour.hour, hour.node, hour.device_type))
    return [
        UsageSum(
            tenant, device_s, cpu_s, number * ledger_sums.HOUR_S, (number + 1) * ledger_sums.HOUR_S, node, device_type
        )
        for tenant, device_s, cpu_s, number, node, device_type in rows
    ]


totals = ledger_sums.totals


def _usage(rows: Iterable[Any]) -> list[Usage]:
    return [Usage(*row) for row in rows]
