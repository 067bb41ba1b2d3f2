"""Shortens job rows for listings: of a result only the first metrics, and the number of the others."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, islice
from typing import Any

from fairlead.control.records import Job
from fairlead.control.store.schema import jobs

MAX_METRICS = 16
MAX_NAME_CHARACTERS = 1000
"""Total length of the names of those metrics."""

COLUMNS = [jobs.c.result["metrics"] if name == "result" else jobs.c[name] for name in Job.__slots__]
"""Job's fields in order, with only the metrics of the result, which may be long."""

_RESULT = list(Job.__slots__).index("result")


def brief_row(row: Iterable[Any]) -> list[Any]:
    """The row of a job whose result holds its first metrics, and how many were ``left_out``."""
    values = list(row)
    metrics: dict[str, Any] = values[_RESULT] or {}
    first = islice(zip(metrics, accumulate(map(len, metrics)), strict=True), MAX_METRICS)
    shown = {name: metrics[name] for name, end in first if end <= MAX_NAME_CHARACTERS}
    left_out = {"left_out": len(metrics) - len(shown)} if len(metrics) > len(shown) else {}
    values[_RESULT] = {"metrics": shown, **left_out} if metrics else {}
    return values
