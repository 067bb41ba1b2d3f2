"""The append-only usage ledger: what shares, fairness and reports are reckoned from, also after a crash."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, func, insert, select

from fairlead.control.records import Usage, UsageSum
from fairlead.control.store import ledger_sums, retention_marks, usage_spans
from fairlead.control.store.connections import RECOLLECTION
from fairlead.control.store.row_mapping import fields
from fairlead.control.store.schema import usage, usage_days, usage_hours

_FORGOTTEN = 40  # half-lives after which a line weighs less than a millionth of a millionth
_APPEND = insert(usage)
_NEWEST = select(func.max(usage.c.id))
_LINE = [usage.c[name] for name in Usage.__slots__]


def append(conn: Connection, lines: Sequence[Usage]) -> None:
    """Add lines, cut at full hours, and add them to all sums: all of it or nothing."""
    if lines:
        pieces = [piece for line in lines for piece in ledger_sums.cut(line)]
        conn.execute(_APPEND, [fields(piece) for piece in pieces])
        ledger_sums.add(conn, pieces)
        usage_spans.add(conn, pieces)


@dataclass(slots=True)
class _Attained:
    """Decayed sums as of a moment, up to a line of the ledger."""

    line: int = -1  # none yet
    as_of_s: float = 0.0
    device_s: dict[str, float] = field(default_factory=dict)


def attained(conn: Connection, now_s: float, half_life_s: float) -> dict[str, float]:
    """Device seconds of each tenant, each counting half for every half-life that has passed since.

    A line counts as the integral of that decay over its time, so cutting it in two changes nothing. Lines never
    change, so a reading connection recollects its sums and adds only the lines that are new: the first call reads
    the lines that are there and, of the last 40 half-lives before them, the hours and days that they added up to.
    """
    kept: dict[float, _Attained] = conn.info.get(RECOLLECTION, {}).setdefault("attained", {})
    known = kept.setdefault(half_life_s, _Attained(as_of_s=now_s))
    if now_s < known.as_of_s:  # asked about the past: begin again
        known = kept[half_life_s] = _Attained(as_of_s=now_s)
    aged = 0.5 ** ((now_s - known.as_of_s) / half_life_s)
    device_s = {tenant: amount * aged for tenant, amount in known.device_s.items()}
    newest = conn.execute(_NEWEST).scalar() or 0
    oldest_s = now_s - _FORGOTTEN * half_life_s
    whole_s = retention_marks.since(conn, retention_marks.LINES)  # before that, lines are gone
    # A range with both ends, since PostgreSQL takes the index for it even before it has statistics.
    fresh = usage.c.id.between(known.line + 1, newest) & (usage.c.to_s > max(oldest_s, whole_s))
    query = select(usage.c.tenant, usage.c.devices, usage.c.from_s, usage.c.to_s).where(fresh)
    held = _before(conn, oldest_s, whole_s) if known.line < 0 else []
    mean_life_s = half_life_s / math.log(2)
    for tenant, devices, from_s, to_s in [*conn.execute(query), *held]:
        weight_s = mean_life_s * (0.5 ** ((now_s - to_s) / half_life_s) - 0.5 ** ((now_s - from_s) / half_life_s))
        device_s[tenant] = device_s.get(tenant, 0.0) + devices * weight_s
    known.line, known.as_of_s, known.device_s = newest, now_s, device_s
    return dict(device_s)


def _before(conn: Connection, since_s: float, until_s: float) -> list[tuple[str, float, float, float]]:
    """Tenant, mean devices, begin and end of what was used while lines that are gone were written."""
    if since_s >= until_s:
        return []
    hours_s = retention_marks.since(conn, retention_marks.COARSE)
    found = [(each.tenant, each.devices, each.from_s, each.to_s)
             for each in usage_spans.hours(conn, max(since_s, hours_s), until_s)]  # fmt: skip
    if since_s < hours_s:
        days = usage_days.c.day >= since_s / ledger_sums.DAY_S, usage_days.c.day < hours_s / ledger_sums.DAY_S
        for day, tenant, device_s in conn.execute(select(usage_days).where(*days)):
            found.append((tenant, device_s / ledger_sums.DAY_S, day * ledger_sums.DAY_S, (day + 1) * ledger_sums.DAY_S))
    return found


def lines(conn: Connection, since_s: float, until_s: float) -> list[Usage]:
    """The whole lines that touch the time between two moments, as written."""
    within = usage.c.to_s > since_s, usage.c.from_s < until_s
    return _usage(conn.execute(select(*_LINE).where(*within).order_by(usage.c.id)))


def by_job(conn: Connection, job: str) -> list[UsageSum]:
    """What a job used in each hour, on each node and kind of device."""
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
