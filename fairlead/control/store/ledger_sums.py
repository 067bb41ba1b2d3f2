"""Sums of the ledger by hour and day, updated with every line, and queries that use them.

Lines are split at full hours. Whole hours come from the sums, and only the cut hours at the ends of a range from the
lines, so a month costs the same however often usage was metered. Where lines are deleted, a part of an hour counts as
that part of its sum; where jobs are deleted, a part of a day likewise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import Any

from sqlalchemy import Connection, Select, String, Subquery, Table, case, cast, func, literal, null, select, union_all

from fairlead.control.records import Usage
from fairlead.control.store import retention_marks
from fairlead.control.store.retention_schema import usage_pruned
from fairlead.control.store.row_mapping import Insert, insert_into
from fairlead.control.store.schema import usage, usage_days, usage_hours

HOUR_S = 3600.0
DAY_S = 86400.0
NO_LIMIT = 1 << 30  # beyond any hour or day


def split_at_hours(line: Usage) -> Iterator[Usage]:
    """The line split at full hours; its CPU time is distributed evenly."""
    if line.from_s // HOUR_S == line.to_s // HOUR_S or line.to_s <= line.from_s:
        yield line
        return
    begin_s = line.from_s
    while begin_s < line.to_s:
        end_s = min(line.to_s, (begin_s // HOUR_S + 1) * HOUR_S)
        part = (end_s - begin_s) / (line.to_s - line.from_s)
        yield replace(line, from_s=begin_s, to_s=end_s, cpu_s=line.cpu_s * part)
        begin_s = end_s


def add(conn: Connection, pieces: Sequence[Usage]) -> None:
    """Add split lines to the sums of their hours and days."""
    hours: dict[tuple[int, str, str, str], dict[str, object]] = {}
    days: dict[tuple[int, str], float] = defaultdict(float)
    for piece in pieces:
        key = (int(piece.from_s // HOUR_S), piece.job, piece.node, piece.device_type)
        row = hours.setdefault(key, {"device_s": 0.0, "cpu_s": 0.0})
        row |= dict(zip(("hour", "job", "node", "device_type"), key, strict=True))
        row |= {"tenant": piece.tenant, "submitted_by": piece.submitted_by}
        row["device_s"] += piece.device_s  # type: ignore[operator]
        row["cpu_s"] += piece.cpu_s  # type: ignore[operator]
        days[int(piece.from_s // DAY_S), piece.tenant] += piece.device_s
    by_hour, by_day = _upserts(conn.dialect.name)
    conn.execute(by_hour, list(hours.values()))
    rows = [{"day": day, "tenant": tenant, "device_s": device_s} for (day, tenant), device_s in days.items()]
    conn.execute(by_day, rows)


@cache  # to build a statement costs more than to run it
def _upserts(dialect: str) -> tuple[Insert, Insert]:
    by_hour, by_day = insert_into(dialect, usage_hours), insert_into(dialect, usage_days)
    grown = {name: usage_hours.c[name] + by_hour.excluded[name] for name in ("device_s", "cpu_s")}
    more = {"device_s": usage_days.c.device_s + by_day.excluded.device_s}
    return (by_hour.on_conflict_do_update(usage_hours.primary_key, set_=grown),
            by_day.on_conflict_do_update(usage_days.primary_key, set_=more))  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Span:
    """The whole units inside a time range, and the cut pieces before and after them."""

    first: int
    last: int  # exclusive
    edges: tuple[tuple[float, float], ...]


def _span(conn: Connection, since_s: float, until_s: float, unit_s: float) -> _Span:
    newest_s = conn.execute(select(func.max(usage.c.to_s))).scalar() or retention_marks.kept_since(
        conn, retention_marks.LINES
    )
    first = ceil(since_s / unit_s)
    endless = until_s >= newest_s  # no later usage: the last unit counts whole
    last = NO_LIMIT if endless else int(until_s // unit_s)
    if first > last:
        return _Span(first, first, ((since_s, until_s),))
    edges = [(since_s, min(first * unit_s, until_s))] if since_s < first * unit_s else []
    if not endless and last * unit_s < until_s:
        edges.append((last * unit_s, until_s))
    return _Span(first, last, tuple(edges))


def totals(conn: Connection, since_s: float, until_s: float) -> dict[str, float]:
    """Device seconds of each tenant in a time range; lines are clipped to it."""
    span = _span(conn, since_s, until_s, DAY_S)
    whole = select(usage_days.c.tenant, func.sum(usage_days.c.device_s))
    within = usage_days.c.day >= span.first, usage_days.c.day < span.last
    found: dict[str, float] = defaultdict(float)
    for tenant, device_s in conn.execute(whole.where(*within).group_by(usage_days.c.tenant)):
        found[tenant] += float(device_s)
    for begin_s, end_s in span.edges:
        part = usage_rows(conn, begin_s, end_s)
        by_tenant = select(part.c.tenant, func.sum(part.c.device_s)).group_by(part.c.tenant)
        for tenant, device_s in conn.execute(by_tenant):
            found[tenant] += float(device_s)
    return dict(found)


def usage_rows(conn: Connection, since_s: float, until_s: float) -> Subquery:
    """Rows of job, node, device_type, tenant, submitted_by, device_s, cpu_s and jobs, to be summed.

    ``job`` is NULL for deleted jobs; ``jobs`` is the number of deleted jobs.
    """
    span = _span(conn, since_s, until_s, HOUR_S)
    hours = usage_hours.c
    lines_s = retention_marks.kept_since(conn, retention_marks.LINES)
    parts: list[Select[Any]] = [_part_of(usage_hours, 1.0).where(hours.hour >= span.first, hours.hour < span.last)]
    for begin_s, end_s in span.edges:
        if begin_s >= lines_s:
            parts.append(_clipped(begin_s, end_s))
        else:
            of_hour = (end_s - begin_s) / HOUR_S
            parts.append(_part_of(usage_hours, of_hour).where(hours.hour == int(begin_s // HOUR_S)))
    days, day = _span(conn, since_s, until_s, DAY_S), usage_pruned.c.day
    parts.append(_part_of(usage_pruned, 1.0).where(day >= days.first, day < days.last))
    for begin_s, end_s in days.edges:
        of_day = (end_s - begin_s) / DAY_S
        parts.append(_part_of(usage_pruned, of_day).where(day == int(begin_s // DAY_S)))
    return union_all(*parts).subquery()


def _part_of(table: Table, part: float) -> Select[Any]:
    """A fraction of each sum in a table; a deleted job counts where the larger part of its day is."""
    row, kept = table.c, table is usage_hours
    gone = literal(0) if kept or part < 0.5 else row.jobs
    return select(
        row.job if kept else cast(null(), String).label("job"), row.node, row.device_type, row.tenant,
        row.submitted_by, (row.device_s * part).label("device_s"), (row.cpu_s * part).label("cpu_s"),
        gone.label("jobs"),
    )  # fmt: skip


def _clipped(since_s: float, until_s: float) -> Select[Any]:
    """Usage in a range of less than an hour, from the lines themselves."""
    line = usage.c
    begin = case((line.from_s < since_s, since_s), else_=line.from_s)
    end = case((line.to_s > until_s, until_s), else_=line.to_s)
    part = (end - begin) / (line.to_s - line.from_s)
    # The upper bound skips all later lines; it is an hour late because old lines were not split.
    near = line.to_s > since_s, line.to_s <= until_s + HOUR_S, line.from_s < until_s, line.to_s > line.from_s
    return select(
        line.job, line.node, line.device_type, line.tenant, line.submitted_by,
        (line.devices * (end - begin)).label("device_s"), (line.cpu_s * part).label("cpu_s"),
        literal(0).label("jobs"),
    ).where(*near)  # fmt: skip
