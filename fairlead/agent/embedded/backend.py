"""The embedded backend: runs gangs on virtual nodes of this machine, with nothing else installed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from fairlead import wire
from fairlead.agent.embedded import host_client
from fairlead.agent.embedded.fencing import fence
from fairlead.agent.embedded.node_link import NodeGone, NodeRefused
from fairlead.agent.embedded.node_records import records
from fairlead.agent.embedded.node_shapes import Division, NodeShape, load_division, parse_nodes, save_division
from fairlead.agent.embedded.node_supervisor import NodeSupervisor
from fairlead.agent.embedded.worker_logs import last_lines, read_logs
from fairlead.agent.node import processes
from fairlead.agent.protocol import (
    BackendEvent,
    Capabilities,
    Inventory,
    LaunchOrder,
    LogChunk,
    LogCursor,
    NodeAction,
    NotStarted,
)  # fmt: skip
from fairlead.agent.sandbox.isolation_probe import LEVELS
from fairlead.cluster import Gang, Node, NodeState
from fairlead.errors import LostLeadership, NotFound, Unavailable
from fairlead.home import Home
from fairlead.local_wire import placed_join
from fairlead.safe_removal import remove

__all__ = ["LocalBackend", "NodeShape", "parse_nodes"]

_END_S = 15.0
_TRY_AGAIN_S = 0.05
_HOST_AGAIN_S = 0.2

log = logging.getLogger("fairlead.local")


class LocalBackend:
    """Runs gangs on the virtual nodes of this machine.

    A command to a lost node does nothing: its workers are gone and its NodeLost is among the events.
    """

    def __init__(
        self, home: Home, nodes: Sequence[NodeShape] = (), *, restart_s: tuple[float, float] = (5.0, 60.0),
        preload: bool = True, isolation: str | None = None, strangers: bool = False,
        derive: Callable[..., bytes] | None = None,
    ) -> None:  # fmt: skip
        self.capabilities = Capabilities(
            "local", "user" if os.geteuid() == 0 else "none", detection_s=1.0, one_machine=True
        )
        self._isolation = isolation  # None: as at the last start, or the strongest level that works
        self._strangers = strangers  # several tenants exist: "auto" then means sandbox
        self._derive = derive  # derives keys from the platform's key; None: each node's grid makes its own
        self._home = home
        self._shapes = tuple(nodes)
        self._restart_s = restart_s
        self._preload = preload  # of torch; without it only commands start fast
        self._epoch: int | None = None
        self._supervisors: dict[str, NodeSupervisor] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._events: asyncio.Queue[BackendEvent | None] = asyncio.Queue()

    # ------------------------------------------------------------ open and close

    async def open(self, epoch: int) -> None:
        """Start or adopt all nodes: the given ones, those of the last start, or one for the whole machine.

        Raises only when no node comes up; a node that does not answer delays nothing.
        """
        self._home.create()
        self._home.create_memory()
        remembered = self._home.run / "nodes.json"
        before = load_division(remembered)
        self._shapes = self._shapes or tuple(before.nodes) or parse_nodes("1")
        named = self._isolation or os.environ.get("FAIRLEAD_ISOLATION")
        wanted = self._isolation = named or before.isolation
        save_division(remembered, Division(self._shapes, wanted))
        wanted = "sandbox" if self._strangers and wanted == "auto" else wanted
        self._epoch = epoch
        names = {shape.name for shape in self._shapes}
        for record in records(self._home):
            if record.node not in names:  # of an earlier --nodes
                await asyncio.to_thread(fence, self._home, record.node, epoch)
        await asyncio.to_thread(host_client.retire_host, self._home)
        # Before the nodes, so that the host is started only once.
        host = await host_client.connect_host(self._home, preload=self._preload)
        self._supervisors = {
            shape.name: NodeSupervisor(
                self._home, shape, epoch, self._events.put_nowait, self._restart_s, self._preload, wanted
            )
            for shape in self._shapes
        }
        self._tasks = [asyncio.create_task(supervisor.run()) for supervisor in self._supervisors.values()]
        self._tasks.append(asyncio.create_task(self._keep_host(host)))
        for task in self._tasks:
            task.add_done_callback(_log_failure)
        for supervisor in self._supervisors.values():
            await supervisor.first_attempt_over.wait()
        failures = [supervisor.failure for supervisor in self._supervisors.values() if supervisor.failure is not None]
        lost = next((failure for failure in failures if isinstance(failure, LostLeadership)), None)
        if lost is not None or len(failures) == len(self._supervisors):
            if lost is None:
                await self.shutdown()  # no node came up: leave no host behind
            await self.close()
            raise lost or failures[0]
        self._note_isolation()
        if self.capabilities.isolation == "sandbox":  # tenants rely on it: later starts must provide it
            for supervisor in self._supervisors.values():
                supervisor.require_isolation("sandbox")

    def _note_isolation(self) -> None:
        """Report the isolation of the weakest node."""
        found = [
            supervisor.status.isolation.partition(",")[0]
            for supervisor in self._supervisors.values()
            if supervisor.status
        ]
        now = self.capabilities.isolation  # kept while all nodes are lost
        weakest = max(found, key=lambda level: LEVELS.index(level) if level in LEVELS else 0, default=now)
        self.capabilities = dataclasses.replace(
            self.capabilities, isolation=weakest, isolation_chosen=self._isolation in ("user", "none")
        )

    async def _keep_host(self, line: socket.socket) -> None:
        """Restart the host whenever it ends, so that every node gets its fork server."""
        while True:
            with line:
                await host_client.until_gone(line)
            line = await self._new_host()

    async def _new_host(self) -> socket.socket:
        while True:
            await asyncio.sleep(_HOST_AGAIN_S)
            try:
                line = await host_client.connect_host(self._home, preload=self._preload)
            except (Unavailable, OSError) as error:
                log.error("the host process does not start: %s", error)
                continue
            for supervisor in self._supervisors.values():
                supervisor.refresh_host()
            return line

    async def close(self) -> None:
        """Disconnect from the nodes; workers keep running."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        self._events.put_nowait(None)

    async def shutdown(self) -> None:
        """End all processes of this home on this machine, opened by this object or not, and remove their files."""
        await self.close()
        found = records(self._home)
        for record in found:
            if self._epoch is not None and record.epoch > self._epoch:
                raise LostLeadership(f"{record.node} is led by epoch {record.epoch}, not {self._epoch}")
        for record in found:
            processes.kill(record.process, signal.SIGTERM)
        await asyncio.to_thread(self._end_all, [record.process for record in found], [record.node for record in found])

    def _end_all(self, managers: Sequence[processes.Process], nodes: Sequence[str]) -> None:
        processes.wait_gone(lambda: not any(map(processes.alive, managers)), _END_S)
        for node in nodes:
            fence(self._home, node, self._epoch)
        host_client.end_host(self._home)
        for record in records(self._home):  # nodes that were being started meanwhile
            fence(self._home, record.node, self._epoch)
        with contextlib.suppress(OSError):
            remove(self._home.memory)
        for pattern in ("*.sock", "*.lock"):
            for path in self._home.run.glob(pattern):
                path.unlink(missing_ok=True)
        for folder in (self._home.gangs, self._home.etc):
            shutil.rmtree(folder, ignore_errors=True)

    # ------------------------------------------------------------ inventory, events, logs

    async def inventory(self) -> Inventory:
        self._note_isolation()
        return Inventory([_node(supervisor) for supervisor in self._supervisors.values()])

    def facts(self) -> Mapping[str, Any]:
        return {name: _facts(supervisor) for name, supervisor in self._supervisors.items()}

    async def events(self) -> AsyncIterator[BackendEvent]:
        """All events from open() to close()."""
        while (event := await self._events.get()) is not None:
            yield event

    async def logs(
        self, job: str, after: LogCursor, limit_bytes: int = 1 << 20, worker: str | None = None
    ) -> list[LogChunk]:
        return await asyncio.to_thread(read_logs, self._home.job(job), after, limit_bytes, worker)

    async def last_lines(
        self, job: str, lines: int, after: LogCursor, worker: str | None = None, *, whole: bool
    ) -> tuple[LogCursor, LogCursor]:
        return await asyncio.to_thread(last_lines, self._home.job(job), lines, after, worker, whole=whole)

    # ------------------------------------------------------------ gangs

    async def start(self, gang: Gang, order: LaunchOrder, within_s: float) -> NotStarted | None:
        """Start the members on all nodes at once; retry nodes without room until the time is over."""
        deadline_s = time.monotonic() + within_s
        orders = self._orders(gang, order)
        while True:
            answers = await asyncio.gather(
                *(self._start_on_node(node, body) for node, body in orders.items()), return_exceptions=True
            )
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
            refused = {node: why for node, why in zip(orders, answers, strict=True) if isinstance(why, str)}
            if not refused:
                return None
            if time.monotonic() + _TRY_AGAIN_S > deadline_s:
                node, why = next(iter(refused.items()))
                return NotStarted(gang.job, gang.generation, f"{node}: {why}", node)
            orders = {node: orders[node] for node in refused}
            await asyncio.sleep(_TRY_AGAIN_S)

    def _orders(self, gang: Gang, order: LaunchOrder) -> dict[str, wire.Start]:
        """The Start command of each node."""
        devices: dict[str, dict[str, int]] = {}
        for member in gang.members:
            devices.setdefault(member.node, {})[member.worker] = member.device
        keys = wire.GridKeys()
        if self._derive is not None and order.worker.grid_bytes:
            keys = wire.GridKeys(self._derive("grid", order.worker.tenant), self._derive("grid peers"))
        environment = {worker: dict(variables) for worker, variables in order.environment.items()}
        secrets, demand = wire.Secrets(dict(order.secrets)), dict(gang.demand)
        return {
            node: wire.Start(
                gang.job, gang.generation, workers, demand, order.worker,
                {worker: environment[worker] for worker in workers if worker in environment}, secrets, keys,
            )
            for node, workers in devices.items()
        }  # fmt: skip

    async def _start_on_node(self, node: str, body: wire.Start) -> str | None:
        """Start a node's part of the gang; returns why the node refuses, or None."""
        try:
            reply = await self._ask(node, body, required=True)
        except NodeRefused as error:
            return error.message
        return None if reply else "the node is lost"

    async def tell(self, job: str, workers: Mapping[str, str], message: wire.ToWorker) -> None:
        def tell_order(node: str, names: list[str]) -> wire.Tell:
            return wire.Tell(job, names, self._for_protocol(node, job, message))

        await self._command_nodes(_grouped(workers), tell_order)

    def _for_protocol(self, node: str, job: str, message: wire.ToWorker) -> wire.ToWorker:
        """The message for this node's protocol: before version 6 the leader named the rendezvous file."""
        status = self._supervisor(node).status
        if not isinstance(message, wire.Join) or status is None or status.protocol >= 6:
            return message
        return placed_join(message, self._home.job(job))

    async def stop(self, job: str, workers: Mapping[str, str], grace_s: float) -> None:
        await self._command_nodes(_grouped(workers), lambda _, names: wire.Stop(job, names, grace_s))

    async def release(self, job: str, workers: Mapping[str, str], *, forget_memory: bool = False) -> None:
        await self._command_nodes(_grouped(workers), lambda _, names: wire.Release(job, names, forget_memory))

    async def forget(self, job: str, node: str) -> None:
        await self._ask(node, wire.Release(job, [], forget_memory=True))

    async def discard(self, tenant: str, labels: Sequence[str], node: str) -> None:
        await self._ask(node, wire.Discard(tenant, list(labels)))

    def acknowledge(self, node: str, incarnation: str, sequence: int) -> None:
        supervisor = self._supervisors.get(node)
        if supervisor is None or supervisor.link is None or supervisor.status is None:
            return
        if supervisor.status.incarnation == incarnation:
            supervisor.link.post(wire.Acknowledge(sequence))

    async def node(self, name: str, action: NodeAction) -> None:
        supervisor = self._supervisor(name)
        match action:
            case NodeAction.START:
                supervisor.start()
            case NodeAction.WAKE:
                supervisor.wake()
            case NodeAction.SLEEP:
                await supervisor.sleep()
            case _:
                await supervisor.stop(stay_down=action is NodeAction.STOP)

    # ------------------------------------------------------------ requests to nodes

    def _supervisor(self, name: str) -> NodeSupervisor:
        try:
            return self._supervisors[name]
        except KeyError:
            known = ", ".join(self._supervisors) or "none"
            raise NotFound(f"no node {name}", field="node", value=name, fix=f"use one of: {known}") from None

    async def _ask(self, name: str, body: wire.ToNode, *, required: bool = False) -> wire.Reply | None:
        """The node's answer, or None when the node is lost; other failures are logged, or raised if ``required``."""
        supervisor = self._supervisor(name)
        if isinstance(supervisor.failure, LostLeadership):
            raise supervisor.failure
        if supervisor.link is None and not (required and supervisor.fencing):
            return None
        try:
            if supervisor.link is None:  # earlier commands may still take effect until its NodeLost
                raise NodeGone(f"{name} is being fenced")
            return await supervisor.link.request(body)
        except NodeGone as error:
            if required and (supervisor.link is not None or supervisor.fencing):
                raise  # the caller repeats it until the node is back or its NodeLost is processed
            log.warning("%s: %s", name, error)
            return None
        except NodeRefused as error:
            if required:
                raise
            log.error("%s: %s", name, error)
            return None

    async def _command_nodes(
        self, workers: Mapping[str, list[str]], body: Callable[[str, list[str]], wire.ToNode]
    ) -> None:
        """Send a command to every node; raises when a node that is not lost may have missed it."""
        answers = await asyncio.gather(
            *(self._ask(node, body(node, names), required=True) for node, names in workers.items()),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("a node supervisor failed", exc_info=error)


def _grouped(workers: Mapping[str, str]) -> dict[str, list[str]]:
    nodes: dict[str, list[str]] = {}
    for worker, node in workers.items():
        nodes.setdefault(node, []).append(worker)
    return nodes


def _node(supervisor: NodeSupervisor) -> Node:
    there = supervisor.link is not None or supervisor.asleep
    node = supervisor.shape.node(NodeState.READY if there else NodeState.LOST)
    return dataclasses.replace(node, outdated=supervisor.outdated, asleep=supervisor.asleep, wake_s=supervisor.wake_s)


def _facts(supervisor: NodeSupervisor) -> dict[str, Any]:
    status, telemetry = supervisor.status, supervisor.telemetry
    if status is None:
        last = {"isolation": supervisor.isolation} if supervisor.isolation else {}  # the last known level
        return {"state": "waking" if supervisor.waking else "asleep" if supervisor.asleep else "lost", **last}
    load = {"cpu_fraction": telemetry.cpu_fraction, "memory_bytes": telemetry.memory_bytes} if telemetry else {}
    return {
        "state": "ready",
        "incarnation": status.incarnation,
        "isolation": supervisor.isolation,
        "warm": telemetry.warm if telemetry else status.warm,
        **load,
    }
