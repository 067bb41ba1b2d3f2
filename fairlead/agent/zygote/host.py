"""The host process: loads torch once and forks node managers and warm fork servers; has no user code or secrets.

Its death is harmless: nodes and their fork servers live on, and a new host serves later requests.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import logging
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from fairlead import logbook, unix_sockets, wire
from fairlead.agent.embedded.node_records import HostRecord, living_nodes
from fairlead.agent.node import node_manager, processes
from fairlead.agent.node.messages import Done, HostRequest, NodeConfig, StartNode, Supply
from fairlead.agent.sandbox import isolation_probe, tenant_access
from fairlead.agent.zygote.fork_server import ForkServer
from fairlead.home import Home

IDLE_EXIT_S = 60.0
_QUIET_MS = 250  # start requested node managers before loading torch
_TICK_MS = 500
_OUTLIVE_S = 5.0

log = logging.getLogger("fairlead.host")


def preload() -> None:
    """Load what workers need, without a tensor operation: forks made after one would hang at their first matmul."""
    try:
        importlib.import_module("fairlead.worker").preload()
        importlib.import_module("fairlead.pipelines.worker").preload()
    except (ImportError, AttributeError) as error:
        log.warning("preloading torch alone: %s", error)
        with contextlib.suppress(ImportError):
            importlib.import_module("torch._dynamo")
            importlib.import_module("torch").set_num_threads(1)
    gc.collect()
    gc.freeze()  # or the collector would copy shared pages


class Host:
    def __init__(self, home: Home, listener: socket.socket, held_lock: int, *, warm: bool) -> None:
        self._home = home
        self._lock = held_lock
        self._listener = listener
        self._clients: dict[int, socket.socket] = {}
        self._waiting: list[tuple[NodeConfig, socket.socket]] = []
        self._warm = warm
        self._used = time.monotonic()
        self._sound = os.geteuid() != 0  # tenants' users can run here; probed at the first node
        self._levels: dict[str, tuple[str, str | None]] = {}  # probed isolation, by wanted level
        self._ended = False
        self._managers: set[int] = set()  # node managers forked by this host

    def serve(self) -> None:
        """Serve until told to end, or until unused for a while."""
        while not self._ended:
            self._round()
            if self._clients or self._waiting or living_nodes(self._home):
                self._used = time.monotonic()
            self._ended = self._ended or time.monotonic() - self._used > IDLE_EXIT_S
        self._outlive_children()

    def _outlive_children(self) -> None:
        """Wait for fork servers that were just forked to notice the end of their node and exit."""
        for connection in (*self._clients.values(), *(connection for _, connection in self._waiting)):
            connection.close()
        deadline = time.monotonic() + _OUTLIVE_S
        while self._reap() and time.monotonic() < deadline:
            time.sleep(0.005)

    def _round(self) -> None:
        poller = select.poll()
        for descriptor in (self._listener.fileno(), *self._clients):
            poller.register(descriptor, select.POLLIN)
        ready = poller.poll(_TICK_MS if self._warm or not self._waiting else _QUIET_MS)
        for descriptor, _ in ready:
            if descriptor == self._listener.fileno():
                client, _ = self._listener.accept()
                self._clients[client.fileno()] = client
            else:
                self._handle_message(self._clients[descriptor])
        if self._waiting and not ready and not self._warm:
            preload()
            self._warm = True
        if self._warm:
            self._supply()
        self._reap()

    def _handle_message(self, client: socket.socket) -> None:
        data, _ = unix_sockets.receive_packet(client)
        if not data:
            del self._clients[client.fileno()]
            client.close()
            return
        request = msgspec.json.decode(data, type=HostRequest)
        if isinstance(request, Supply):
            del self._clients[client.fileno()]
            if request.node.protocol == wire.PROTOCOL:
                self._waiting.append((request.node, client))
            else:  # of an older Fairlead; it is restarted when it is empty
                client.close()
            return
        if isinstance(request, StartNode):
            answer = self._start(request.node)
        else:
            self._ended, answer = True, Done()
            for pid in self._managers:  # including one that has no record yet
                os.kill(pid, signal.SIGTERM)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the client did not wait
            unix_sockets.send_packet(client, msgspec.json.encode(answer))

    def _start(self, config: NodeConfig) -> Done:
        """Fork a node manager; Done names the problem when this machine cannot provide the wanted isolation."""
        level, why = self._level(config.isolation)
        if config.isolation in ("sandbox", "user") and level != config.isolation:
            missed = f"isolation {config.isolation} is not possible on this machine: {why}"
            return Done(missed, isolation_probe.help_for(config.isolation))
        problem = None if self._sound else tenant_access.problem(self._home.root)
        if problem is not None:
            fix = "run the platform as a user of its own instead of root, or put Python where all users can read it"
            return Done(problem, fix)
        self._sound = True
        settled = msgspec.structs.replace(config, isolation=level)
        self._managers.add(self._fork(lambda: node_manager.main(settled), self._home.logs / f"{config.name}.log"))
        return Done()

    def _level(self, wanted: str) -> tuple[str, str | None]:
        if wanted not in self._levels:
            self._levels[wanted] = level, why = isolation_probe.choose(wanted, self._home.root)
            log.info("isolation: %s%s", level, f" ({why})" if why else "")
        return self._levels[wanted]

    def _supply(self) -> None:
        while self._waiting:
            config, connection = self._waiting.pop()
            self._fork(ForkServer(connection, config).serve, self._home.logs / f"{config.name}.log")
            connection.close()

    def _fork(self, body: Callable[[], None], log_path: Path) -> int:
        if (pid := os.fork()) != 0:
            return pid
        os.setsid()
        os.close(self._lock)  # or the child would keep the host's lock
        for other in (self._listener, *self._clients.values(), *(connection for _, connection in self._waiting)):
            other.close()
        write_to(log_path)
        logbook.configure(log_path.stem, path=log_path, facts=lambda: {"node": log_path.stem})
        return run_and_exit(body)

    def _reap(self) -> bool:
        """Reap ended children; True while any are left."""
        try:
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self._managers.discard(pid)
        except ChildProcessError:
            return False
        return True


def write_to(path: Path) -> None:
    """Redirect stdout and stderr to a log file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def run_and_exit(body: Callable[[], None]) -> NoReturn:
    """Run the body and exit; for a forked process."""
    code = 0
    try:
        body()
    except BaseException:  # the edge of a process
        log.exception("ending after an error")
        code = 1
    logging.shutdown()
    os._exit(code)


def _detach() -> int:
    """Become a daemon; the parent exits when the returned descriptor is closed."""
    reading, writing = os.pipe()
    if os.fork() != 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    os.setsid()
    return writing


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fairlead.agent.zygote.host")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--no-preload", action="store_true", help="do not load torch ahead of workers")
    arguments = parser.parse_args()
    home = Home(arguments.home)
    settled = _detach()
    logbook.configure("host", path=home.logs / "host.log")
    held = processes.lock(home.run / "host.lock")
    if held is None:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    isolation_probe.own_child_namespaces(home)
    listener = unix_sockets.listen(home.run / "host.sock", socket.SOCK_SEQPACKET)
    record = home.run / "host.pid"
    record.write_bytes(msgspec.json.encode(HostRecord.of_this_process()))
    os.close(settled)
    try:
        Host(home, listener, held, warm=arguments.no_preload).serve()
    finally:
        record.unlink(missing_ok=True)
        (home.run / "host.sock").unlink(missing_ok=True)
    sys.exit(0)


if __name__ == "__main__":
    main()
