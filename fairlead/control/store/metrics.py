"""The history of a job's steps, kept in chunks as the workers report it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, insert, select

from fairlead.control.store.schema import metrics


def append(conn: Connection, job: str, generation: int, points: Sequence[Mapping[str, Any]]) -> None:
    """Keep these points, each with its ``step``; one row for all. What is not finite becomes null."""
    if points:
        row = {"job": job, "generation": generation, "points": [dict(point) for point in points]}
        conn.execute(insert(metrics), row)


def history(conn: Connection, job: str) -> list[dict[str, Any]]:
    """One point per step, ascending. A step that was repeated after a loss counts as it was done last."""
    query = select(metrics.c.points).where(metrics.c.job == job).order_by(metrics.c.id)
    by_step = {point["step"]: point for points in conn.execute(query).scalars() for point in points}
    return [by_step[step] for step in sorted(by_step)]
