"""Computes and caches menus: the gangs worth considering for each shape of job, for many shapes at once."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.job_columns import read_column
from fairlead.scheduling.state import JobState

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Gang = tuple[int, int]
"""(type by number, size)."""

Pick = Callable[[tuple[float, ...]], tuple[float, ...]]

Shape = tuple[object, ...]
"""Everything that a menu depends on besides the pool."""

MOST_SIZES = 24
"""Sizes of an elastic gang that are considered; beyond that many, they double."""

MOST_MENUS = 50_000
"""Menus that are cached before the cache is cleared, or twice as many as there are jobs."""

SCALING = 0.9
"""Without any curve, twice the workers are expected to be 2 ** 0.9 times as fast."""

WORTHWHILE = 1.005
"""A larger gang must be faster by this factor to be considered."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The sizes considered on each type, and how to read their speeds from a curve."""

    number: int
    sizes: Sequence[Sequence[int]]  # by type
    picks: Sequence[tuple[str, Pick, tuple[float, ...]]]  # (type, getter, zeros for a curve without that type)


@dataclass(slots=True)
class Menus:
    """The menus of one pool, one row each, computed once."""

    types: tuple[str, ...]
    capacity: Sequence[int]
    width: Sequence[int]
    fine: bool = False  # whether every size within a node is considered
    row: dict[Shape, int] = field(default_factory=dict)
    kept: list[SpeedCurve | None] = field(default_factory=list)  # keeps the curves alive, so that their ids stay unique
    kind: Ints = field(default_factory=lambda: np.zeros((0, 1), dtype=np.int64))
    size: Ints = field(default_factory=lambda: np.zeros((0, 1), dtype=np.int64))
    speed: Floats = field(default_factory=lambda: np.zeros((0, 1)))

    def rows(self, jobs: Sequence[JobState], gangs: Sequence[Gang | None]) -> Ints:
        """The row of each job's menu; new ones are computed together."""
        if len(self.row) >= max(MOST_MENUS, 2 * len(jobs)):
            self._forget()
        found = np.empty(len(jobs), dtype=np.int64)
        new: list[tuple[JobState, Gang | None]] = []
        row, fields = self.row, (read_column(jobs, name) for name in ("min_workers", "max_workers", "device_type"))
        for at, shape in enumerate(zip(map(id, read_column(jobs, "curve")), *fields, gangs, strict=True)):
            number = row.get(shape)
            if number is None:
                number = row[shape] = len(self.kept) + len(new)
                new.append((jobs[at], gangs[at]))
            found[at] = number
        if new:
            self._learn(new)
        return found

    def _forget(self) -> None:
        self.row.clear()
        self.kept.clear()
        self.kind, self.size, self.speed = self.kind[:0], self.size[:0], self.speed[:0]

    def _learn(self, new: Sequence[tuple[JobState, Gang | None]]) -> None:
        kind, size, speed = self._worked_out(new)
        begin, end = len(self.kept), len(self.kept) + len(new)
        self.kept.extend(job.curve for job, _ in new)
        self.kind = _written(self.kind, kind, begin, end)
        self.size = _written(self.size, size, begin, end)
        self.speed = _written(self.speed, speed, begin, end)

    def _worked_out(self, new: Sequence[tuple[JobState, Gang | None]]) -> tuple[Ints, Ints, Floats]:
        """Type, size and speed of every gang worth considering; larger ones only where they are faster."""
        frames: dict[Shape, Frame] = {}
        of = [self._frame(frames, job, gang) for job, gang in new]
        number = np.array([frame.number for frame in of], dtype=np.int64)
        size = self._table([frame.sizes for frame in frames.values()])[number]
        there, speed = size > 0, np.zeros(size.shape)
        near, far = _speeds([job for job, _ in new], of)
        speed[there] = np.where((near > 0) & (size <= np.array(self.width)[:, None])[there], near, far)
        has = np.array([gang or (-1, -1) for _, gang in new], dtype=np.int64)
        keeps = (size == has[:, 1, None, None]) & (np.arange(len(self.types))[:, None] == has[:, 0, None, None])
        return _compact(size, speed, _worthwhile(speed, keeps))

    def _frame(self, frames: dict[Shape, Frame], job: JobState, gang: Gang | None) -> Frame:
        grid, has = job.curve.sizes if job.curve else None, gang[1] if gang else 0
        key = (grid, job.min_workers, job.max_workers, job.device_type, has)
        frame = frames.get(key)
        if frame is None:
            place = None if grid is None else {size: at for at, size in enumerate(grid)}
            sizes = []
            for name, capacity, width in zip(self.types, self.capacity, self.width, strict=True):
                fits = job.device_type in (None, name)
                some = considered(job, capacity, width, has, fine=self.fine) if fits else []
                sizes.append([size for size in some if place is None or size in place])
            picks = [
                (name, _pick([place[size] for size in some]), (0.0,) * len(some))
                for name, some in zip(self.types, sizes, strict=True)
                if some and place is not None
            ]
            frame = frames[key] = Frame(len(frames), sizes, picks)
        return frame

    def _table(self, rows: Sequence[Sequence[Sequence[int]]]) -> Ints:
        """By frame, type and number; padded with 0."""
        most = max((len(some) for row in rows for some in row), default=1) or 1
        table = np.zeros((len(rows), len(self.types), most), dtype=np.int64)
        for at, row in enumerate(rows):
            for kind, some in enumerate(row):
                table[at, kind, : len(some)] = some
        return table


def _pick(places: Sequence[int]) -> Pick:
    """A getter of the values at these places of a tuple."""
    return itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))


def _speeds(jobs: Sequence[JobState], of: Sequence[Frame]) -> tuple[Floats, Floats]:
    """On one node and over several, of every size that is considered: job by job, type by type."""
    near: list[float] = []
    far: list[float] = []
    for job, frame in zip(jobs, of, strict=True):
        curve = job.curve
        if curve is None:
            scaled = [float(size**SCALING) for some in frame.sizes for size in some]
            near += scaled
            far += scaled
            continue
        speeds = curve.speeds
        for name, pick, blank in frame.picks:
            levels = speeds.get(name, ())
            near += pick(levels[0]) if levels and levels[0] else blank
            far += pick(levels[1]) if len(levels) > 1 and levels[1] else blank
    return np.array(array("d", near)), np.array(array("d", far))  # faster than np.array of a list


def considered(job: JobState, capacity: int, width: int, has: int, *, fine: bool = False) -> list[int]:
    """The smallest gang, powers of two (or all sizes) within a node, whole nodes beyond, and the size it has now."""
    least, most = max(1, job.min_workers), min(job.max_workers, capacity)
    if least > most:
        return []
    within = range(1, width + 1) if fine else [2**power for power in range(width.bit_length())]
    wanted = {least} | set(within) | set(range(width, most + 1, width))
    if len(wanted) > MOST_SIZES:
        wanted = {least} | {2**power for power in range(most.bit_length())}
    if has:
        wanted.add(has)
    return sorted(size for size in wanted if least <= size <= most)


def _worthwhile(speed: Floats, keeps: Bools) -> Bools:
    """Sizes that are faster than all smaller ones by enough, or that a job has now."""
    best = np.zeros(speed.shape[:2])
    found = np.zeros(speed.shape, dtype=bool)
    for at in range(speed.shape[2]):
        one = speed[:, :, at]
        found[:, :, at] = (one > best * WORTHWHILE) | (keeps[:, :, at] & (one > 0))
        best = np.where(found[:, :, at], np.maximum(best, one), best)
    return found


def _compact(size: Ints, speed: Floats, found: Bools) -> tuple[Ints, Ints, Floats]:
    """The found offers at the front of each row, padded with offers of speed 0."""
    row, kind, at = np.nonzero(found)
    count = np.bincount(row, minlength=len(found))
    column = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    shape = (len(found), int(count.max(initial=1)) or 1)
    kinds, sizes, speeds = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64), np.zeros(shape)
    kinds[row, column], sizes[row, column], speeds[row, column] = kind, size[row, kind, at], speed[row, kind, at]
    return kinds, sizes, speeds


def _written(table: NDArray[Any], rows: NDArray[Any], begin: int, end: int) -> NDArray[Any]:
    """The table with these rows; a table that is too small doubles its length."""
    long, wide = table.shape
    if end > long or rows.shape[1] > wide:
        more = max(2 * long, end) - long if end > long else 0
        table = np.pad(table, ((0, more), (0, max(rows.shape[1] - wide, 0))))
    table[begin:end] = 0
    table[begin:end, : rows.shape[1]] = rows
    return table
