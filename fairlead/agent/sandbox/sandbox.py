"""One worker's sandbox: namespaces that bubblewrap builds as the tenant's user and a holder process keeps open.

The holder (``cat`` on a pipe) is its first process. It ends when the fork server closes the pipe, dies, or kills it;
the kernel then ends everything in the sandbox. No process inside can stop, reach or outlive it. A sandbox that is still
being built is never killed, since bubblewrap's two processes would wait for each other for ever: it ends by itself as
soon as its holder finds the pipe closed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fairlead.agent.node import processes
from fairlead.agent.sandbox import linux, seccomp

_NAMESPACES = {
    "net": linux.CLONE_NEWNET, "ipc": linux.CLONE_NEWIPC, "uts": linux.CLONE_NEWUTS, "cgroup": linux.CLONE_NEWCGROUP,
    "mnt": linux.CLONE_NEWNS, "user": linux.CLONE_NEWUSER,
}  # fmt: skip  # in order of entry: entering the last removes the right to enter the others

# As pid 1 it ignores all signals from inside; ignoring SIGCHLD, it leaves no zombies.
_HOLDER = ("/usr/bin/env", "--ignore-signal=CHLD", "/usr/bin/cat")
TOOLS = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"  # where bubblewrap is looked for
_FIRST_FREE = 16  # descriptors are moved above their target numbers first
_ERROR_BYTES = 2000


class Namespaces:
    """Descriptors of a sandbox's namespaces, except those it shares with this process."""

    def __init__(self, init: int) -> None:
        self.others: list[tuple[int, int]] = []
        self.processes = os.open(f"/proc/{init}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for name, kind in _NAMESPACES.items():
                if not _same(f"/proc/{init}/ns/{name}", f"/proc/self/ns/{name}"):
                    self.others.append((os.open(f"/proc/{init}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC), kind))
        except OSError:  # the sandbox has just ended
            self.close()
            raise

    @property
    def is_complete(self) -> bool:
        """True when it has all mandatory namespaces of its own."""
        walls = {linux.CLONE_NEWNS, linux.CLONE_NEWIPC, linux.CLONE_NEWUTS, linux.CLONE_NEWUSER}
        apart = not _same(f"/proc/self/fd/{self.processes}", "/proc/self/ns/pid")
        return apart and walls <= {kind for _, kind in self.others}

    @property
    def own_network(self) -> bool:
        """True when it has another network namespace than the platform."""
        return any(kind == linux.CLONE_NEWNET for _, kind in self.others)

    @property
    def descriptors(self) -> list[int]:
        return [self.processes, *(descriptor for descriptor, _ in self.others)]

    def take_network(self) -> int:
        """Remove the network namespace from those to be entered and return its descriptor."""
        place = next(place for place, (_, kind) in enumerate(self.others) if kind == linux.CLONE_NEWNET)
        return self.others.pop(place)[0]

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class NotBuilt(Exception):
    """The sandbox could not be built; one line with the reason."""


class Sandbox:
    """A sandbox, from the start of bubblewrap to the end of all its processes."""

    def __init__(self, arguments: int, uid: int | None) -> None:
        """Start bubblewrap with this file of arguments."""
        holding, self._hold = os.pipe()
        self.ready, readying = os.pipe()  # readable when it is ready or has failed
        self._info = _file("fairlead-info")  # a file: closing a pipe would kill one half of bubblewrap
        self._errors, erring = os.pipe()
        rules = _file("fairlead-filter", seccomp.program())
        self.init = 0  # its first process, once it is ready
        self._init = -1  # its descriptor
        os.write(self._hold, b"r")  # the holder echoes it when it is ready
        try:
            self.pid = _spawn(_command(uid), [holding, readying, erring, arguments, rules, self._info])
        except OSError:
            self._close()
            raise
        finally:
            for descriptor in (holding, readying, erring, rules):
                os.close(descriptor)

    def namespaces(self) -> Namespaces:
        """Its namespaces, once it is ready; raises NotBuilt when it has failed."""
        if os.read(self.ready, 1) != b"r":
            said = os.read(self._errors, _ERROR_BYTES).decode(errors="replace").strip()
            raise NotBuilt(said.splitlines()[-1] if said else "bubblewrap ended without a message")
        self.init = init = int(msgspec.json.decode(os.pread(self._info, 4096, 0))["child-pid"])
        self._init = os.pidfd_open(init)
        found = Namespaces(init)
        if processes.parent_of(init) != self.pid or not found.is_complete:  # it has ended and its pid was reused
            found.close()
            raise NotBuilt("its first process ended at once, or shares a namespace with the platform")
        return found

    def wait(self, timeout_s: float) -> bool:
        """True when it is ready or has failed within the time."""
        return bool(select.select([self.ready], [], [], timeout_s)[0])

    def end(self) -> None:
        """Kill all processes inside. The outer bubblewrap is a child of this process, to be reaped."""
        if self._init >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
        self._close()

    def _close(self) -> None:
        kept = (self._hold, self.ready, self._info, self._errors, self._init)
        self._hold = self.ready = self._info = self._errors = self._init = -1
        for descriptor in kept:
            if descriptor >= 0:
                os.close(descriptor)


def fork_into(namespaces: Namespaces) -> int:
    """Fork a child into the sandbox's pid namespace; it enters the other namespaces itself.

    A failure to return to the own namespace must not be caught: the next tenant's worker would be forked into this
    sandbox.
    """
    if os.geteuid() != 0:
        return _fork_twice(namespaces)
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    linux.enter(namespaces.processes, linux.CLONE_NEWPID)
    try:
        pid = os.fork()
    except OSError:
        linux.enter(own, linux.CLONE_NEWPID)
        raise
    if pid != 0:
        linux.enter(own, linux.CLONE_NEWPID)
        os.close(own)
    return pid


def _fork_twice(namespaces: Namespaces) -> int:
    """Without root a process cannot return: a child enters, forks and ends, and this process adopts the grandchild."""
    reading, writing = os.pipe()
    between = os.fork()
    if between == 0:
        try:
            linux.enter(namespaces.processes, linux.CLONE_NEWPID)
            pid = os.fork()
        except OSError:
            os._exit(1)
        if pid == 0:
            return 0
        os.write(writing, str(pid).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(between, 0)
    if not said:
        raise OSError(errno.EPERM, "the sandbox could not be entered")
    return int(said)


def _command(uid: int | None) -> list[str]:
    become: list[str] = []
    if os.geteuid() == 0:
        if not uid:
            raise NotBuilt("a sandbox is never built as root")
        become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs", "--"]
    return [*become, "bwrap", "--args", "3", "--seccomp", "4", "--info-fd", "5", "--as-pid-1", "--", *_HOLDER]


def _spawn(command: list[str], descriptors: Sequence[int]) -> int:
    """Start the program with exactly these descriptors, numbered from 0, without copying this process."""
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for descriptor in descriptors]
    try:
        return os.posix_spawnp(
            command[0], command, {"PATH": TOOLS, "LC_ALL": "C"},
            file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(moved)],
            setsid=True, setsigmask=(), setsigdef=(signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
        )  # fmt: skip
    finally:
        for descriptor in moved:
            os.close(descriptor)


def _file(name: str, data: bytes = b"") -> int:
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _same(one: str, other: str) -> bool:
    return Path(one).stat().st_ino == Path(other).stat().st_ino
