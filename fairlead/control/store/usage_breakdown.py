"""Breaks usage down by tenant, user, label, job, node or device, for ``fairlead usage``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Subquery, Text, cast, distinct, func, literal, select

from fairlead.control.store.ledger_sums import usage_rows
from fairlead.control.store.schema import submissions, tokens

KEYS = ("tenant", "user", "label", "job", "node", "device")
_COLUMNS = {"tenant": "tenant", "user": "submitted_by", "job": "job", "node": "node", "device": "device_type"}


@dataclass(frozen=True, slots=True)
class BreakdownLine:
    """One line of the breakdown; its keys are in the requested order."""

    keys: tuple[str, ...]
    device_s: float
    cpu_s: float
    jobs: int


def break_down(
    conn: Connection, by: Sequence[str], since_s: float, until_s: float, tenant: str | None = None
) -> tuple[list[BreakdownLine], BreakdownLine]:
    """The lines, most device time first, and their total; of one tenant only if one is given.

    ``label`` groups by all labels of a job, ``label:KEY`` by the value of one.
    """
    spread = [_COLUMNS[name] for name in by if name in ("node", "device")]  # otherwise one row per job
    part = _by_job(usage_rows(conn, since_s, until_s), spread, tenant)
    keys = [_key(name, part).label(f"key{place}") for place, name in enumerate(by)]
    source = part.outerjoin(submissions, submissions.c.job == part.c.job) if _labelled(by) else part
    figures = func.sum(part.c.device_s), func.sum(part.c.cpu_s), _jobs(part)
    query = select(*keys, *figures).select_from(source).group_by(*keys)
    lines = _merge_lines([_line(tuple(row), by) for row in conn.execute(query)])
    jobs = sum(line.jobs for line in lines)
    if spread:  # a job on two nodes is in two lines
        jobs = int(conn.execute(select(_jobs(part))).scalar_one())
    whole = BreakdownLine((), sum(line.device_s for line in lines), sum(line.cpu_s for line in lines), jobs)
    return sorted(lines, key=lambda line: (-line.device_s, line.keys)), whole


def _by_job(part: Subquery, spread: Sequence[str], tenant: str | None) -> Subquery:
    """One row per job (and node and device type, where requested)."""
    names = [part.c[name] for name in ("job", "tenant", "submitted_by", *spread)]
    sums = (func.sum(part.c[name]).label(name) for name in ("device_s", "cpu_s", "jobs"))
    query = select(*names, *sums).group_by(*names)
    return (query if tenant is None else query.where(part.c.tenant == tenant)).subquery()


def _jobs(part: Subquery) -> ColumnElement[int]:
    """Number of jobs: existing ones counted once, plus deleted ones."""
    return func.count(distinct(part.c.job)) + func.coalesce(func.sum(part.c.jobs), 0)


def _labelled(by: Sequence[str]) -> bool:
    return any(name.partition(":")[0] == "label" for name in by)


def _key(name: str, part: Subquery) -> ColumnElement[str]:
    kind, _, label = name.partition(":")
    if label:
        return func.coalesce(submissions.c.labels[label].as_string(), literal(""))
    if kind == "label":
        return func.coalesce(cast(submissions.c.labels, Text), literal("{}"))
    return func.coalesce(part.c[_COLUMNS[kind]], literal(""))


def _line(row: tuple[Any, ...], by: Sequence[str]) -> BreakdownLine:
    *keys, device_s, cpu_s, jobs = row
    readable = (_labels(key) if name == "label" else key for name, key in zip(by, keys, strict=True))
    return BreakdownLine(tuple(readable), float(device_s), float(cpu_s), int(jobs))


def _labels(text: str) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(msgspec.json.decode(text).items()))


def _merge_lines(lines: Sequence[BreakdownLine]) -> list[BreakdownLine]:
    """Merge lines whose labels differ only in order; their jobs are different, so counts add up."""
    found: dict[tuple[str, ...], BreakdownLine] = {}
    for line in lines:
        other = found.get(line.keys)
        found[line.keys] = line if other is None else replace(
            line, device_s=line.device_s + other.device_s, cpu_s=line.cpu_s + other.cpu_s, jobs=line.jobs + other.jobs
        )  # fmt: skip
    return list(found.values())


def token_labels(conn: Connection, ids: set[str], tenant: str | None) -> dict[str, str]:
    """Labels of these tokens; of the asking tenant only (None: all)."""
    query = select(tokens.c.id, tokens.c.label)
    if tenant is not None:
        query = query.where(tokens.c.tenant == tenant)
    return {id: label for id, label in conn.execute(query) if id in ids and label}
