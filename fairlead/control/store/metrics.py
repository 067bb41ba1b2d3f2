"""Stores the metric history of a job's steps within a size budget, thinning older points as it grows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

from sqlalchemy import Connection, Text, cast, delete, func, insert, select

from fairlead.control.store.schema import metrics

MAX_ROWS = 256
"""Rows per job. Beyond this they are packed; if more than half as many remain, older points are thinned."""

ROW_BYTES = 16 << 10
"""Size of a row with several points; ``worker_messages`` bounds a single point, so 256 rows take at most 13 MB."""

SHORT_ROW_BYTES = ROW_BYTES // 8
"""A row shorter than this is packed together with others."""

POINT_BYTES = 50
"""Fixed cost of a point, which limits the number of very short points."""

NUMBER_BYTES = 24
"""Cost of a number in a point, with the quotes around its name."""

MAX_NAMES = 1024
"""Metrics of a point that stands for several steps."""

MAX_POINTS = 100_000
"""Points returned at most, also for histories stored before there was thinning."""

_APPEND = insert(metrics)
_LENGTH = func.length(cast(metrics.c.points, Text))


def append(conn: Connection, job: str, generation: int, points: Sequence[Mapping[str, Any]]) -> None:
    """Store these points, each with its ``step``. Numbers that are not finite become null."""
    append_all(conn, [(job, generation, points)])


def append_all(conn: Connection, chunks: Sequence[tuple[str, int, Sequence[Mapping[str, Any]]]]) -> None:
    """Store points of many jobs (job, generation, points); thins histories that get too long."""
    rows = [row for job, number, points in chunks for row in _rows(job, number, points)]
    if not rows:
        return
    conn.execute(_APPEND, rows)
    count = func.count()
    jobs = sorted({row["job"] for row in rows})
    many = select(metrics.c.job).where(metrics.c.job.in_(jobs)).group_by(metrics.c.job).having(count > MAX_ROWS)
    for job in conn.execute(many).scalars().all():
        _compact(conn, job)


def history(conn: Connection, job: str, points: int | None = None) -> list[dict[str, Any]]:
    """One point per step, ascending, or at most ``points``. A repeated step counts with its last value.

    Later steps of the course before the repetition are dropped: they are not part of this training any more.
    """
    length = func.json_array_length(metrics.c.points)
    total = int(conn.execute(select(func.sum(length)).where(metrics.c.job == job)).scalar() or 0)
    curve = Curve(max(1, -(-total // min(points or MAX_POINTS, MAX_POINTS))))
    query = select(metrics.c.generation, metrics.c.points).where(metrics.c.job == job).order_by(metrics.c.id)
    for generation, chunk in conn.execute(query.execution_options(yield_per=16)):
        curve.add(generation, chunk)
    return curve.points()


class Curve:
    """Merges points into runs of ``size`` steps: the values of the last step, the mean loss and all metrics."""

    def __init__(self, size: int = 1) -> None:
        self._size = size
        self._runs: list[dict[str, Any]] = []
        self._sums: list[tuple[int, float, int]] = []  # per run: steps, sum of losses, number of losses
        self.generation = 0  # the newest

    def add(self, generation: int, points: Iterable[Mapping[str, Any]]) -> None:
        if generation < self.generation:
            return  # a late report of a superseded generation
        self.generation = generation
        for point in points:
            while self._runs and self._runs[-1]["step"] >= point["step"]:
                del self._runs[-1], self._sums[-1]
            self._put(point)

    def _put(self, point: Mapping[str, Any]) -> None:
        loss = point.get("loss")
        counted, summed, losses = self._sums[-1] if self._sums else (self._size, 0.0, 0)
        if counted < self._size:
            run = self._runs[-1]
            run |= point if len(run) < MAX_NAMES else {name: point[name] for name in run if name in point}
            self._sums[-1] = (counted + 1, summed + (loss or 0.0), losses + (loss is not None))
        else:
            self._runs.append(dict(point))
            self._sums.append((1, loss or 0.0, int(loss is not None)))

    def points(self) -> list[dict[str, Any]]:
        sums = zip(self._runs, self._sums, strict=True)
        return [run | ({"loss": summed / losses} if losses > 1 else {}) for run, (_, summed, losses) in sums]


def downsample(steps: Sequence[Mapping[str, Any]], points: int) -> list[dict[str, Any]]:
    """At most ``points`` of these points."""
    curve = Curve(max(1, -(-len(steps) // points)))
    curve.add(0, steps)
    return curve.points()


# ---------------------------------------------------------------- the budget


def _rows(job: str, generation: int, points: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Pack the points into rows within the size limit."""
    rows: list[list[dict[str, Any]]] = []
    room = 0
    for point in points:
        cost = _cost(point)
        if cost > room:
            rows.append([])
            room = ROW_BYTES
        rows[-1].append(dict(point))
        room -= cost
    return [{"job": job, "generation": generation, "points": row} for row in rows]


def _cost(point: Mapping[str, Any]) -> int:
    return sum(map(len, point)) + NUMBER_BYTES * len(point) + POINT_BYTES


def _compact(conn: Connection, job: str) -> None:
    """Pack the short rows at the end; if too many rows remain, thin older points until half the budget is free.

    Long trainings keep the shape of their curve, finest where it is newest, and all metrics of their epochs.
    """
    query = select(metrics.c.id, _LENGTH).where(metrics.c.job == job).order_by(metrics.c.id.desc())
    sizes = [(place, int(length)) for place, length in conn.execute(query)]
    short = [place for place, _ in takewhile(lambda row: row[1] < SHORT_ROW_BYTES, sizes)]
    if len(sizes) - len(short) > MAX_ROWS // 2:
        _rewrite_rows(conn, job, min(place for place, _ in sizes), thin=True)
    elif short:
        _rewrite_rows(conn, job, min(short), thin=False)


def _rewrite_rows(conn: Connection, job: str, since: int, *, thin: bool) -> None:
    """Rewrite the rows from this id on as few rows as possible."""
    these = (metrics.c.job == job) & (metrics.c.id >= since)
    curve = Curve()
    query = select(metrics.c.generation, metrics.c.points).where(these).order_by(metrics.c.id)
    for generation, chunk in conn.execute(query):
        curve.add(generation, chunk)
    points = curve.points()
    rows = _rows(job, curve.generation, points)
    while thin and len(rows) > MAX_ROWS // 2 and len(points) > 3:
        half = len(points) // 2
        points = [*_halve(points[:half]), *points[half:]]
        rows = _rows(job, curve.generation, points)
    conn.execute(delete(metrics).where(these))
    conn.execute(_APPEND, rows)


def _halve(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Half as many points, each for equally many steps, so that points thinned earlier end up equally fine."""
    first = points[0]["step"]
    width = (points[-1]["step"] - first) * (1 + 1e-9) / (len(points) // 2)
    groups = groupby(points, key=lambda point: int((point["step"] - first) / width))
    return [downsample(list(group), 1)[0] for _, group in groups]
