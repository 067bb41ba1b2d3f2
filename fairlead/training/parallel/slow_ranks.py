"""Detects stragglers among the ranks of a gang from their compute times (D10). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

STRAGGLER_Z = 3.5
SLOW = 0.5
"""A rank below this part of its expected speed, relative to the others, counts as slow."""
_FLOOR = 0.05  # part of the median that always counts as ordinary spread


def slow_ranks(speeds: Sequence[float], expected: Sequence[float]) -> tuple[int, ...]:
    """Ranks at less than half of their expected speed, however small their share has become."""
    reached = {rank: speed / wanted for rank, (speed, wanted) in enumerate(zip(speeds, expected, strict=True)) if speed}
    found = []
    for rank, own in reached.items():
        others = [value for other, value in reached.items() if other != rank]
        if others and own < SLOW * median(others):
            found.append(rank)
    return tuple(found)


def stragglers(times_s: Sequence[float], counts: Sequence[int]) -> tuple[int, ...]:
    """Ranks that took far longer than the others, though their shares should have made the times equal.

    A robust z-score against the other ranks: of two ranks neither could be an outlier among both.
    """
    busy = [rank for rank, count in enumerate(counts) if count]
    found = []
    for rank in busy:
        others = [times_s[other] for other in busy if other != rank]
        if not others:
            continue
        middle = median(others)
        spread = max(1.4826 * median(abs(time_s - middle) for time_s in others), _FLOOR * middle)
        if spread > 0 and (times_s[rank] - middle) / spread > STRAGGLER_Z:
            found.append(rank)
    return tuple(found)
