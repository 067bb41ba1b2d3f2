"""How much memory this process may use: what its job was given, its control group's limit, or a part of the machine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

VARIABLE = "FAIRLEAD_MEMORY"
"""Bytes that a worker was given; the platform sets it, as a sandbox shows no control groups."""

MIB = 1 << 20
_MOST_READING, _MOST_SPOOL = 512 * MIB, 1 << 30  # more of it gains nothing


def memory_budget(
    environment: dict[str, str] | None = None, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> int:
    """In bytes; a quarter of the machine's free memory where nothing bounds this process."""
    told = (os.environ if environment is None else environment).get(VARIABLE, "")
    limits = [int(told)] if told.isdecimal() else []
    limits += _group_limits(proc, groups)
    return min(limits, default=_available_bytes(proc) // 4)


def reading_bytes() -> int:
    """What readers hold at a time, unless they are told otherwise."""
    return max(8 * MIB, min(_MOST_READING, memory_budget() // 8))


def spool_bytes() -> int:
    """What was read and is kept for the next pass, unless it is told otherwise."""
    return max(8 * MIB, min(_MOST_SPOOL, memory_budget() // 4))


def _group_limits(proc: Path, groups: Path) -> list[int]:
    """Of the control group that this process is in, version 1 or 2, where it can be seen."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                places = [groups / "memory" / path.lstrip("/") / "memory.limit_in_bytes"]
            elif number == "0":
                places = [groups / path.lstrip("/") / "memory.max", groups / "memory.max"]
            else:
                continue
            texts = [place.read_text().strip() for place in places if place.is_file()]
            found += [int(text) for text in texts if text.isdecimal() and int(text) < 1 << 60]  # else: no limit
    return found


def _available_bytes(proc: Path) -> int:
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = (proc / "meminfo").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    return 16 << 30
