"""The append-only usage ledger: what shares, fairness and reports are reckoned from, also after a crash."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, func, insert, select

from fairlead.control.records import Usage
from fairlead.control.store import sums
from fairlead.control.store.connections import RECOLLECTION
from fairlead.control.store.rows import fields
from fairlead.control.store.schema import usage

_FORGOTTEN = 40  # half-lives after which a line weighs less than a millionth of a millionth
_LINE = [usage.c[name] for name in Usage.__slots__]


def append(conn: Connection, lines: Sequence[Usage]) -> None:
    """Add lines, cut at full hours, and add them to the sums: both or neither."""
    if lines:
        pieces = [piece for line in lines for piece in sums.cut(line)]
        conn.execute(insert(usage), [fields(piece) for piece in pieces])
        sums.add(conn, pieces)


@dataclass(slots=True)
class _Attained:
    """Decayed sums as of a moment, up to a line of the ledger."""

    line: int = 0
    as_of_s: float = 0.0
    device_s: dict[str, float] = field(default_factory=dict)


def attained(conn: Connection, now_s: float, half_life_s: float) -> dict[str, float]:
    """Device seconds of each tenant, each counting half for every half-life that has passed since.

    A line counts as the integral of that decay over its time, so cutting it in two changes nothing. Lines never
    change, so a reading connection recollects its sums and adds only the lines that are new: the first call reads
    the last 40 half-lives, the next ones microseconds' worth.
    """
    kept: dict[float, _Attained] = conn.info.get(RECOLLECTION, {}).setdefault("attained", {})
    sums = kept.setdefault(half_life_s, _Attained(as_of_s=now_s))
    if now_s < sums.as_of_s:  # asked about the past: begin again
        sums = kept[half_life_s] = _Attained(as_of_s=now_s)
    aged = 0.5 ** ((now_s - sums.as_of_s) / half_life_s)
    device_s = {tenant: amount * aged for tenant, amount in sums.device_s.items()}
    newest = conn.execute(select(func.max(usage.c.id))).scalar() or 0
    # A range with both ends, since PostgreSQL takes the index for it even before it has statistics.
    fresh = usage.c.id.between(sums.line + 1, newest) & (usage.c.to_s > now_s - _FORGOTTEN * half_life_s)
    query = select(usage.c.tenant, usage.c.devices, usage.c.from_s, usage.c.to_s).where(fresh)
    mean_life_s = half_life_s / math.log(2)
    for tenant, devices, from_s, to_s in conn.execute(query):
        weight_s = mean_life_s * (0.5 ** ((now_s - to_s) / half_life_s) - 0.5 ** ((now_s - from_s) / half_life_s))
        device_s[tenant] = device_s.get(tenant, 0.0) + devices * weight_s
    sums.line, sums.as_of_s, sums.device_s = newest, now_s, device_s
    return dict(device_s)


def lines(conn: Connection, since_s: float, until_s: float) -> list[Usage]:
    """The whole lines that touch the time between two moments, as written."""
    within = usage.c.to_s > since_s, usage.c.from_s < until_s
    return _usage(conn.execute(select(*_LINE).where(*within).order_by(usage.c.id)))


def grouped(conn: Connection, since_s: float, until_s: float) -> list[Usage]:
    """Like :func:`lines`, but the lines of a tenant for the same time are one: all that shares over time need.

    The meter writes one line for each gang and node at the same moment, so this is fewer by far.
    """
    within = usage.c.to_s > since_s, usage.c.from_s < until_s
    span = usage.c.tenant, usage.c.from_s, usage.c.to_s
    query = select(*span, func.sum(usage.c.devices), func.sum(usage.c.cpu_s)).where(*within).group_by(*span)
    return [
        Usage("", tenant, "", 0, "", "", int(devices), 1.0, from_s, to_s, float(cpu_s))
        for tenant, from_s, to_s, devices, cpu_s in conn.execute(query)
    ]


def by_job(conn: Connection, job: str) -> list[Usage]:
    return _usage(conn.execute(select(*_LINE).where(usage.c.job == job).order_by(usage.c.id)))


totals = sums.totals


def _usage(rows: Iterable[Any]) -> list[Usage]:
    return [Usage(*row) for row in rows]
