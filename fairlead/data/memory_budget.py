"""The memory that this process may use: the limit of its job or control group, or a part of the machine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

VARIABLE = "FAIRLEAD_MEMORY"
"""Environment variable with the bytes of a worker; the platform sets it because a sandbox hides control groups."""

MIB = 1 << 20
_MOST_READING, _MOST_SPOOL = 512 * MIB, 1 << 30  # more brings no speed


def memory_budget(
    environment: dict[str, str] | None = None, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> int:
    """The smallest limit in bytes; without a limit, a quarter of the machine's free memory."""
    given = (os.environ if environment is None else environment).get(VARIABLE, "")
    limits = [int(given)] if given.isdecimal() else []
    limits += _group_limits(proc, groups)
    return min(limits, default=_available_bytes(proc) // 4)


def reading_bytes() -> int:
    """Default for the bytes that readers hold at a time: an eighth of the budget, 8 to 512 MiB."""
    return max(8 * MIB, min(_MOST_READING, memory_budget() // 8))


def spool_bytes() -> int:
    """Default for the bytes kept for the next pass over a source: a quarter of the budget, 8 MiB to 1 GiB."""
    return max(8 * MIB, min(_MOST_SPOOL, memory_budget() // 4))


def _group_limits(proc: Path, groups: Path) -> list[int]:
    """The limits of this process's control groups (version 1 or 2), as far as they are visible."""
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
