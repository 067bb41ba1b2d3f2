"""Who holds the lease: a name for this process that another one on the same machine can tell to be dead, or to hang."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import structlog

log = structlog.get_logger()


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


def fence(holder: str) -> None:
    """End a holder that is a stopped process of this machine.

    For one whose lease has run out and that was stopped (SIGSTOP, Ctrl-Z) within a write: only its end takes the
    lock of an SQLite file from it. It could do nothing but end if it woke up, and its gangs run on.
    """
    machine, _, process = holder.partition("/")
    pid, _, ticks = process.partition("/")
    if machine != _machine() or not pid.isdigit():
        return
    try:
        handle = os.pidfd_open(int(pid))
    except OSError:
        return  # it is gone
    try:
        # Looked at while the handle is held, so that no other process can have come by its number.
        if _start_ticks(int(pid)) == ticks and _stopped(int(pid)):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            log.warning("the leader was stopped within a write and its lease ran out: it is ended", pid=int(pid))
    except OSError as error:
        log.warning("the leader is stopped within a write and cannot be ended", pid=int(pid), error=str(error))
    finally:
        os.close(handle)


def _stopped(pid: int) -> bool:
    """By a signal; not one that a debugger holds."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


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
