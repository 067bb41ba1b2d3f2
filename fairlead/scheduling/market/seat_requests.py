"""Converts chosen gangs to seat requests: needs per worker, speed by distance, cost of a move."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any

from fairlead.scheduling.curves import FAR, SpeedCurve
from fairlead.scheduling.market.capacity_arrays import need_of
from fairlead.scheduling.market.occupancy import SeatRequest
from fairlead.scheduling.state import JobState

WIDER = 0.97
"""Assumed part of its speed that a communicating gang keeps per wider domain, where it was not measured."""


def seat_request(
    job: JobState, device_type: str, size: int, levels: int, left: float, declared: bool, worth: float = 0.0,
    now_s: float = 0.0,
) -> SeatRequest:  # fmt: skip
    """The seat request of a job for a gang of this size; ``left`` is its work left in units of its curve."""
    speeds = None if job.curve is None else job.curve.over(device_type, size, levels)
    speed = 0.0 if speeds is None else max(speeds)
    ends_s = left / speed if speed > 0 else inf
    return SeatRequest(
        job.id,
        size,
        need_of(job),
        job.only,
        job.near,
        paces(job.curve, device_type, size, levels, speeds),
        size * (job.restart_cost_s + (max(0.0, now_s - job.since_s) if job.starts_over and job.seats else 0.0)),
        ends_s if declared else inf,
        ends_s,
        workload_class(job.facts),
        worth,
    )


def workload_class(facts: Mapping[str, Any]) -> str:
    """The workload class of a job, by which interference is recorded."""
    return str(facts.get("class") or facts.get("application") or facts.get("kind") or "")


def paces(
    curve: SpeedCurve | None, device_type: str, size: int, levels: int, found: list[float] | None = None
) -> tuple[float, ...]:
    """Speed by level relative to the best; beyond the measured levels a little less for each level."""
    if curve is None:
        return tuple(WIDER**level for level in range(levels))
    found = found or curve.over(device_type, size, levels)
    if curve.levels <= FAR + 1 < levels and curve.exchanges(device_type):
        found = [speed * WIDER ** max(0, level - FAR) for level, speed in enumerate(found)]
    best = max(found)
    return tuple(speed / best for speed in found) if best > 0 else (1.0,)
