"""The history of a job's steps: chunks as the workers report them, within a budget, thinned as it grows and read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

from sqlalchemy import Connection, Text, cast, delete, func, insert, select

from fairlead.control.store.schema import metrics

MOST_ROWS = 256
"""Of one job; with one more they are packed, and then thinned where they are still more than half as many."""

ROW_BYTES = 16 << 10
"""Of a row with several points; ``worker_messages`` bounds a single one, so that 256 rows take 13 MB at the most."""

SHORT = ROW_BYTES // 8
"""A row of less text can take in more, whatever its points are like."""

POINT_BYTES = 50
"""What a point costs beyond its text, so that there are not too many of the shortest ones either."""

NUMBER_BYTES = 24
"""Of a number in a point, with the quotes around its name."""

MOST_NAMES = 1024
"""Of the metrics that a point has which stands for several."""

MOST_POINTS = 100_000
"""That anybody is told, also of what was stored when nothing was thinned."""

_APPEND = insert(metrics)
_LENGTH = func.length(cast(metrics.c.points, Text))


def append(conn: Connection, job: str, generation: int, points: Sequence[Mapping[str, Any]]) -> None:
    """Keep these points, each with its ``step``. What is not finite becomes null."""
    append_all(conn, [(job, generation, points)])


def append_all(conn: Connection, told: Sequence[tuple[str, int, Sequence[Mapping[str, Any]]]]) -> None:
    """The same for many: job, generation and points of each. A history that gets too long is thinned at once."""
    rows = [row for job, number, points in told for row in _rows(job, number, points)]
    if not rows:
        return
    conn.execute(_APPEND, rows)
    count = func.count()
    jobs = sorted({row["job"] for row in rows})
    many = select(metrics.c.job).where(metrics.c.job.in_(jobs)).group_by(metrics.c.job).having(count > MOST_ROWS)
    for job in conn.execute(many).scalars().all():
        _shorten(conn, job)


def history(conn: Connection, job: str, points: int | None = None) -> list[dict[str, Any]]:
    """One point per step, ascending, or at most so many. A step that was repeated counts as it was done last.

    What came after such a step before it was repeated is not the course of this training any more.
    """
    length = func.json_array_length(metrics.c.points)
    total = int(conn.execute(select(func.sum(length)).where(metrics.c.job == job)).scalar() or 0)
    curve = Curve(max(1, -(-total // min(points or MOST_POINTS, MOST_POINTS))))
    query = select(metrics.c.generation, metrics.c.points).where(metrics.c.job == job).order_by(metrics.c.id)
    for generation, told in conn.execute(query.execution_options(yield_per=16)):
        curve.add(generation, told)
    return curve.points()


class Curve:
    """Points as they come, in runs of so many steps: each run is its last step with the mean loss and all metrics."""

    def __init__(self, size: int = 1) -> None:
        self._size = size
        self._runs: list[dict[str, Any]] = []
        self._sums: list[tuple[int, float, int]] = []  # of each run: its steps, the sum of its losses, and of how many
        self.generation = 0  # the newest

    def add(self, generation: int, told: Iterable[Mapping[str, Any]]) -> None:
        if generation < self.generation:
            return  # what was said late of a course that another one has taken over
        self.generation = generation
        for point in told:
            while self._runs and self._runs[-1]["step"] >= point["step"]:
                del self._runs[-1], self._sums[-1]
            self._put(point)

    def _put(self, point: Mapping[str, Any]) -> None:
        loss = point.get("loss")
        counted, summed, losses = self._sums[-1] if self._sums else (self._size, 0.0, 0)
        if counted < self._size:
            run = self._runs[-1]
            run |= point if len(run) < MOST_NAMES else {name: point[name] for name in run if name in point}
            self._sums[-1] = (counted + 1, summed + (loss or 0.0), losses + (loss is not None))
        else:
            self._runs.append(dict(point))
            self._sums.append((1, loss or 0.0, int(loss is not None)))

    def points(self) -> list[dict[str, Any]]:
        sums = zip(self._runs, self._sums, strict=True)
        return [run | ({"loss": summed / losses} if losses > 1 else {}) for run, (_, summed, losses) in sums]


def thinned(steps: Sequence[Mapping[str, Any]], points: int) -> list[dict[str, Any]]:
    """At most so many points of these."""
    curve = Curve(max(1, -(-len(steps) // points)))
    curve.add(0, steps)
    return curve.points()


# ---------------------------------------------------------------- the budget


def _rows(job: str, generation: int, points: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The points in rows that are not too long."""
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


def _shorten(conn: Connection, job: str) -> None:
    """Pack the short rows at the end; when that leaves too many, thin what is older until half the budget is free.

    So long trainings keep the shape of their curve, finest where it is newest, and all metrics of their epochs.
    """
    query = select(metrics.c.id, _LENGTH).where(metrics.c.job == job).order_by(metrics.c.id.desc())
    sizes = [(place, int(length)) for place, length in conn.execute(query)]
    short = [place for place, _ in takewhile(lambda row: row[1] < SHORT, sizes)]
    if len(sizes) - len(short) > MOST_ROWS // 2:
        _pack(conn, job, min(place for place, _ in sizes), thin=True)
    elif short:
        _pack(conn, job, min(short), thin=False)


def _pack(conn: Connection, job: str, since: int, *, thin: bool) -> None:
    """Write the rows from this one on anew, as few as they can be."""
    these = (metrics.c.job == job) & (metrics.c.id >= since)
    curve = Curve()
    query = select(metrics.c.generation, metrics.c.points).where(these).order_by(metrics.c.id)
    for generation, told in conn.execute(query):
        curve.add(generation, told)
    points = curve.points()
    rows = _rows(job, curve.generation, points)
    while thin and len(rows) > MOST_ROWS // 2 and len(points) > 3:
        half = len(points) // 2
        points = [*_coarser(points[:half]), *points[half:]]
        rows = _rows(job, curve.generation, points)
    conn.execute(delete(metrics).where(these))
    conn.execute(_APPEND, rows)


def _coarser(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Half as many, each for equally many steps: so what was thinned before is as fine as what is thinned now."""
    first = points[0]["step"]
    width = (points[-1]["step"] - first) * (1 + 1e-9) / (len(points) // 2)
    groups = groupby(points, key=lambda point: int((point["step"] - first) / width))
    return [thinned(list(group), 1)[0] for _, group in groups]
