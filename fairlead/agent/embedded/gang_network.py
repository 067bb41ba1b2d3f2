"""A network of its own for every gang, shared by its workers on all nodes of this machine and by nobody else.

torch's store and gloo know no authentication: who reaches their ports belongs to the gang. So a gang has a network
namespace that holds nothing but a loopback. It lives as long as one of its members; whoever starts another finds it
through the members that are written down.

Every sandbox is built with such a network. A worker joins that of the gang's first member, whose own becomes the
gang's.
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
    """Take the calling process into its gang's network: that of a member who lives, or else its own, given here.

    Only who is in it is written down, and nobody else can look meanwhile: no gang ends up in two.
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
    """As root, be in this network for a moment; who could not come back must not go on, so that error passes."""
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
    """The job has ended: nobody will join its network any more."""
    (folder / job).unlink(missing_ok=True)


def _locked(path: Path) -> int:
    deadline_s = time.monotonic() + _WAIT_S
    while True:
        record = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(record).st_nlink:  # else it was removed before we had it
                return record
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                os.close(record)
                raise OSError(errno.ETIMEDOUT, "another node keeps the gang's network locked") from None
            time.sleep(0.001)
        os.close(record)


def _read(record: int) -> list[Process]:
    try:
        return msgspec.json.decode(os.pread(record, 1 << 20, 0), type=list[Process])
    except msgspec.MsgspecError:  # new, or cut off by a crash: then its members are gone as well
        return []


def _write(record: int, members: list[Process]) -> None:
    os.ftruncate(record, 0)
    os.pwrite(record, msgspec.json.encode(members), 0)


def _network_of(member: Process) -> int | None:
    """The network that the member is in, unless it has just ended."""
    try:
        found = os.open(f"/proc/{member.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, ProcessLookupError):
        return None
    if processes.alive(member):  # else what was opened may be that of a stranger with its number
        return found
    os.close(found)
    return None


def create_network() -> int:
    """As root, a network with nothing but a loopback; it lives as long as the descriptor, or whoever is in it."""
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
