"""The fork server: starts workers by forking a process with torch loaded, and reaps them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fairlead import unix_sockets
from fairlead.agent.embedded import gang_network
from fairlead.agent.node import cgroups, disk_usage, processes
from fairlead.agent.node.device_slots import memory_limit
from fairlead.agent.node.messages import (  # fmt: skip
    Ended,
    FromForkServer,
    Hello,
    Kill,
    NodeConfig,
    Start,
    Started,
    ToForkServer,
)
from fairlead.agent.sandbox import linux, tenant_access
from fairlead.agent.sandbox.rlimits import Limits, process_limit
from fairlead.agent.sandbox.sandbox import Namespaces, NotBuilt, Sandbox, fork_into
from fairlead.agent.sandbox.spare_sandboxes import SpareSandboxes
from fairlead.agent.zygote.worker_bootstrap import Files, PreparedWorker, become_worker
from fairlead.home import Home

_TICK_MS = 1000
_QUIET_MS = 300  # idle time before spare sandboxes are built
_EMPTY_MS = 50
_BUILD_S = 30.0
_PRIORITY = -10  # starts take precedence over running workers


@dataclass(slots=True)
class _Child:
    key: str
    pid: int
    watch: int  # pidfd
    group: cgroups.Group
    sandbox: Sandbox | None
    frame: str


@dataclass(slots=True)
class _Pending:
    """A worker that waits for its sandbox."""

    start: Start
    files: Files
    group: cgroups.Group
    sandbox: Sandbox
    deadline_s: float


class ForkServer:
    """The fork server of one node. Ends with its node manager and kills all workers. Never reads data of a tenant."""

    def __init__(self, node: socket.socket, config: NodeConfig) -> None:
        self._node = node
        self._config = config
        self._home = Home(Path(config.home))
        self._children: dict[str, _Child] = {}
        self._pending: dict[str, _Pending] = {}
        self._spares = SpareSandboxes(self._build)
        self._empty: list[cgroups.Group] = []  # to be removed when their last process has ended
        self._group = cgroups.Group(0)
        self._outer_mounts = -1  # mount namespace before closed folders were covered
        self._decoder = msgspec.json.Decoder(ToForkServer)

    def serve(self) -> None:
        """Fork and reap until the node manager is gone."""
        linux.adopt_orphans()
        linux.set_process_name(f"fl-fork-{self._config.name}")
        self._send(self._set_up())
        while self._node.fileno() not in (ready := self._ready()) or self._handle_message():
            self._start_ready(ready)
            self._reap()
            self._build_spares(quiet=not ready and not self._pending)
            self._empty = [group for group in self._empty if not _removed(group)]
        self._end()

    def _ready(self) -> set[int]:
        """Wait; returns the ready descriptors: of the node manager, ended children and finished sandboxes."""
        poller = select.poll()
        poller.register(self._node.fileno(), select.POLLIN)
        for child in self._children.values():
            poller.register(child.watch, select.POLLIN)
        for pending in self._pending.values():
            poller.register(pending.sandbox.ready, select.POLLIN)
        patience_ms = _QUIET_MS if self._spares.needs_build else _TICK_MS
        return {descriptor for descriptor, _ in poller.poll(_EMPTY_MS if self._empty else patience_ms)}

    def _build_spares(self, *, quiet: bool) -> None:
        """Build a spare sandbox while no worker is being started."""
        self._spares.forget_old()
        if quiet and self._spares.needs_build:
            self._spares.build_one()

    def _set_up(self) -> Hello:
        """Set up mounts, priority and the node's control group."""
        problem = None
        try:
            if os.geteuid() == 0:
                os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
                self._outer_mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
                tenant_access.make_reachable(tenant_access.needed(self._home.root))
        except OSError as error:
            problem = f"Python cannot be made reachable for the tenants' users: {error}"
        self._group = cgroups.create_node_group(self._config.tag, self._config.name, self._config.capacity)
        self._group.kill()  # leftovers of an earlier fork server
        return Hello(os.getpid(), self._group.version, [str(folder) for folder in self._group.folders], problem)

    def _send(self, message: FromForkServer) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the next read sees the end
            unix_sockets.send_packet(self._node, msgspec.json.encode(message))

    def _handle_message(self) -> bool:
        data, descriptors = unix_sockets.receive_packet(self._node)
        if not data:
            return False
        message = self._decoder.decode(data)
        if isinstance(message, Kill):
            self._kill(message)
        else:
            self._start(message, descriptors)
        return True

    def _kill(self, message: Kill) -> None:
        child, pending = self._children.get(message.key), self._pending.get(message.key)
        if child is not None:
            _signal(child, message.signal)
        elif pending is not None:
            self._give_up(pending, Ended(message.key, None, message.signal))

    # ------------------------------------------------------------ start

    def _start(self, start: Start, descriptors: Sequence[int]) -> None:
        files, group = Files.received(start, descriptors), cgroups.Group(0)
        try:
            group = self._worker_group(start)
            if files.arguments is None:
                # Without a sandbox the worker keeps the mounts that it is forked with.
                with self._with_folders_reachable(start.closed):
                    self._fork(start, files, group)
                return
            spare = self._spares.take(start.frame)
            sandbox = self._build(start, files.arguments) if spare is None else spare[0]
        except (OSError, NotBuilt) as error:
            files.close()
            self._empty.append(group)
            self._send(_not_started(start, error))
            return
        self._pending[start.key] = pending = _Pending(start, files, group, sandbox, time.monotonic() + _BUILD_S)
        if spare is not None:
            self._start_pending(pending, spare[1])

    def _worker_group(self, start: Start) -> cgroups.Group:
        cpu = min(start.cpu, self._config.capacity.get("cpu", start.cpu))
        name = f"{start.job}.{start.worker}"
        memory_bytes = memory_limit(start.memory_bytes, self._config.capacity)
        return cgroups.worker_group(self._group, name, cpu, memory_bytes, start.processes)

    def _build(self, start: Start, arguments: int) -> Sandbox:
        """Start building a sandbox in a new network; without root bubblewrap makes the network."""
        with self._with_folders_reachable(start.closed):
            if start.network == "open" or os.geteuid() != 0:
                return Sandbox(arguments, start.uid)
            network = gang_network.create_network()
            try:
                with gang_network.entered(network):
                    return Sandbox(arguments, start.uid)
            finally:
                os.close(network)

    @contextlib.contextmanager
    def _with_folders_reachable(self, closed: Sequence[str]) -> Iterator[None]:
        """Make granted folders that are closed to the tenant's user reachable during a start."""
        if not closed or self._outer_mounts < 0:
            yield
            return
        own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        try:
            linux.enter(self._outer_mounts, linux.CLONE_NEWNS)
            try:
                tenant_access.make_reachable(
                    [*tenant_access.needed(self._home.root), *map(Path, map(os.path.realpath, closed))]
                )
                yield
            finally:
                linux.enter(own, linux.CLONE_NEWNS)
        finally:
            os.close(own)

    def _start_ready(self, ready: set[int]) -> None:
        """Fork the workers whose sandboxes are ready; give up those whose sandbox timed out."""
        for pending in list(self._pending.values()):
            if pending.sandbox.ready in ready:
                self._start_pending(pending)
            elif time.monotonic() >= pending.deadline_s:
                self._give_up(
                    pending,
                    _not_started(pending.start, TimeoutError(f"its sandbox was not ready within {_BUILD_S:g} s")),
                )

    def _start_pending(self, pending: _Pending, known: Namespaces | None = None) -> None:
        start = pending.start
        try:
            with contextlib.closing(known or pending.sandbox.namespaces()) as namespaces:
                if start.network != "open" and not namespaces.own_network:
                    raise NotBuilt("it is in the machine's network")
                self._fork(start, pending.files, pending.group, pending.sandbox, namespaces)
        except (OSError, NotBuilt) as error:
            self._give_up(pending, _not_started(start, error, "its sandbox could not be built: "))
        else:
            del self._pending[start.key]

    def _give_up(self, pending: _Pending, end: Ended) -> None:
        del self._pending[pending.start.key]
        pending.sandbox.end()
        pending.files.close()
        pending.group.kill()
        self._empty.append(pending.group)
        self._send(end)

    def _fork(
        self, start: Start, files: Files, group: cgroups.Group, sandbox: Sandbox | None = None,
        namespaces: Namespaces | None = None,
    ) -> None:  # fmt: skip
        most = process_limit(start.processes, sandboxed=namespaces is not None, grouped=bool(group.folders))
        limits = Limits(start.files, start.disk_bytes, most)
        prepared = PreparedWorker(group, limits, namespaces, os.getpid(), self._config.first_core, self._home.gangs)
        pid = os.fork() if namespaces is None else fork_into(namespaces)
        if pid == 0:
            become_worker(start, files, prepared)
        self._children[start.key] = _Child(start.key, pid, os.pidfd_open(pid), group, sandbox, start.frame)
        if files.arguments is not None:
            self._spares.record_start(start, files.arguments, [child.frame for child in self._children.values()])
        files.close()
        first = 0 if sandbox is None else sandbox.init
        self._send(Started(start.key, pid, [str(folder) for folder in group.folders], first))

    # ------------------------------------------------------------ end

    def _reap(self) -> None:
        """Reap ended children: kill the rest of their group and report them; adopted orphans are only reaped."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            child = next((child for child in self._children.values() if child.pid == ended.si_pid), None)
            if child is not None:
                processes.kill_group(child.pid)  # before reaping: the pid cannot be reused yet
            _, status, used = os.wait4(ended.si_pid, 0)
            if child is not None:
                self._handle_exit(child, status, used.ru_utime + used.ru_stime)

    def _handle_exit(self, child: _Child, status: int, cpu_s: float) -> None:
        del self._children[child.key]
        os.close(child.watch)
        if child.sandbox is not None:
            child.sandbox.end()
        child.group.kill()
        if not child.group.folders and child.sandbox is None:
            _kill_strays(child.key)
        code = os.waitstatus_to_exitcode(status)
        killed, starved = code < 0, child.group.out_of_memory()
        cpu_s = child.group.cpu_s() if child.group.folders else cpu_s
        if not child.group.remove():
            self._empty.append(child.group)
        self._send(Ended(
            child.key, None if killed else code, -code if killed else None, starved and code != 0, cpu_s=cpu_s
        ))  # fmt: skip

    def _end(self) -> None:
        """The node manager is gone: kill all processes of this node."""

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
        processes.wait_gone(lambda: cgroups.discard(self._group), 2.0)


def _not_started(start: Start, error: Exception, doing: str = "") -> Ended:
    no_room = isinstance(error, OSError) and disk_usage.is_full(error)
    return Ended(start.key, None, None, problem=f"{doing}{error}", no_room=no_room)


def _removed(group: cgroups.Group) -> bool:
    group.kill()  # again: a sandbox under construction may have forked since
    return group.remove()


def _kill_strays(key: str) -> None:
    """Without a cgroup: kill orphans of the worker, which this process has adopted."""
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
        else:  # it has not called setsid() yet
            signal.pidfd_send_signal(child.watch, number)
