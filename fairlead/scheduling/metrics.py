"""Computes Jain's index of fairness (FI of REQUIREMENTS.md)."""

from __future__ import annotations

from collections.abc import Iterable


def jain(values: Iterable[float]) -> float:
    """FI = (Σx)² / (n·Σx²): 1 when all are served equally, 1/n when one has everything.

    Without any service, or without anyone to serve, it is 1.
    """
    xs = [float(value) for value in values]
    largest = max((abs(x) for x in xs), default=0.0)
    if largest == 0.0:
        return 1.0
    scaled = [x / largest for x in xs]  # so that squares neither under- nor overflow
    return sum(scaled) ** 2 / (len(scaled) * sum(x * x for x in scaled))
