"""What was used, broken down by tenant, user, label, job, node or device: the question behind ``fairlead usage``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Subquery, Text, cast, distinct, func, literal, select

from fairlead.control.store.ledger_sums import used
from fairlead.control.store.schema import submissions, tokens

KEYS = ("tenant", "user", "label", "job", "node", "device")
_COLUMNS = {"tenant": "tenant", "user": "submitted_by", "job": "job", "node": "node", "device": "device_type"}


@dataclass(frozen=True, slots=True)
class Used:
    """One line of the answer; its keys are in the order in which they were asked for."""

    keys: tuple[str, ...]
    device_s: float
    cpu_s: float
    jobs: int


def broken_down(
    conn: Connection, by: Sequence[str], since_s: float, until_s: float, tenant: str | None = None
) -> tuple[list[Used], Used]:
    """The lines, most device time first, and what they are together; of one tenant only, if it is named.

    ``label`` stands for all labels of a job together, ``label:KEY`` for the value of one.
    """
    spread = [_COLUMNS[name] for name in by if name in ("node", "device")]  # else a job is one row
    part = _by_job(used(conn, since_s, until_s), spread, tenant)
    keys = [_key(name, part).label(f"key{place}") for place, name in enumerate(by)]
    source = part.outerjoin(submissions, submissions.c.job == part.c.job) if _labelled(by) else part
    figures = func.sum(part.c.device_s), func.sum(part.c.cpu_s), _jobs(part)
    query = select(*keys, *figures).select_from(source).group_by(*keys)
    lines = _merged([_line(tuple(row), by) for row in conn.execute(query)])
    jobs = sum(line.jobs for line in lines)
    if spread:  # a job that ran on two nodes stands in two lines
        jobs = int(conn.execute(select(_jobs(part))).scalar_one())
    whole = Used((), sum(line.device_s for line in lines), sum(line.cpu_s for line in lines), jobs)
    return sorted(lines, key=lambda line: (-line.device_s, line.keys)), whole


def _by_job(part: Subquery, spread: Sequence[str], tenant: str | None) -> Subquery:
    """One row for each job (and node and kind of device, where these are asked for)."""
    names = [part.c[name] for name in ("job", "tenant", "submitted_by", *spread)]
    sums = (func.sum(part.c[name]).label(name) for name in ("device_s", "cpu_s", "jobs"))
    query = select(*names, *sums).group_by(*names)
    return (query if tenant is None else query.where(part.c.tenant == tenant)).subquery()


def _jobs(part: Subquery) -> ColumnElement[int]:
    """How many jobs: those that are there, each once, and those whose rows are gone."""
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


def _line(row: tuple[Any, ...], by: Sequence[str]) -> Used:
    *keys, device_s, cpu_s, jobs = row
    readable = (_labels(key) if name == "label" else key for name, key in zip(by, keys, strict=True))
    return Used(tuple(readable), float(device_s), float(cpu_s), int(jobs))


def _labels(text: str) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(msgspec.json.decode(text).items()))


def _merged(lines: Sequence[Used]) -> list[Used]:
    """The same labels written in another order are the same labels; their jobs are others, so that they add up."""
    found: dict[tuple[str, ...], Used] = {}
    for line in lines:
        other = found.get(line.keys)
        found[line.keys] = line if other is None else replace(
            line, device_s=line.device_s + other.device_s, cpu_s=line.cpu_s + other.cpu_s, jobs=line.jobs + other.jobs
        )  # fmt: skip
    return list(found.values())


def token_labels(conn: Connection, ids: set[str], tenant: str | None) -> dict[str, str]:
    """What the tokens are for, as far as the asking tenant may know: its own (None: all)."""
    query = select(tokens.c.id, tokens.c.label)
    if tenant is not None:
        query = query.where(tokens.c.tenant == tenant)
    return {id: label for id, label in conn.execute(query) if id in ids and label}
