"""The real store and controller over nodes and workers that say what a test has them say, by a clock that hurries."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import pytest
from sqlalchemy import Connection
from structlog.testing import capture_logs

from fairlead import framing, wire
from fairlead.agent.protocol import (
    BackendEvent,
    Capabilities,
    Inventory,
    LaunchOrder,
    LogChunk,
    LogCursor,
    NodeAction,
    NodeJoined,
    NodeLost,
    NotStarted,
    WorkerEvent,
)  # fmt: skip
from fairlead.cluster import DEVICE, Gang, Node
from fairlead.control.plans.planner_process import Planner
from fairlead.control.reconcile import loop, round_clock
from fairlead.control.reconcile.loop import Controller
from fairlead.control.records import ENDED, Job
from fairlead.control.store import jobs
from fairlead.control.store.engine import Store
from tests.control import made

Body = wire.FromWorker | wire.Exited
Says = Callable[[wire.ToWorker | None], Sequence[Body]]
"""What a worker says when it was started (None) or told something."""

HURRY = 40.0
WITHIN_S = 30.0


@contextmanager
def quick_loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The loop looks as often as its clock hurries, and draws no tracebacks for people."""
    for module, name in ((loop, "TICK_S"), (loop, "EVERY_S"), (round_clock, "EVERY_S"), (loop, "BATCH_S")):
        monkeypatch.setattr(module, name, 0.02)
    with capture_logs():
        yield


class Hurried:
    """A clock that goes so many times faster than the world's."""

    def __init__(self, start_s: float = 1.8e9) -> None:
        self._start_s, self._since_s = start_s, time.monotonic()

    def __call__(self) -> float:
        return self._start_s + HURRY * (time.monotonic() - self._since_s)


def honest(clock: Callable[[], float], steps: int = 3) -> Says:
    """Trains a few steps when it joins, and ends well."""

    def says(told: wire.ToWorker | None) -> Sequence[Body]:
        match told:
            case None:
                return [wire.Ready(samples=10 * steps, epochs=1, batch_size=10, parameters=10)]
            case wire.Join(generation=number):
                rows = [{"step": float(at), "time_s": clock(), "loss": 1.0} for at in range(1, steps + 1)]
                return [wire.Joined(number, 0), wire.Progress(number, steps, steps, steps=rows),
                        wire.Finished(number, steps), wire.Exited(0)]  # fmt: skip
            case wire.Leave(generation=number):
                return [wire.Left(number, 0)]
            case _:
                return [wire.Exited(0)]

    return says


class PuppetBackend:
    """Nodes that hold whatever they are asked to, and workers that speak by a script."""

    capabilities = Capabilities("puppets", "sandbox", 0.0)

    def __init__(self, clock: Callable[[], float], count: int = 3) -> None:
        self._clock = clock
        self._incarnation = uuid.uuid4().hex
        capacity = {"cpu": 4.0, "memory": 16e9, DEVICE: 2.0}
        self._nodes = {f"node-{at}": Node(f"node-{at}", capacity) for at in range(count)}
        self._events: asyncio.Queue[BackendEvent] = asyncio.Queue()
        self._sequence = 0
        self._usual = honest(clock)
        self.scripts: dict[str, Says] = {}  # by job; the others are honest
        self._alive: dict[tuple[str, str], str] = {}  # job, worker -> node
        for name in self._nodes:
            self._events.put_nowait(NodeJoined(name, self._incarnation, []))

    async def open(self, epoch: int) -> None: ...
    async def close(self) -> None: ...
    async def forget(self, job: str, node: str) -> None: ...
    def acknowledge(self, node: str, incarnation: str, sequence: int) -> None: ...
    async def node(self, name: str, action: NodeAction) -> None: ...

    async def inventory(self) -> Inventory:
        return Inventory(list(self._nodes.values()))

    async def start(self, gang: Gang, order: LaunchOrder, within_s: float) -> NotStarted | None:
        framing.pack(wire.Start(gang.job, gang.generation, {}, {}, order.worker))  # as it would have to be sent
        for member in gang.members:
            if (gang.job, member.worker) not in self._alive:
                self._alive[gang.job, member.worker] = member.node
                self._speak(gang.job, member.worker, None)
        return None

    async def tell(self, job: str, workers: Mapping[str, str], message: wire.ToWorker) -> None:
        for worker in workers:
            self._speak(job, worker, message)

    async def stop(self, job: str, workers: Mapping[str, str], grace_s: float) -> None:
        for worker in workers:
            self.say(job, worker, wire.Exited(None, signal=15, cause="stopped"))

    async def release(self, job: str, workers: Mapping[str, str], *, forget_memory: bool = False) -> None:
        for worker in workers:
            self.say(job, worker, wire.Exited(None, signal=9, cause="stopped"))

    async def events(self) -> AsyncIterator[BackendEvent]:
        while True:
            yield await self._events.get()

    async def logs(
        self, job: str, after: LogCursor, limit_bytes: int = 1 << 20, worker: str | None = None
    ) -> list[LogChunk]:
        return []

    def facts(self) -> Mapping[str, Any]:
        return {}

    def lose(self, node: str) -> None:
        """All of this node is gone: nobody there says anything any more."""
        self._alive = {key: where for key, where in self._alive.items() if where != node}
        self._events.put_nowait(NodeLost(node, self._incarnation, "it was killed"))

    def join(self, node: str) -> None:
        """The node is back, with nobody on it."""
        self._events.put_nowait(NodeJoined(node, self._incarnation, []))

    def adopt(self, status: wire.WorkerStatus, node: str, pending: int = 0) -> None:
        """Before the leader begins: its node has this worker still, and so many events that it will tell him again."""
        waiting = [self._events.get_nowait() for _ in range(self._events.qsize())]
        for event in waiting:
            if isinstance(event, NodeJoined) and event.node == node:
                event = NodeJoined(node, self._incarnation, [*event.workers, status], event.sequence + pending)
            self._events.put_nowait(event)
        self._alive[status.job, status.worker] = node

    def where(self, job: str) -> dict[str, str]:
        """The workers of this job that live, and their nodes."""
        return {worker: node for (own, worker), node in self._alive.items() if own == job}

    def say(self, job: str, worker: str, body: Body) -> None:
        """Have a worker that is alive say this, as its node would hand it on."""
        node = self._alive.get((job, worker))
        if node is None:
            return
        if isinstance(body, wire.Exited):
            del self._alive[job, worker]
        self._sequence += 1
        sent = msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=wire.FromWorker | wire.Exited)
        self._events.put_nowait(WorkerEvent(node, self._incarnation, self._sequence, self._clock(), job, worker, sent))

    def _speak(self, job: str, worker: str, told: wire.ToWorker | None) -> None:
        for body in self.scripts.get(job, self._usual)(told):
            self.say(job, worker, body)


class Platform:
    """One leader over a store, until it is left; its backend is of its own."""

    def __init__(
        self, store: Store, clock: Callable[[], float], order: Any = made.worker_order, planner: Planner | None = None
    ) -> None:
        self.store, self.clock = store, clock
        self.backend = PuppetBackend(clock)
        self.controller = Controller(store, self.backend, order, clock, planner=planner)
        self._running: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Platform:
        self._running = asyncio.create_task(self.controller.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._running is not None
        self._running.cancel()
        with suppress(asyncio.CancelledError):
            await self._running

    async def submit(self, job: Job, script: Says | None = None, document: Mapping[str, Any] | None = None) -> str:
        if script is not None:
            self.backend.scripts[job.id] = script
        given = {"name": job.name, **(document or {})}

        def work(connection: Connection) -> None:
            jobs.insert(connection, job, given, {}, None, "d")

        await self.store.write(work)
        self.controller.nudge(job.id)
        return job.id

    async def ended(self, *names: str) -> list[Job]:
        """These jobs when they have ended; the leader must live on."""

        def found(connection: Connection) -> list[Job | None]:
            return [jobs.get(connection, name) for name in names]

        until_s = time.monotonic() + WITHIN_S
        while True:
            seen = [job for job in await self.store.read(found) if job is not None]
            if len(seen) == len(names) and all(job.phase in ENDED for job in seen):
                self.lives()
                return seen
            self.lives()
            if time.monotonic() > until_s:
                raise AssertionError(f"not ended: {[(job.id, job.phase, job.message) for job in seen]}")
            await self.controller.wait_for_news(0.05)

    def lives(self) -> None:
        assert self._running is not None
        if self._running.done():
            self._running.result()
            raise AssertionError("the leader ended")
