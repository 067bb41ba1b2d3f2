"""What a platform left behind: workers of jobs that have ended, and anything of it when it is down."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from pathlib import Path

import psutil

from tests.chaos.crashable import Crashable


def orphans(platform: Crashable, live: Collection[str]) -> list[str]:
    """Workers that nobody has a job for: known to a node still, or processes named after a job that ended."""
    return sorted(name for name in platform.workers() if name.partition("/")[0] not in live)


def left(home: Path) -> list[str]:
    """Processes, shared memory and control groups of the platform of this home: there must be none when it is down."""
    family = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    found = [f"process {each.pid}: {name}" for each in psutil.process_iter()
             if each.pid not in family and (name := _named(each, str(home)))]  # fmt: skip
    tag = hashlib.sha256(str(home).encode()).hexdigest()[:12]
    found += [str(path) for path in Path("/dev/shm").glob(f"fairlead-*{tag}*")]
    found += [f"{place}/{name}" for place, names, _ in os.walk("/sys/fs/cgroup") for name in names
              if name.startswith("fairlead-") and tag in name]  # fmt: skip
    return found


def _named(process: psutil.Process, home: str) -> str:
    """Its name, if it was started with this home in its words or its environment."""
    try:
        words = [*process.cmdline(), *process.environ().values()]
        return process.name() if any(home in word for word in words) else ""
    except psutil.Error:  # gone, or a zombie: its parent is the one to look at
        return ""
