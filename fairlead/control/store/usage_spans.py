"""Sums the ledger by tenant and node, per five minutes and per hour, for charts and reports.

Updated with every line: a report costs the same after a year as on the first day, and lines can be deleted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Integer, Select, func, literal_column, select

from fairlead.control.records import Usage, UsageSum
from fairlead.control.store import retention_marks
from fairlead.control.store.retention_schema import usage_spans, wishes
from fairlead.control.store.row_mapping import Insert, insert_into
from fairlead.control.store.schema import jobs, usage

FINE_S, COARSE_S = 300, 3600
KEPT_S: Mapping[int, float] = {FINE_S: 4 * 86400.0, COARSE_S: 62 * 86400.0}
"""How long spans of each length are kept; older usage is only in the sums by day."""
LINES_WITHIN_S = 7200.0
"""Shorter time ranges are read from the lines themselves: they are few, and exact to the second."""

_SPAN = usage_spans.c
_SUM = {"device_s": func.sum(_SPAN.device_s), "cpu_s": func.sum(_SPAN.cpu_s),
        "from_s": func.min(_SPAN.first_s), "to_s": func.max(_SPAN.last_s)}  # fmt: skip
_LINE = {"device_s": func.sum(usage.c.devices * (usage.c.to_s - usage.c.from_s)), "cpu_s": func.sum(usage.c.cpu_s),
         "from_s": func.min(usage.c.from_s), "to_s": func.max(usage.c.to_s)}  # fmt: skip


def split_into_spans(from_s: float, to_s: float, span_s: int) -> Iterator[tuple[int, float, float]]:
    """The spans that a time range touches, each with the part of the range inside it."""
    begin_s = from_s
    while begin_s < to_s:
        number = int(begin_s // span_s)
        end_s = min(to_s, float((number + 1) * span_s))
        yield number, begin_s, end_s
        begin_s = end_s


def add(conn: Connection, lines: Sequence[Usage]) -> None:
    """Add lines to the sums of their spans."""
    found: dict[tuple[int, int, str, str, str], dict[str, Any]] = {}
    keys = ("span_s", "number", "tenant", "node", "device_type")
    for line in lines:
        for span_s in KEPT_S:
            for number, begin_s, end_s in split_into_spans(line.from_s, line.to_s, span_s):
                key = (span_s, number, line.tenant, line.node, line.device_type)
                row = found.get(key)
                if row is None:
                    row = found[key] = dict(zip(keys, key, strict=True))
                    row |= {"device_s": 0.0, "cpu_s": 0.0, "first_s": begin_s, "last_s": end_s}
                row["device_s"] += line.devices * (end_s - begin_s)
                row["cpu_s"] += line.cpu_s * (end_s - begin_s) / (line.to_s - line.from_s)
                row["first_s"], row["last_s"] = min(row["first_s"], begin_s), max(row["last_s"], end_s)
    if found:
        conn.execute(_upsert(conn.dialect.name), list(found.values()))


@cache  # to build a statement costs more than to run it
def _upsert(dialect: str) -> Insert:
    added = insert_into(dialect, usage_spans)
    new = added.excluded
    least, most = (func.least, func.greatest) if dialect == "postgresql" else (func.min, func.max)
    grown = {
        "device_s": _SPAN.device_s + new.device_s, "cpu_s": _SPAN.cpu_s + new.cpu_s,
        "first_s": least(_SPAN.first_s, new.first_s), "last_s": most(_SPAN.last_s, new.last_s),
    }  # fmt: skip
    return added.on_conflict_do_update(usage_spans.primary_key, set_=grown)


def spans_by_tenant(conn: Connection, since_s: float, until_s: float, step_s: float = 0.0) -> list[UsageSum]:
    """Usage by tenant and span, or by metering interval if the range is short.

    With ``step_s``, spans are merged to two per step.
    """
    span_s = _span_length(conn, since_s, until_s)
    if span_s is None:
        place = usage.c.tenant, usage.c.from_s, usage.c.to_s
        sums = func.sum(usage.c.devices * (usage.c.to_s - usage.c.from_s)), func.sum(usage.c.cpu_s)
        within = usage.c.to_s > since_s, usage.c.from_s < until_s
        rows = conn.execute(select(*place, *sums).where(*within).group_by(*place))
        return [UsageSum(tenant, held_s, cpu_s, from_s, to_s) for tenant, from_s, to_s, held_s, cpu_s in rows]
    query = select(_SPAN.tenant, *_SUM.values()).where(*_within(span_s, since_s, until_s))
    return [UsageSum(*row) for row in conn.execute(query.group_by(_bin(_SPAN.number, span_s, step_s), _SPAN.tenant))]


def totals_by_node(conn: Connection, since_s: float, until_s: float) -> list[UsageSum]:
    """Usage by tenant, node and device type, summed over the range."""
    span_s = _span_length(conn, since_s, until_s)
    query: Select[Any]
    if span_s is None:
        place = usage.c.tenant, usage.c.node, usage.c.device_type
        within = usage.c.to_s > since_s, usage.c.from_s < until_s
        query = select(usage.c.tenant, *_LINE.values(), usage.c.node, usage.c.device_type).where(*within)
    else:
        place = _SPAN.tenant, _SPAN.node, _SPAN.device_type
        within = _within(span_s, since_s, until_s)
        query = select(_SPAN.tenant, *_SUM.values(), _SPAN.node, _SPAN.device_type).where(*within)
    return [UsageSum(*row) for row in conn.execute(query.group_by(*place))]


def totals_by_tenant(conn: Connection, since_s: float, until_s: float) -> list[UsageSum]:
    """Usage by tenant, summed over the range: enough for a fairness index."""
    span_s = _span_length(conn, since_s, until_s)
    if span_s is None:
        within = usage.c.to_s > since_s, usage.c.from_s < until_s
        query = select(usage.c.tenant, *_LINE.values()).where(*within).group_by(usage.c.tenant)
    else:
        within = _within(span_s, since_s, until_s)
        query = select(_SPAN.tenant, *_SUM.values()).where(*within).group_by(_SPAN.tenant)
    return [UsageSum(*row) for row in conn.execute(query)]


def hours_by_tenant(conn: Connection, since_s: float, until_s: float) -> list[UsageSum]:
    """Usage by tenant and hour, for the whole hours of the range."""
    within = _SPAN.span_s == COARSE_S, _SPAN.number >= since_s / COARSE_S, _SPAN.number < until_s / COARSE_S
    query = select(_SPAN.tenant, *_SUM.values()).where(*within).group_by(_SPAN.number, _SPAN.tenant)
    return [UsageSum(*row) for row in conn.execute(query)]


def _span_length(conn: Connection, since_s: float, until_s: float) -> int | None:
    """Length of the spans to read for a range; None: read the lines."""
    if until_s - since_s <= LINES_WITHIN_S and since_s >= retention_marks.kept_since(conn, retention_marks.LINES):
        return None
    fine = (
        until_s - since_s <= KEPT_S[FINE_S]
        and since_s >= retention_marks.kept_since(conn, retention_marks.FINE) - FINE_S
    )
    return FINE_S if fine else COARSE_S


def _bin(number: Column[int], span_s: int, step_s: float) -> ColumnElement[Any]:
    """Group span numbers, so that two groups make one step."""
    together = int(step_s / 2 / span_s)
    return number // literal_column(str(together), Integer) if together > 1 else number


def _within(span_s: int, since_s: float, until_s: float) -> Any:
    """Spans that the range touches. Both ends are given, so that it is an index range."""
    first, last = math.floor(since_s / span_s), math.ceil(until_s / span_s)
    return _SPAN.span_s == span_s, _SPAN.number >= first, _SPAN.number < last


# ---------------------------------------------------------------- demand


def record_demand(conn: Connection, tenant: str, from_s: float, to_s: float) -> None:
    """Record that an ended job of this tenant demanded devices from ``from_s`` to ``to_s``."""
    rows = []
    from_s = min(from_s, to_s)  # the clock may have been set back
    for span_s, kept_s in KEPT_S.items():
        first, last = int(max(from_s, to_s - kept_s) // span_s), int(to_s // span_s)
        rows += [{"span_s": span_s, "number": number, "tenant": tenant} for number in range(first, last + 1)]
    conn.execute(_insert_demand(conn.dialect.name), rows)


@cache
def _insert_demand(dialect: str) -> Insert:
    return insert_into(dialect, wishes).on_conflict_do_nothing()


def demand_periods(
    conn: Connection, since_s: float, until_s: float, step_s: float = 0.0
) -> list[tuple[str, float, float]]:
    """Tenant, begin and end of each period with demand for devices; unfinished jobs demand until ``until_s``."""
    span_s = _span_length(conn, since_s, until_s)
    spans = select(jobs.c.tenant, jobs.c.submitted_s, jobs.c.finished_s)
    waiting = conn.execute(spans.where(jobs.c.finished_s.is_(None), jobs.c.submitted_s < until_s))
    found = [(tenant, float(from_s), until_s) for tenant, from_s, _ in waiting]
    if span_s is None:
        over = conn.execute(spans.where(jobs.c.finished_s > since_s, jobs.c.submitted_s < until_s))
        return found + [(tenant, float(from_s), float(to_s)) for tenant, from_s, to_s in over]
    first, last = math.floor(since_s / span_s), math.ceil(until_s / span_s)
    marks = wishes.c.span_s == span_s, wishes.c.number >= first, wishes.c.number < last
    query = select(wishes.c.tenant, func.min(wishes.c.number), func.max(wishes.c.number)).where(*marks)
    known = conn.execute(query.group_by(_bin(wishes.c.number, span_s, step_s), wishes.c.tenant))
    return found + [(tenant, float(begin * span_s), min(until_s, float((end + 1) * span_s)))
                    for tenant, begin, end in known]  # fmt: skip
