"""Who holds the lease: a name for this process that another one on the same machine can tell to be dead."""

from __future__ import annotations

import os
from pathlib import Path


def this_process() -> str:
    """Machine (this boot, this process namespace), process id and start time: never the same twice."""
    return f"{_machine()}/{os.getpid()}/{_start_ticks(os.getpid())}"


def gone(holder: str) -> bool:
    """Whether the holder is a process of this machine that does not live any more; False when one cannot know."""
    machine, _, process = holder.partition("/")
    pid, _, ticks = process.partition("/")
    if machine != _machine() or not pid.isdigit():
        return False
    return _start_ticks(int(pid)) != ticks


def _machine() -> str:
    """Empty on machines that do not say: then nobody's death can be told."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 (Path.stat is no shorter)
    except OSError:
        return f"unknown:{os.urandom(8).hex()}"


def _start_ticks(pid: int) -> str:
    """When the process started, in ticks since boot; empty if there is none, or if it is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
