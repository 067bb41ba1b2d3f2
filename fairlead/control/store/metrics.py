"""The history of a job's steps, kept in chunks as the workers report it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, insert, select

from fairlead.control.store.schema import metrics

_APPEND = insert(metrics)


def append(conn: Connection, job: str, generation: int, points: Sequence[Mapping[str, Any]]) -> None:
    """Keep these points, each with its ``step``; one row for all. What is not finite becomes null."""
    append_all(conn, [(job, generation, points)])


def append_all(conn: Connection, told: Sequence[tuple[str, int, Sequence[Mapping[str, Any]]]]) -> None:
    """The same for many: job, generation and points of each."""
    rows = [{"job": job, "generation": number, "points": [dict(point) for point in points]}
            for job, number, points in told if points]  # fmt: skip
    if rows:
        conn.execute(_APPEND, rows)


def history(conn: Connection, job: str) -> list[dict[str, Any]]:
    """One point per step, ascending. A step that was repeated after a loss counts as it was done last."""
    query = select(metrics.c.points).where(metrics.c.job == job).order_by(metrics.c.id)
    by_step = {point["step"]: point for points in conn.execute(query).scalars() for point in points}
    return [by_step[step] for step in sorted(by_step)]


def thinned(steps: Sequence[Mapping[str, Any]], points: int) -> list[dict[str, Any]]:
    """At most so many points: each is the last of a run of steps, with their mean loss and all their metrics."""
    if len(steps) <= points:
        return [dict(step) for step in steps]
    size = -(-len(steps) // points)
    return [_one(steps[start : start + size]) for start in range(0, len(steps), size)]


def _one(run: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for step in run:
        merged |= step
    losses = [step["loss"] for step in run if step.get("loss") is not None]
    return merged | ({"loss": sum(losses) / len(losses)} if losses else {})
