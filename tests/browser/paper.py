"""A backend of paper: nodes that exist in memory only, and workers that train by arithmetic. The rest is the product's.

It gives the page what two hundred machines would give it, on a machine that could not run them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

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
)  # fmt: skip
from fairlead.cluster import DEVICE, Gang, Node

DEVICES, STEPS, BATCH = 2, 2000, 64
EVERY_S = 2.0  # each gang says so often how far it is


class PaperBackend:
    """Does at once and without fail what it is told."""

    capabilities = Capabilities("paper", "sandbox", 0.0)

    def __init__(self, count: int) -> None:
        capacity = {"cpu": 8.0, "memory": 64e9, DEVICE: float(DEVICES)}
        self._nodes = {f"node-{place}": Node(f"node-{place}", capacity) for place in range(count)}
        self._events: asyncio.Queue[BackendEvent | None] = asyncio.Queue()
        self._sequence = 0
        self._started: set[tuple[str, str]] = set()
        self._training: dict[str, tuple[Mapping[str, str], int, int]] = {}  # job -> workers, generation, step
        self._clock: asyncio.Task[None] | None = None

    async def open(self, epoch: int) -> None:
        for name in self._nodes:
            self._events.put_nowait(NodeJoined(name, "paper", []))
        self._clock = asyncio.create_task(self._tick())

    async def close(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
        self._events.put_nowait(None)

    async def shutdown(self) -> None:
        self._training.clear()

    async def inventory(self) -> Inventory:
        return Inventory(list(self._nodes.values()))

    async def start(self, gang: Gang, order: LaunchOrder, within_s: float) -> NotStarted | None:
        for member in gang.members:
            if (gang.job, member.worker) not in self._started:
                self._started.add((gang.job, member.worker))
                self._say(gang.job, member.worker, member.node, wire.Ready(BATCH * 100, STEPS // 100, BATCH))
        return None

    async def tell(self, job: str, workers: Mapping[str, str], message: wire.ToWorker) -> None:
        step = self._training.get(job, ({}, 0, 0))[2]
        for worker, node in workers.items():
            if isinstance(message, wire.Join):
                self._training[job] = workers, message.generation, step
                self._say(job, worker, node, wire.Joined(message.generation, step))
            elif isinstance(message, wire.Leave):
                self._say(job, worker, node, wire.Left(message.generation, step))
                if worker in message.exits:
                    self._say(job, worker, node, wire.Exited(0))

    async def stop(self, job: str, workers: Mapping[str, str], grace_s: float) -> None:
        self._training.pop(job, None)
        for worker, node in workers.items():
            self._say(job, worker, node, wire.Exited(None, signal=15, cause="stopped"))

    async def forget(self, job: str, node: str) -> None: ...

    async def discard(self, tenant: str, labels: Sequence[str], node: str) -> None: ...

    async def release(self, job: str, workers: Mapping[str, str], *, forget_memory: bool = False) -> None:
        return

    def acknowledge(self, node: str, incarnation: str, sequence: int) -> None:
        return

    async def node(self, name: str, action: NodeAction) -> None:
        return

    async def events(self) -> AsyncIterator[BackendEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    async def logs(
        self, job: str, after: LogCursor, limit_bytes: int = 1 << 20, worker: str | None = None
    ) -> list[LogChunk]:
        return []

    async def last_lines(
        self, job: str, lines: int, after: LogCursor, worker: str | None = None, *, whole: bool
    ) -> tuple[LogCursor, LogCursor]:
        return {}, {}

    def facts(self) -> Mapping[str, Any]:
        return {name: {"isolation": "sandbox", "warm": True} for name in self._nodes}

    def _say(self, job: str, worker: str, node: str, body: wire.FromWorker | wire.Exited) -> None:
        self._sequence += 1
        self._events.put_nowait(WorkerEvent(node, "paper", self._sequence, time.time(), job, worker, body))

    async def _tick(self) -> None:
        """All nodes and gangs in turn, spread over the interval as real ones would be."""
        while True:
            turns = [*self._nodes, *self._training.items()]
            for place, turn in enumerate(turns):
                if isinstance(turn, str):
                    busy = 0.5 + 0.5 * math.sin(time.time() / 7 + hash(turn) % 10)
                    self._events.put_nowait(NodeTelemetry(turn, wire.Telemetry(round(busy, 3), int(busy * 60e9))))
                elif turn[0] in self._training:
                    self._step(turn[0])
                if place % 10 == 9:
                    await asyncio.sleep(EVERY_S * 10 / len(turns))
            await asyncio.sleep(0.05)

    def _step(self, job: str) -> None:
        workers, generation, step = self._training[job]
        step = min(step + 20, STEPS - 1)
        self._training[job] = workers, generation, step
        rows = [{"step": float(step), "time_s": time.time(), "loss": 3.0 * math.exp(-step / 500)}]
        progress = wire.Progress(generation, step, STEPS, step // 100, BATCH * 2.5, 0.4, rows)
        first, node = next(iter(workers.items()))
        self._say(job, first, node, progress)
