"""A network of its own for every gang, shared by its workers on all nodes of this machine and by nobody else.

torch's store and gloo know no authentication: who reaches their ports belongs to the gang. So a gang has a network
namespace that holds nothing but a loopback. It lives as long as one of its members; whoever starts another finds it
through the members that are written down, and only when none lives makes a new one.

Root makes the namespace and has the sandbox built inside. Without root there is no way back out of it, so that every
sandbox brings a network of its own, and the worker joins that of the gang's first.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fairlead.backends.local import linux, processes
from fairlead.backends.local.processes import Process

_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Network:
    """A gang's network while its record is locked: start a member in it, and write the member down."""

    namespace: int
    _record: int
    _members: tuple[Process, ...]

    def add(self, pid: int) -> None:
        """This process, which is in the namespace, keeps it alive from now on."""
        process = processes.identify(pid)
        members = [*self._members, *([] if process is None else [process])]
        os.ftruncate(self._record, 0)
        os.pwrite(self._record, msgspec.json.encode(members), 0)


@contextlib.contextmanager
def network(folder: Path, job: str, first: int | None = None) -> Iterator[Network]:
    """The gang's network, found or made; nobody else can start a member meanwhile.

    When none is found, that of the process ``first`` becomes it; without one, a fresh namespace.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    record = _locked(folder / job)
    try:
        members = tuple(process for process in _read(record) if processes.alive(process))
        namespace = next((found for member in members if (found := _namespace_of(member)) is not None), None)
        if namespace is None:
            members = ()
            namespace = fresh() if first is None else os.open(f"/proc/{first}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield Network(namespace, record, members)
        finally:
            os.close(namespace)
    finally:
        os.close(record)


@contextlib.contextmanager
def inside(namespace: int) -> Iterator[None]:
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


def _namespace_of(member: Process) -> int | None:
    """The network that the member is in; one that was just forked is on its way into it."""
    ours, deadline_s = Path("/proc/self/ns/net").stat().st_ino, time.monotonic() + _WAIT_S
    while time.monotonic() < deadline_s:
        try:
            found = os.open(f"/proc/{member.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, ProcessLookupError):
            return None
        if not processes.alive(member):  # what was opened may be that of a stranger with its number
            os.close(found)
            return None
        if os.fstat(found).st_ino != ours:
            return found
        os.close(found)
        time.sleep(0.001)
    return None


def fresh() -> int:
    own = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        linux.unshare(linux.CLONE_NEWNET)
        try:
            linux.raise_loopback()
            return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            linux.enter(own, linux.CLONE_NEWNET)
    finally:
        os.close(own)
