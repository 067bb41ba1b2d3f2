"""Processes told apart for certain: a pid together with the moment it started, so that a reused pid is never hit."""

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
    """One process: its pid may be given to another later, but not with the same start."""

    pid: int
    started: int  # clock ticks since boot
    boot: str = ""  # which boot: records survive it, processes do not


@functools.cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:  # hidden in some containers; their records rarely survive a boot either
        return ""


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on (the name before it may hold anything)."""
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
    """The process that asks."""
    me = identify(os.getpid())
    assert me is not None
    return me


def myself() -> Process:
    """The process that asks, under the number by which those who see its /proc know it: it may be inside others."""
    me = identify(int(os.readlink("/proc/self")))  # noqa: PTH115 (a number, not a path)
    assert me is not None
    return me


def alive(process: Process) -> bool:
    """Whether exactly this process still runs; a zombie does not."""
    return identify(process.pid) == process


def handles_signal(pid: int, number: int) -> bool:
    """Whether this process does something of its own when it gets this signal; one that has ended does nothing."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    words = dict(line.split(":", 1) for line in lines)
    return words["State"].split()[0] not in "ZX" and bool(int(words["SigCgt"], 16) >> (number - 1) & 1)


def has_released_memory(process: Process) -> bool:
    """Whether it has given up its memory and will never run again, though it may wait for others to be reaped."""
    fields = _stat(process.pid)
    return fields is None or int(fields[20]) == 0 or not alive(process)


def kill(process: Process, number: int = signal.SIGKILL) -> bool:
    """Signal exactly this process; says whether it was there."""
    if not alive(process):
        return False
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(process):  # the number may have been given away before we held it
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def kill_group(leader: int, number: int = signal.SIGKILL) -> None:
    """Signal a whole process group; its leader must not have been reaped yet, or the number could be another's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208 (once per fence, fast)


def session_of(pid: int) -> int | None:
    fields = _stat(pid)
    return None if fields is None else int(fields[3])


def descendants(ancestor: int) -> list[int]:
    """All living pids below this one, children of children included."""
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
    """Living processes of these sessions that pass the test; a session outlives its leader."""
    wanted = set(sessions)
    members = []
    for pid in all_pids():
        if session_of(pid) in wanted and belongs(pid):
            process = identify(pid)
            if process is not None:
                members.append(process)
    return members


def wait_gone(gone: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until nothing is left; says whether that was so in time."""
    deadline = time.monotonic() + timeout_s
    while not gone():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def lock(path: Path) -> int | None:
    """Hold the lock for as long as this process lives; None when another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
