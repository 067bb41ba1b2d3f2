"""Jobs as lists show them: of a result only the first metrics, and how many more there are."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, islice
from typing import Any

from fairlead.control.records import Job
from fairlead.control.store.schema import jobs

MOST_METRICS = 16
MOST_CHARACTERS = 1000
"""Of the names of those metrics together."""

COLUMNS = [jobs.c.result["metrics"] if name == "result" else jobs.c[name] for name in Job.__slots__]
"""As a Job takes them, but for the metrics in place of a result, which may be long."""

_RESULT = list(Job.__slots__).index("result")


def brief(row: Iterable[Any]) -> list[Any]:
    """The row of a job with a result that holds its first metrics, and how many were ``left_out``."""
    values = list(row)
    told: dict[str, Any] = values[_RESULT] or {}
    first = islice(zip(told, accumulate(map(len, told)), strict=True), MOST_METRICS)
    shown = {name: told[name] for name, end in first if end <= MOST_CHARACTERS}
    left_out = {"left_out": len(told) - len(shown)} if len(told) > len(shown) else {}
    values[_RESULT] = {"metrics": shown, **left_out} if told else {}
    return values
