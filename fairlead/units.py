"""Parses and formats sizes, durations and counts: 512MB, 2GiB, 90s, 30m, 2h, 30d, v100=4."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?b?)\s*$", re.IGNORECASE)
_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*$", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(value: Any) -> Any:
    """Bytes from ``512MB``, ``1.5GiB`` or a plain number; anything else is left for pydantic to refuse."""
    if not isinstance(value, str):
        return value
    match = _SIZE.match(value)
    if match is None:
        raise ValueError("is not a size; write it like 512MB or 2GiB")
    unit = match[2].lower().rstrip("b")
    base = 1024 if unit.endswith("i") else 1000
    power = " kmgt".index(unit.rstrip("i") or " ")
    size = float(match[1]) * base**power
    if size >= 2.0**63:
        raise ValueError("is more bytes than any machine has; write it like 512MB or 2GiB")
    return int(size)


def parse_counts(text: str) -> dict[str, int]:
    """Whole numbers by name from ``v100=4,cpu=2``."""
    found: dict[str, int] = {}
    for part in re.split(r"[,;\s]+", text.strip()):
        name, equals, count = part.partition("=")
        if not (name and equals and count.isdecimal()) or name in found:
            raise ValueError("is not devices by type; write it like v100=4,cpu=2")
        found[name] = int(count)
    return found


def shown_counts(counts: Mapping[str, float]) -> str:
    """Formats counts as ``v100=4,cpu=2``."""
    return ",".join(f"{name}={count:g}" for name, count in sorted(counts.items()))


def shown_size(count: float) -> str:
    """Formats bytes: 12.3 GB."""
    for unit in ("B", "KB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def shown_duration(seconds: float) -> str:
    """Formats a duration in the largest unit that keeps it whole or nearly so: 30d, 36h, 90s."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= size and (seconds / size >= 10 or (seconds / size).is_integer()):
            return f"{seconds / size:.10g}{unit}" if (seconds / size).is_integer() else f"{seconds / size:.1f}{unit}"
    return f"{seconds:g}s"


def is_duration(value: Any) -> bool:
    return isinstance(value, str) and _DURATION.match(value) is not None


def parse_duration(value: Any) -> Any:
    """Seconds from ``90s``, ``30m``, ``2h``, ``1d`` or a plain number."""
    if not isinstance(value, str):
        return value
    match = _DURATION.match(value)
    if match is None:
        raise ValueError("is not a duration; write it like 90s, 30m or 2h")
    return float(match[1]) * _SECONDS[match[2].lower()]
