"""Names the holder of the lease so that a process on the same machine can see whether it died or hangs, and ends a hung
one."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import structlog

log = structlog.get_logger()


def this_process() -> str:
    """Machine (this boot, this pid namespace), process id and start time: never the same twice."""
    return f"{_machine()}/{os.getpid()}/{_start_ticks(os.getpid())}"


def is_gone(holder: str) -> bool:
    """True if the holder was a process of this machine and no longer lives; False if that cannot be known."""
    machine, _, process = holder.partition("/")
    pid, _, ticks = process.partition("/")
    if machine != _machine() or not pid.isdigit():
        return False
    return _start_ticks(int(pid)) != ticks


def fence(holder: str) -> None:
    """Kill a holder that is a stopped process of this machine.

    A leader that was stopped (SIGSTOP, Ctrl-Z) within a write keeps the lock of an SQLite file after its lease has run
    out; only its end releases it. Woken up, it could do nothing but end; its gangs keep running.
    """
    machine, _, process = holder.partition("/")
    pid, _, ticks = process.partition("/")
    if machine != _machine() or not pid.isdigit():
        return
    try:
        handle = os.pidfd_open(int(pid))
    except OSError:
        return  # it has ended already
    try:
        # Checked while the handle is held, so that no other process can have taken over the pid.
        if _start_ticks(int(pid)) == ticks and _stopped(int(pid)):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            log.warning("killed the former leader: it was stopped within a write and its lease ran out", pid=int(pid))
    except OSError as error:
        log.warning("the former leader is stopped within a write and cannot be killed", pid=int(pid), error=str(error))
    finally:
        os.close(handle)


def _stopped(pid: int) -> bool:
    """True if a signal stopped it; False for a process that a debugger holds."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def _machine() -> str:
    """Boot id and pid namespace; random on machines that do not tell, so that no death is ever concluded there."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"  # noqa: PTH116 (Path.stat is no shorter)
    except OSError:
        return f"unknown:{os.urandom(8).hex()}"


def _start_ticks(pid: int) -> str:
    """When the process started, in ticks since boot; empty if it does not exist or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
