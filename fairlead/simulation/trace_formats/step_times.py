"""Interpolates step times from the profiles of Pollux's study, measured by placement."""

from __future__ import annotations

import csv
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NODE = 4
"""Devices of one node of the cluster that Pollux's study measured."""

MOST_NODES = 16
"""More than these were not measured; a gang on more of them runs as on these."""


@lru_cache(maxsize=100_000)
def normal(spread: tuple[int, ...], node: int = NODE) -> tuple[int, ...]:
    """One name for all placements that a ring of workers cannot tell apart: the smallest rotation.

    A node with more devices than a ``node`` of the cluster that was measured counts as several.
    """
    parts: list[int] = []
    for devices in spread:
        parts += [node] * (devices // node) + ([devices % node] if devices % node else [])
    return min(tuple(parts[at:] + parts[:at]) for at in range(len(parts)))


class StepTimes:
    """Seconds of a whole step and of its synchronisation alone, by placement and batch per device."""

    def __init__(self, folder: Path, suffix: str = "") -> None:
        self._exact = _by_placement(folder / f"placements{suffix}.csv")
        self._scattered = _scattered(self._exact, folder / f"scalability{suffix}.csv")
        self.most_workers = int(self._scattered[0][:, 1].max())
        locals_seen = np.concatenate([table[:, 0] for table in self._exact.values()])
        self.smallest_local, self.largest_local = int(locals_seen.min()), int(locals_seen.max())
        self._between: Any = None

    def of(self, spread: tuple[int, ...], local: Floats) -> Floats:
        """Rows of (step, synchronisation) for batches per device on a placement as :func:`normal` names it."""
        table = self._exact.get(spread)
        if table is not None:
            columns = [np.interp(local, table[:, 0], table[:, column]) for column in (1, 2)]
            return np.stack(columns, axis=-1)
        place = np.tile([float(min(len(spread), MOST_NODES)), float(sum(spread))], (len(local), 1))
        return self._interpolated(np.column_stack([place, local]))

    def _interpolated(self, points: Floats) -> Floats:
        from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator

        where, what = self._scattered
        if self._between is None:
            self._between = (LinearNDInterpolator(where, what), NearestNDInterpolator(where, what, rescale=True))
        linear, nearest = self._between
        found: Floats = np.asarray(linear(points), dtype=np.float64)
        outside = np.isnan(found).any(axis=1)
        if outside.any():  # a corner that was not measured: the nearest that was
            found[outside] = nearest(points[outside])
        return found


def _by_placement(path: Path) -> dict[tuple[int, ...], Floats]:
    rows: dict[tuple[int, ...], list[tuple[float, float, float]]] = defaultdict(list)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            spread = tuple(int(digit) for digit in row["placement"])
            rows[spread].append((float(row["local_bsz"]), float(row["step_time"]), float(row["sync_time"])))
    return {spread: np.array(sorted(table)) for spread, table in rows.items()}


def _scattered(exact: dict[tuple[int, ...], Floats], path: Path) -> tuple[Floats, Floats]:
    """Points (nodes, devices, batch per device) with their times: means of what was measured, and the wide gangs."""
    groups: dict[tuple[float, float, float], list[tuple[float, float]]] = defaultdict(list)
    for spread, table in exact.items():
        for local, step, sync in table.tolist():
            groups[float(len(spread)), float(sum(spread)), local].append((step, sync))
    where = sorted(groups)
    what = [tuple(np.mean(groups[point], axis=0)) for point in where]
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            where.append((float(row["num_nodes"]), float(row["num_replicas"]), float(row["local_bsz"])))
            what.append((float(row["step_time"]), float(row["sync_time"])))
    return np.array(where), np.array(what)
