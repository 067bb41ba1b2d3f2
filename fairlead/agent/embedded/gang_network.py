"""Gives every gang a network namespace of its own, shared by its workers on all nodes of this machine.

torch's store and gloo have no authentication: any process that reaches their ports can join. So a gang's network
has nothing but a loopback. It lives as long as one member does; a new member finds it through the members on
record.

Every sandbox is built with such a network; a worker leaves it for that of the gang's first member, whose own network
becomes the gang's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from fairlead.agent.node import processes
from fairlead.agent.node.processes import Process
from fairlead.agent.sandbox import linux

_WAIT_S = 5.0


def join(folder: Path, job: str, own: int) -> None:
    """Move the calling process into its gang's network: that of a living member, or else ``own``.

    Entering and recording happen under a lock, so a gang cannot end up in two networks.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    record = _locked(folder / job)
    try:
        members = [process for process in _read(record) if processes.alive(process)]
        found = next((network for member in members if (network := _network_of(member)) is not None), None)
        linux.enter(own if found is None else found, linux.CLONE_NEWNET)
        if found is not None:
            os.close(found)
        _write(record, [*([] if found is None else members), processes.myself()])
    finally:
        os.close(record)


@contextlib.contextmanager
def entered(namespace: int) -> Iterator[None]:
    """As root, enter a network for the block. A failure to return is raised: the process must not go on in it."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        linux.enter(namespace, linux.CLONE_NEWNET)
        try:
            yield
        finally:
            linux.enter(own, linux.CLONE_NEWNET)
    finally:
        os.close(own)


def forget(folder: Path, job: str) -> None:
    """Remove the record of an ended job's network."""
    (folder / job).unlink(missing_ok=True)


def _locked(path: Path) -> int:
    deadline_s = time.monotonic() + _WAIT_S
    while True:
        record = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(record).st_nlink:  # otherwise it was removed before we locked it
                return record
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                os.close(record)
                raise OSError(
                    errno.ETIMEDOUT, f"another node has held the lock of the gang's network for {_WAIT_S:g} s"
                ) from None
            time.sleep(0.001)
        os.close(record)


def _read(record: int) -> list[Process]:
    try:
        return msgspec.json.decode(os.pread(record, 1 << 20, 0), type=list[Process])
    except msgspec.MsgspecError:  # new, or truncated by a crash, after which its members are gone too
        return []


def _write(record: int, members: list[Process]) -> None:
    os.ftruncate(record, 0)
    os.pwrite(record, msgspec.json.encode(members), 0)


def _network_of(member: Process) -> int | None:
    """The member's network; None when it has just ended."""
    try:
        found = os.open(f"/proc/{member.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    if processes.alive(member):  # otherwise the pid may have been reused
        return found
    os.close(found)
    return None


def create_network() -> int:
    """As root, create a network with nothing but a loopback; it lives as long as its descriptor or a process in it."""
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        linux.unshare(linux.CLONE_NEWNET)
        try:
            linux.bring_up_loopback()
            return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            linux.enter(own, linux.CLONE_NEWNET)
    finally:
        os.close(own)
