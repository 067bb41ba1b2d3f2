"""Identifies processes by pid and start time, so that a reused pid is never signalled."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec


class Process(msgspec.Struct, frozen=True):
    """One process; a later one with the same pid differs in its start."""

    pid: int
    started: int  # clock ticks since boot
    boot: str = ""  # boot id: records survive a reboot, processes do not


@functools.cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # hidden in some containers, whose records rarely survive a boot
        return ""


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on (the name before it may contain anything)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text[text.rindex(")") + 2 :].split()


def identify(pid: int) -> Process | None:
    """The living process with this pid, or None."""
    fields = _stat(pid)
    return None if fields is None or fields[0] in "ZX" else Process(pid, int(fields[19]), _boot())


def this() -> Process:
    """The calling process."""
    me = identify(os.getpid())
    assert me is not None
    return me


def myself() -> Process:
    """The calling process with its pid in the namespace of the mounted /proc, which may be an outer one."""
    me = identify(int(os.readlink("/proc/self")))  # noqa: PTH115 (a number, not a path)
    assert me is not None
    return me


def alive(process: Process) -> bool:
    """True while exactly this process runs; False for a zombie."""
    return identify(process.pid) == process


def handles_signal(pid: int, number: int) -> bool:
    """True when the process has a handler for this signal; False for an ended one."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    words = dict(line.split(":", 1) for line in lines)
    return words["State"].split()[0] not in "ZX" and bool(int(words["SigCgt"], 16) >> (number - 1) & 1)


def has_released_memory(process: Process) -> bool:
    """True when the process has freed its memory and will never run again, even if it is not reaped yet."""
    fields = _stat(process.pid)
    return fields is None or int(fields[20]) == 0 or not alive(process)


def kill(process: Process, number: int = signal.SIGKILL) -> bool:
    """Signal exactly this process; False when it has ended."""
    if not alive(process):
        return False
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(process):  # the pid may have been reused before pidfd_open
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def kill_group(leader: int, number: int = signal.SIGKILL) -> None:
    """Signal a process group; its leader must not have been reaped yet, or the id could be reused."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208 (once per fence, fast)


def parent_of(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[1])


def session_of(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[3])


def descendants(ancestor: int) -> list[int]:
    """All living descendants of this pid."""
    children: dict[int, list[int]] = {}
    for pid in all_pids():
        fields = _stat(pid)
        if fields is not None and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(pid)
    found: list[int] = []
    queue = list(children.get(ancestor, ()))
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += children.get(pid, ())
    return found


def session_members(sessions: Iterable[int], belongs: Callable[[int], bool]) -> list[Process]:
    """Living processes of these sessions for which ``belongs`` is true; a session outlives its leader."""
    wanted = set(sessions)
    members = []
    for pid in all_pids():
        if session_of(pid) in wanted and belongs(pid):
            process = identify(pid)
            if process is not None:
                members.append(process)
    return members


def wait_gone(gone: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until ``gone()`` is true; False on a timeout."""
    deadline = time.monotonic() + timeout_s
    while not gone():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def lock(path: Path) -> int | None:
    """Take the lock for the life of this process; None when another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
