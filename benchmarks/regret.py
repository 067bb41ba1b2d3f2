"""From repeated times to a judgement: medians, how sure one can be of them, and what a choice cost beyond doubt."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Between which the median lies with about 95 %: order statistics, which assume no distribution."""
    ordered, many = sorted(values), len(values)
    below = 0
    tail = 0.5**many
    while tail < 0.025 and below < (many - 1) // 2:
        below += 1
        tail += math.comb(many, below) * 0.5**many
    below = max(0, below - 1)
    return ordered[below], ordered[many - 1 - below]


def measured(row: Mapping[str, Any]) -> float:
    return median(row["step_s"])


def ran(setting: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The candidates that could be measured."""
    return [row for row in setting["candidates"] if row["step_s"] and not row["error"]]


def best(setting: Mapping[str, Any]) -> dict[str, Any]:
    """The candidate that was the fastest."""
    return min(ran(setting), key=measured)


def row_of(setting: Mapping[str, Any], plan: str) -> dict[str, Any] | None:
    return next((row for row in ran(setting) if row["id"] == plan), None)


def regret(setting: Mapping[str, Any], plan: str) -> float | None:
    """By which part the plan is slower than the best one, beyond what both medians may be off; None if it did not run.

    Both took turns, so their ratio is looked at round by round: what disturbs the machine disturbs both.
    """
    own, top = row_of(setting, plan), best(setting)
    if own is None:
        return None
    if own is top:
        return 0.0
    ratios = [mine / other for mine, other in zip(own["step_s"], top["step_s"], strict=False)]
    return max(0.0, interval(ratios)[0] - 1)


def plain_regret(setting: Mapping[str, Any], plan: str) -> float | None:
    """The same of the medians alone."""
    own = row_of(setting, plan)
    return None if own is None else measured(own) / measured(best(setting)) - 1


def error(row: Mapping[str, Any]) -> float:
    """How far the prediction was off, as a part of what was measured."""
    return abs(row["predicted_s"] / measured(row) - 1)
