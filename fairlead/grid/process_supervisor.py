"""Supervises a node's grid process: starts it on the first connection, restarts it, and holds what must outlive it."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import select
import shutil
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fairlead import framing
from fairlead.grid import mapping
from fairlead.grid.messages import (
    Admit,
    AskPeers,
    Discard,
    Forget,
    FromSupervisor,
    Listen,
    Peer,
    PeerListener,
    Ping,
    Pong,
    Report,
    ToSupervisor,
)
from fairlead.grid.values import Usage
from fairlead.unix_sockets import connect, listen, receive_packet, send_packet

_RESTART_S = 0.2  # at least this long between two starts
_TOLD_S = 600.0  # a restart is reported for this long

CHECK_S = 1.0
_SILENT_S = 5.0  # of silence are reported
_reports = framing.Decoder(ToSupervisor)

log = logging.getLogger("fairlead.grid")


@dataclass(frozen=True, slots=True)
class TenantMemory:
    """A tenant's memory, which outlives the grid process."""

    admit: Admit
    descriptors: tuple[int, int, int]  # arena writable, arena read-only, journal


@dataclass(frozen=True, slots=True)
class JobListener:
    """The socket for the workers of one job."""

    listen: Listen
    path: Path
    listener: socket.socket


@dataclass(slots=True)
class GridSupervisor:
    """Not a thread: its owner calls :meth:`handle_events` when :meth:`fileno` is readable."""

    spill: Path
    uid: int | None = None  # user of the grid process; None: this process's user
    name: str = "fl-grid"
    arena_bytes: int = 64 << 30  # of address space; memory is used within the quota only
    log_path: Path | None = None
    peer_path: Path | None = None  # socket for other nodes; theirs lie beside it with the same suffix
    peer_key: bytes = b""
    environment: Mapping[str, str] | None = None
    silence_s: float = 15.0  # a grid process that answers no ping for this long is restarted
    usage: dict[str, Usage] = field(default_factory=dict)
    _tenants: dict[str, TenantMemory] = field(default_factory=dict)
    _listeners: dict[str, JobListener] = field(default_factory=dict)
    _process: subprocess.Popen[bytes] | None = None
    _control: socket.socket | None = None
    _pidfd: int = -1
    _peer_listener: socket.socket | None = None
    _started_s: float = float("-inf")
    _unsent: deque[tuple[bytes, tuple[int, ...]]] = field(default_factory=deque)  # with duplicated descriptors
    _unanswered_pings: int = 0  # since the last Pong
    _restarted: tuple[float, str] | None = None  # when it was last restarted, and why
    _poll: select.epoll = field(default_factory=select.epoll)

    @property
    def pid(self) -> int | None:
        """Pid of the grid process, while there is one."""
        return None if self._process is None else self._process.pid

    def fileno(self) -> int:
        return self._poll.fileno()

    # ------------------------------------------------------------ tenants and jobs

    def admit(self, admit: Admit) -> None:
        """Admit a tenant, or change its quotas."""
        known = self._tenants.get(admit.tenant)
        if known is not None:  # existing blocks keep their key
            admit = msgspec.structs.replace(admit, key=known.admit.key, encrypted=known.admit.encrypted)
            if admit == known.admit:
                return
        descriptors = known.descriptors if known is not None else self._arena(admit)
        self._tenants[admit.tenant] = TenantMemory(admit, descriptors)
        self._tell(admit, descriptors)

    def _arena(self, admit: Admit) -> tuple[int, int, int]:
        arena = mapping.create(f"fairlead-{admit.tenant}", max(self.arena_bytes, admit.quota))
        journal = mapping.create(f"fairlead-{admit.tenant}-journal", mapping.JOURNAL_BYTES)
        return arena, mapping.read_only(arena), journal

    def listen(self, job: str, tenant: str, path: Path, uid: int | None = None) -> str:
        """Listen for this job's workers at the path; returns the token that they must present."""
        if job in self._listeners:
            return self._listeners[job].listen.token
        listener = listen(path, uid=uid)
        door = JobListener(Listen(job, tenant, secrets.token_urlsafe(24), uid), path, listener)
        self._listeners[job] = door
        if self._process is None:
            self._poll.register(listener.fileno(), select.EPOLLIN)
        self._tell(door.listen, [listener.fileno()])
        return door.listen.token

    def forget(self, job: str) -> None:
        """Stop listening for the job."""
        door = self._listeners.pop(job, None)
        if door is not None:
            with contextlib.suppress(FileNotFoundError):  # not polled while a grid process serves it
                self._poll.unregister(door.listener.fileno())
            door.listener.close()
            door.path.unlink(missing_ok=True)
            self._tell(Forget(job))

    def discard(self, label: str, tenant: str = "") -> None:
        """Drop the blocks of this label: of one tenant, or of all."""
        self._tell(Discard(label, tenant))

    # ------------------------------------------------------------ the process

    def handle_events(self) -> None:
        """Handle exits, messages and first connections; returns at once."""
        for descriptor, events in self._poll.poll(0):
            if descriptor == self._pidfd:
                self._handle_exit()
            elif self._control is not None and descriptor == self._control.fileno():
                if events & select.EPOLLOUT:
                    self._flush()
                if events & ~select.EPOLLOUT:
                    self._handle_message()
            elif self._process is None:
                self.start()

    def check(self) -> None:
        """Ping the grid process, and restart it when too many pings went unanswered; call it every :data:`CHECK_S`.

        Counts unanswered pings instead of elapsed time: this process may have been stopped itself.
        """
        if self._process is None:
            return
        if self._unanswered_pings * CHECK_S >= self.silence_s:
            why = f"it answered no ping for {self.silence_s:g} s"
            log.error("restarting the grid process: %s", why)
            self._end_process()
            self._restart(why)
        else:
            self._unanswered_pings += 1
            self._tell(Ping(self._unanswered_pings))

    @property
    def trouble(self) -> str:
        """The current or recent problem of this node's grid; empty when there is none."""
        if self._unanswered_pings * CHECK_S >= _SILENT_S:
            return f"its grid process has not answered for {self._unanswered_pings * CHECK_S:.0f} s"
        if self._restarted is not None and (since_s := time.monotonic() - self._restarted[0]) < _TOLD_S:
            return f"its grid process was restarted {since_s:.0f} s ago: {self._restarted[1]}"
        return ""

    def start(self) -> None:
        """Start the grid process, unless it runs, and send it all tenants and listeners."""
        if self._process is not None:
            return
        time.sleep(max(0.0, min(_RESTART_S, self._started_s + _RESTART_S - time.monotonic())))
        self._started_s = time.monotonic()
        for door in self._listeners.values():
            with contextlib.suppress(FileNotFoundError):
                self._poll.unregister(door.listener.fileno())
        _make_spill_folder(self.spill, self.uid)
        self._unanswered_pings = 0
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        with theirs:
            self._process = self._spawn(theirs.fileno())
        self._pidfd = os.pidfd_open(self._process.pid)
        self._poll.register(self._pidfd, select.EPOLLIN)
        self._poll.register(self._control.fileno(), select.EPOLLIN)
        for tenancy in self._tenants.values():
            self._tell(tenancy.admit, tenancy.descriptors)
        for door in self._listeners.values():
            self._tell(door.listen, [door.listener.fileno()])
        if self.peer_path is not None:
            self._peer_listener = self._peer_listener or listen(self.peer_path)
            self._tell(PeerListener(os.geteuid(), self.peer_key), [self._peer_listener.fileno()])

    def _spawn(self, control: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-P", "-m", "fairlead.grid.process", "--control", str(control),
                   "--spill", str(self.spill), "--name", self.name]  # fmt: skip
        command += [] if self.uid is None else ["--uid", str(self.uid)]
        with contextlib.ExitStack() as opened:
            out = None if self.log_path is None else opened.enter_context(self.log_path.open("ab"))
            return subprocess.Popen(
                command, pass_fds=[control], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/",
                env=None if self.environment is None else dict(self.environment), start_new_session=True,
            )  # fmt: skip

    def _tell(self, message: FromSupervisor, descriptors: tuple[int, ...] | list[int] = ()) -> None:
        """Send without blocking; queued while the grid process does not read."""
        if self._control is not None:
            self._unsent.append((msgspec.msgpack.encode(message), tuple(os.dup(each) for each in descriptors)))
            self._flush()

    def _flush(self) -> None:
        assert self._control is not None
        try:
            while self._unsent:
                send_packet(self._control, *self._unsent[0])
                self._drop_unsent()
        except BlockingIOError:
            self._poll.modify(self._control.fileno(), select.EPOLLIN | select.EPOLLOUT)
            return
        except (BrokenPipeError, ConnectionResetError):  # its successor gets everything at its start
            pass
        with contextlib.suppress(FileNotFoundError):  # its exit is about to be handled
            self._poll.modify(self._control.fileno(), select.EPOLLIN)

    def _drop_unsent(self) -> None:
        _, descriptors = self._unsent.popleft()
        for descriptor in descriptors:
            os.close(descriptor)

    def _handle_message(self) -> None:
        assert self._control is not None
        try:
            data, _ = receive_packet(self._control)
        except BlockingIOError:  # the event was for a predecessor's descriptor of the same number
            return
        if not data:
            self._poll.unregister(self._control.fileno())  # handled when the process has ended
            return
        try:
            said = _reports.decode(data)
        except ValueError as error:
            log.error("cannot decode a message of the grid process: %s", error)
            return
        match said:
            case Report():
                self.usage |= said.tenants
            case Pong():
                self._unanswered_pings = 0
            case AskPeers():
                self._connect_peers(said.tenant)

    def _connect_peers(self, tenant: str) -> None:
        """Connect to the other nodes' grid processes and hand the connections over; a Peer without one is the last."""
        own = self.peer_path
        for path in sorted(own.parent.glob(f"*{own.suffix}")) if own is not None else ():
            with contextlib.suppress(OSError):  # the node is gone, or its backlog is full
                if path != own:
                    with connect(path, timeout_s=0.0) as line:
                        self._tell(Peer(path.stem, tenant), [line.fileno()])
        self._tell(Peer("", tenant))

    def _handle_exit(self) -> None:
        code = self._end_process()
        log.warning("the grid process ended with code %s; restarting it", code)
        self._restart(f"it ended with code {code}")

    def _restart(self, why: str) -> None:
        self._restarted = time.monotonic(), why
        self.start()

    def _end_process(self) -> int | None:
        """Kill and reap the process; returns its exit code."""
        if self._process is None:
            return None
        self._process.kill()
        code = self._process.wait()
        for descriptor in (self._pidfd, -1 if self._control is None else self._control.fileno()):
            with contextlib.suppress(FileNotFoundError, ValueError, OSError):
                self._poll.unregister(descriptor)
        os.close(self._pidfd)
        while self._unsent:
            self._drop_unsent()
        if self._control is not None:
            self._control.close()
        self._process, self._control, self._pidfd = None, None, -1
        return code

    def close(self) -> None:
        """End the process and free memory, sockets and spilled blocks."""
        self._end_process()
        for job in list(self._listeners):
            self.forget(job)
        for tenancy in self._tenants.values():
            for descriptor in tenancy.descriptors:
                os.close(descriptor)
        self._tenants.clear()
        if self._peer_listener is not None and self.peer_path is not None:
            self._peer_listener.close()
            self.peer_path.unlink(missing_ok=True)
        self._poll.close()
        shutil.rmtree(self.spill, ignore_errors=True)


def _make_spill_folder(folder: Path, uid: int | None) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if uid is not None:
        os.chown(folder, uid, uid)
