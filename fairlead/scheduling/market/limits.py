"""Removes offers that a job's own needs rule out: cpu and memory per worker, residency, and speed across domains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.job_columns import distinct_demands, read_column
from fairlead.scheduling.market.capacity_arrays import Need, TypeCapacity, need_of
from fairlead.scheduling.market.offers import Floats, Ints, Offers, Pool
from fairlead.scheduling.state import JobState

PLAIN_LEVELS = 2
"""A curve of so many levels distinguishes only one node from several, as menus do."""


def needs_node_check(job: JobState) -> bool:
    """Whether the job's fit or speed depends on more than the number of devices."""
    return bool(job.demand or job.only or (job.curve is not None and job.curve.levels > PLAIN_LEVELS))


def confine_offers(jobs: Sequence[JobState], choices: Offers, pool: Pool) -> Offers:
    """The offers without gangs that no nodes could hold, with the speed of the narrowest domain that could.

    Jobs that need only devices keep their rows.
    """
    groups: dict[frozenset[str], list[int]] = {}
    asked, places, curves = (read_column(jobs, name) for name in ("demand", "only", "curve"))
    for row, (demand, only, curve) in enumerate(zip(asked, places, curves, strict=True)):
        if demand or only or (curve is not None and curve.levels > PLAIN_LEVELS):  # see special
            groups.setdefault(only, []).append(row)
    if not groups or not pool.types:
        return choices
    land, speed = TypeCapacity(pool.nodes, pool.types), choices.speed.copy()
    for only, rows in groups.items():
        _confine(jobs, np.array(rows), choices, land, only, pool, speed)
    has = np.nonzero(choices.present >= 0)[0]  # a running gang fits where it is, whatever the sums say
    kept = speed[has, choices.present[has]]
    speed[has, choices.present[has]] = np.where(kept > 0, kept, choices.speed[has, choices.present[has]])
    return replace(choices, speed=speed)


def _confine(
    jobs: Sequence[JobState],
    rows: Ints,
    choices: Offers,
    land: TypeCapacity,
    only: frozenset[str],
    pool: Pool,
    speed: Floats,
) -> None:
    """Set the speeds of these rows, whose jobs have the same residency."""
    numbers: dict[Need, int] = {}
    _, of, first = distinct_demands(jobs)
    need = np.array([numbers.setdefault(need_of(jobs[at]), len(numbers)) for at in first])[of[rows]][:, None]
    widths = land.widths(list(numbers), only)
    kind, size = choices.kind[rows], choices.size[rows]
    most = np.stack([one[:, -1] for one in widths])[kind, need]
    inside = np.stack([one[:, 0] for one in widths])[kind, need]
    speed[rows] = np.where(size <= most, speed[rows], 0.0)
    levels = [0 if curve is None else curve.levels for curve in read_column(jobs, "curve")]
    deep = np.array(levels)[rows] > PLAIN_LEVELS
    wrong = (speed[rows] > 0) & (size > inside) & (deep[:, None] | (size <= pool.width[kind]))
    for at, column in zip(*(found.tolist() for found in np.nonzero(wrong)), strict=True):
        curve = jobs[rows[at]].curve
        if curve is not None:
            name, many = int(kind[at, column]), int(size[at, column])
            speed[rows[at], column] = reachable(curve, pool.types[name], many, widths[name][need[at, 0]].tolist())


def reachable(curve: SpeedCurve, device_type: str, size: int, widths: Sequence[int]) -> float:
    """Its speed in the narrowest domain that holds it, or in the next wider one where it runs at all."""
    for level, width in enumerate(widths):
        if size <= width and (found := curve.speed(device_type, size, level)) > 0:
            return found
    return 0.0
