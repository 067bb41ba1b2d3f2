"""Starts workers by forking a process that has torch loaded already, and is their parent until they end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fairlead.backends.local import cgroups, linux, processes, reach, sockets
from fairlead.backends.local.birth import Birth, be_born
from fairlead.backends.local.messages import Ended, FromForkServer, Hello, Kill, NodeConfig, Started, ToForkServer

_TICK_MS = 1000


@dataclass(slots=True)
class _Child:
    key: str
    pid: int
    watch: int  # pidfd
    group: cgroups.Group


class ForkServer:
    """One node's: dies with its node manager, and takes every worker along."""

    def __init__(self, node: socket.socket, config: NodeConfig) -> None:
        self._node = node
        self._config = config
        self._children: dict[str, _Child] = {}
        self._empty: list[cgroups.Group] = []  # to be removed when the last process has left
        self._group = cgroups.Group(0)
        self._decoder = msgspec.json.Decoder(ToForkServer)

    def serve(self) -> None:
        """Fork and reap until the node manager is gone."""
        linux.adopt_orphans()
        linux.call_process(f"fl-fork-{self._config.name}")
        self._send(self._settle())
        while self._node.fileno() not in self._ready() or self._hear():
            self._reap()
            self._empty = [group for group in self._empty if not group.remove()]
        self._end()

    def _ready(self) -> set[int]:
        """Which of the node manager's line and the children's ends have something to say."""
        poller = select.poll()
        for descriptor in (self._node.fileno(), *(child.watch for child in self._children.values())):
            poller.register(descriptor, select.POLLIN)
        return {descriptor for descriptor, _ in poller.poll(50 if self._empty else _TICK_MS)}

    def _settle(self) -> Hello:
        """Get mounts and limits right before the first worker comes."""
        problem = None
        try:
            if os.geteuid() == 0:
                reach.make_reachable(reach.needed(Path(self._config.home)))
        except OSError as error:
            problem = f"Python cannot be made reachable for the tenants' users: {error}"
        self._group = cgroups.usable(self._config.tag, self._config.name, self._config.capacity)
        return Hello(os.getpid(), self._group.version, [str(folder) for folder in self._group.folders], problem)

    def _send(self, message: FromForkServer) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # seen as the end of the next read
            sockets.send_packet(self._node, msgspec.json.encode(message))

    def _hear(self) -> bool:
        data, descriptors = sockets.receive_packet(self._node)
        if not data:
            return False
        message = self._decoder.decode(data)
        if isinstance(message, Kill):
            child = self._children.get(message.key)
            if child is not None:
                _signal(child, message.signal)
        else:
            self._start(message.key, *descriptors)
        return True

    def _start(self, key: str, channel: int, letter: int, output: int) -> None:
        group = cgroups.Group(0)
        try:
            with os.fdopen(letter, "rb") as file:
                birth = msgspec.msgpack.decode(file.read(), type=Birth)
            group = self._worker_group(birth)
            parent, pid = os.getpid(), os.fork()
        except OSError as error:
            os.close(channel)
            os.close(output)
            self._empty.append(group)
            self._send(Ended(key, None, None, problem=f"the node could not start it: {error}"))
            return
        if pid == 0:
            _close_all_but(channel, output)
            be_born(birth, socket.socket(fileno=channel), output, group, parent, self._config.first_core)
        os.close(channel)
        os.close(output)
        self._children[key] = _Child(key, pid, os.pidfd_open(pid), group)
        self._send(Started(key, pid, [str(folder) for folder in group.folders]))

    def _worker_group(self, birth: Birth) -> cgroups.Group:
        spec = birth.spec
        cpu = min(spec.cpu, self._config.capacity.get("cpu", spec.cpu))
        return cgroups.worker_group(self._group, f"{spec.job}.{birth.worker}", cpu, spec.memory_bytes)

    def _reap(self) -> None:
        """Report every child that ended, after the rest of its group was killed; adopted orphans just go."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            child = next((child for child in self._children.values() if child.pid == ended.si_pid), None)
            if child is not None:
                processes.kill_group(child.pid)  # before reaping: the number is still ours
            _, status = os.waitpid(ended.si_pid, 0)
            if child is not None:
                self._bury(child, status)

    def _bury(self, child: _Child, status: int) -> None:
        del self._children[child.key]
        os.close(child.watch)
        child.group.kill()
        if not child.group.folders:
            _kill_strays(child.key)
        code = os.waitstatus_to_exitcode(status)
        killed, starved = code < 0, child.group.out_of_memory()
        if not child.group.remove():
            self._empty.append(child.group)
        self._send(Ended(child.key, None if killed else code, -code if killed else None, starved and code != 0))

    def _end(self) -> None:
        """The node manager is gone: nothing of this node may live on."""

        def left() -> list[int]:
            return processes.descendants(os.getpid())

        for child in self._children.values():
            processes.kill_group(child.pid)
            child.group.kill()
        while pids := left():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            processes.wait_gone(lambda: not left(), 0.2)
        self._group.kill()
        processes.wait_gone(lambda: cgroups.discard(self._group), 2.0)


def _kill_strays(key: str) -> None:
    """Without a cgroup: kill what the worker started in sessions of their own, which this process has adopted."""
    job, worker = key.split("/", 1)
    marks = {f"FAIRLEAD_JOB={job}".encode(), f"FAIRLEAD_WORKER={worker}".encode()}
    for pid in processes.descendants(os.getpid()):
        with contextlib.suppress(OSError):  # it has just ended
            if marks <= set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                os.kill(pid, signal.SIGKILL)


def _signal(child: _Child, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(child.pid) == child.pid:
            processes.kill_group(child.pid, number)
        else:  # so young that it does not lead its group yet
            signal.pidfd_send_signal(child.watch, number)


def _close_all_but(*kept: int) -> None:
    begin = 3
    for descriptor in (*sorted(kept), os.sysconf("SC_OPEN_MAX")):
        os.closerange(begin, descriptor)
        begin = descriptor + 1
