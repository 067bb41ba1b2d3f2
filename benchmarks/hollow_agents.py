"""Nodes without machines: a backend whose workers train by saying so, cheap enough to drive thousands of gangs."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from fairlead import wire
from fairlead.agent.protocol import (
    BackendEvent,
    Capabilities,
    Inventory,
    LaunchOrder,
    LogChunk,
    LogCursor,
    NodeAction,
    NodeJoined,
    NodeTelemetry,
    NotStarted,
    WorkerEvent,
)
from fairlead.cluster import DEVICE, Gang, Node

DEVICES = 8  # of each node
BEAT_S = 0.05
STEPS_TOLD = 10  # steps in one report of rank 0
STEP_S = 1.0
BATCH = 64
COMMAND_S = 0.01  # a command takes so long
LASTS = 10_000_000  # steps: longer than anybody measures
TELEMETRY_S = 1.0

_decode = msgspec.msgpack.Decoder(wire.Event).decode
_encode = msgspec.msgpack.Encoder().encode


@dataclass(slots=True)
class HollowWorker:
    """One worker: where it sits, its rank, and how far it has come."""

    job: str
    worker: str
    node: str
    device: int
    generation: int = 0
    rank: int = 0
    phase: str = "starting"
    step: int = 0
    cpu_s: float = 0.0


class HollowAgents:
    """As many nodes as asked for. Events travel packed, as they do on a line, and the receiver unpacks them.

    ``own_cpu_s`` is the CPU time that the agents spent themselves: whoever measures the controller subtracts it.
    """

    capabilities = Capabilities("hollow", "sandbox", 0.0)

    def __init__(self, nodes: int, every_s: float = 10.0, clock: Callable[[], float] = time.time) -> None:
        self._clock, self._every_s = clock, every_s
        self._incarnation = uuid.uuid4().hex[:12]
        capacity = {"cpu": 64.0, "memory": 256e9, DEVICE: float(DEVICES)}
        self._nodes = {name: Node(name, capacity) for name in (f"node-{at:04}" for at in range(nodes))}
        self._on: dict[str, dict[tuple[str, str], HollowWorker]] = {name: {} for name in self._nodes}
        self._alive: dict[tuple[str, str], HollowWorker] = {}
        self._slots: list[dict[tuple[str, str], None]] = [{} for _ in range(round(every_s / BEAT_S))]
        self._sequences = dict.fromkeys(self._nodes, 0)
        self._packed: asyncio.Queue[BackendEvent | tuple[str, bytes]] = asyncio.Queue()
        self._beating: asyncio.Task[None] | None = None
        self.own_cpu_s = 0.0
        self.told = 0  # events of workers so far
        self._unheard: dict[str, deque[tuple[int, float]]] = {name: deque() for name in self._nodes}
        self.waited_s: list[float] = []  # of each event that was acknowledged

    # ------------------------------------------------------------ life

    def adopt(self, job: str, generation: int, seats: Sequence[tuple[str, str, int]], step: int) -> None:
        """Have workers (id, node, device; rank 0 first) that were started under an earlier leader."""
        for rank, (worker, node, device) in enumerate(seats):
            self._add(HollowWorker(job, worker, node, device, generation, rank, "joined", step))

    def _add(self, worker: HollowWorker) -> None:
        key = worker.job, worker.worker
        self._alive[key] = self._on[worker.node][key] = worker
        self._slots[hash(key) % len(self._slots)][key] = None

    def _remove(self, key: tuple[str, str]) -> None:
        worker = self._alive.pop(key)
        del self._on[worker.node][key]
        del self._slots[hash(key) % len(self._slots)][key]

    async def open(self, epoch: int) -> None:
        """Say which nodes there are, and begin to beat."""
        for name in self._nodes:
            on = self._on[name].values()
            there = [wire.WorkerStatus(w.job, w.worker, w.device, w.generation, w.phase) for w in on]
            self._packed.put_nowait(NodeJoined(name, self._incarnation, there))
        self._beating = asyncio.create_task(self._beat())

    async def close(self) -> None:
        if self._beating is not None:
            self._beating.cancel()

    @contextmanager
    def _own(self) -> Iterator[None]:
        begun_s = time.thread_time()
        try:
            yield
        finally:
            self.own_cpu_s += time.thread_time() - begun_s

    async def _beat(self) -> None:
        """Every worker reports once in ``every_s``, every node tells its use once a second."""
        nodes, slot = list(self._nodes), 0
        per_beat = len(nodes) * BEAT_S / TELEMETRY_S
        next_s, telling = time.monotonic(), 0.0
        while True:
            with self._own():
                for key in list(self._slots[slot]):
                    self._report(self._alive[key])
                telling += per_beat
                while telling >= 1.0:
                    telling -= 1.0
                    nodes.append(name := nodes.pop(0))
                    self._tell_use(name)
                slot = (slot + 1) % len(self._slots)
            next_s = max(next_s + BEAT_S, time.monotonic() - 1.0)
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))

    def _report(self, worker: HollowWorker) -> None:
        if worker.phase != "joined":
            return
        now_s = self._clock()
        first, worker.step = worker.step + 1, worker.step + STEPS_TOLD
        worker.cpu_s += self._every_s
        rows = [
            {"step": float(at), "time_s": now_s - STEP_S * (worker.step - at), "loss": 1.0 / at}
            for at in range(first, worker.step + 1)
        ] if worker.rank == 0 else []  # fmt: skip
        self.say(worker, wire.Progress(
            worker.generation, worker.step, LASTS, 0, BATCH / STEP_S, STEP_S, rows, 0.9 * STEP_S, 0.01, 0.5,
        ))  # fmt: skip

    def _tell_use(self, node: str) -> None:
        used = [wire.WorkerUsage(w.job, w.worker, w.cpu_s, 1 << 30, 1 << 20) for w in self._on[node].values()]
        event = wire.Event(0, self._clock(), wire.Telemetry(0.5, 64 << 30, used, warm=True))
        self._packed.put_nowait((node, _encode(event)))

    def say(self, worker: HollowWorker, body: wire.FromWorker | wire.Exited) -> None:
        """Put this worker's words on the line."""
        self._sequences[worker.node] += 1
        event = wire.Event(self._sequences[worker.node], self._clock(), body, worker.job, worker.worker)
        self.told += 1
        self._unheard[worker.node].append((event.sequence, time.monotonic()))
        self._packed.put_nowait((worker.node, _encode(event)))

    def finish(self, job: str) -> None:
        """Have all workers of this job end well."""
        with self._own():
            for worker in [worker for (of_job, _), worker in self._alive.items() if of_job == job]:
                self._finish(worker)

    def _finish(self, worker: HollowWorker) -> None:
        self.say(worker, wire.Finished(worker.generation, worker.step))
        self.say(worker, wire.Exited(0))
        self._remove((worker.job, worker.worker))

    # ------------------------------------------------------------ what the controller asks

    async def events(self) -> AsyncIterator[BackendEvent]:
        while True:
            one = await self._packed.get()
            if not isinstance(one, tuple):
                yield one
                continue
            node, event = one[0], _decode(one[1])
            if isinstance(event.body, wire.Telemetry):
                yield NodeTelemetry(node, event.body)
            else:
                yield WorkerEvent(
                    node, self._incarnation, event.sequence, event.time_s, event.job, event.worker, event.body
                )

    async def inventory(self) -> Inventory:
        return Inventory(list(self._nodes.values()))

    async def start(self, gang: Gang, order: LaunchOrder, within_s: float) -> NotStarted | None:
        with self._own():
            for member in gang.members:
                if (gang.job, member.worker) not in self._alive:
                    command = order.worker.command is not None
                    worker = HollowWorker(gang.job, member.worker, member.node, member.device, rank=member.rank)
                    self._add(worker)
                    self.say(worker, wire.Ready() if command else wire.Ready(LASTS, 1, BATCH, parameters=10))
                    if command:
                        asyncio.get_running_loop().call_later(COMMAND_S, self.finish, gang.job)
        return None

    async def tell(self, job: str, workers: Mapping[str, str], message: wire.ToWorker) -> None:
        with self._own():
            for name in workers:
                worker = self._alive.get((job, name))
                if worker is None:
                    continue
                if isinstance(message, wire.Join):
                    worker.generation, worker.phase = message.generation, "joined"
                    worker.rank = message.ranks.get(name, 0)
                    self.say(worker, wire.Joined(message.generation, worker.step))
                elif isinstance(message, wire.Leave):
                    worker.phase = "left"
                    self.say(worker, wire.Left(message.generation, worker.step))

    async def stop(self, job: str, workers: Mapping[str, str], grace_s: float) -> None:
        await self.release(job, workers)

    async def release(self, job: str, workers: Mapping[str, str], *, forget_memory: bool = False) -> None:
        with self._own():
            for name in workers:
                worker = self._alive.get((job, name))
                if worker is not None:
                    self.say(worker, wire.Exited(None, signal=15, cause="stopped"))
                    self._remove((job, name))

    async def forget(self, job: str, node: str) -> None: ...
    async def discard(self, tenant: str, labels: Sequence[str], node: str) -> None: ...
    async def node(self, name: str, action: NodeAction) -> None: ...

    def acknowledge(self, node: str, incarnation: str, sequence: int) -> None:
        """Note how long what is stored now has waited."""
        unheard, now_s = self._unheard[node], time.monotonic()
        while unheard and unheard[0][0] <= sequence:
            self.waited_s.append(now_s - unheard.popleft()[1])

    async def logs(
        self, job: str, after: LogCursor, limit_bytes: int = 1 << 20, worker: str | None = None
    ) -> list[LogChunk]:
        return []

    async def last_lines(
        self, job: str, lines: int, after: LogCursor, worker: str | None = None, *, whole: bool
    ) -> tuple[LogCursor, LogCursor]:
        return {}, {}

    def facts(self) -> Mapping[str, Any]:
        return {}
