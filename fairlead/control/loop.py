"""The reconcile loop: takes in what happened, decides, and mends the difference between what should be and what is."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile

import structlog
from sqlalchemy import Connection
from structlog.contextvars import bind_contextvars

from fairlead import wire
from fairlead.backends.protocol import Backend, BackendEvent, NodeJoined, NodeLost, NodeTelemetry, WorkerEvent
from fairlead.cluster import Node, NodeState
from fairlead.control import tracing
from fairlead.control.carry_out import CarryOut, Gangs, no_secrets
from fairlead.control.deciding import Outlook, apply_round, read_state
from fairlead.control.failpoints import failpoint
from fairlead.control.gangs import GangView, WorkerFact, contradiction, next_action
from fairlead.control.ledger import meter, meterable
from fairlead.control.metrics import live
from fairlead.control.metrics.workers import WorkerMeter
from fairlead.control.observe import fact_after, store_events
from fairlead.control.records import ENDED, Generation, Job, JobPhase
from fairlead.control.store import events, generations, jobs, nodes
from fairlead.control.store.engine import Store
from fairlead.control.store.patience import outlast
from fairlead.errors import FairleadError, LostLeadership
from fairlead.scheduling.decide import decide
from fairlead.scheduling.state import Hold

log = structlog.get_logger()

TICK_S = 1.0  # how often time itself is a reason to look again while jobs are on their way
IDLE_S = 10.0  # ... and while there are none
ROUND_EVERY_S = 3.0  # waiting and growing depend on time, so rounds are held even when nothing happens
IDLE_SPACING = 200.0  # ... but with a deep queue not so often that time alone eats more than half a percent of a core
ROUND_AT_LEAST_S = 15.0
BATCH_S = 0.1  # progress reports are gathered for so long; everything else is taken in at once
METER_S = 15.0  # a line of the ledger per generation and node so often; after a crash the next one closes the gap
ROUND_SPACING = 4.0  # pause between rounds, in lengths of the last one: a deep queue must not eat the core
VALIDATE = bool(os.environ.get("FAIRLEAD_VALIDATE"))  # set by the crash tests
ACTIONS_AT_ONCE = 32  # for one job, before others get their turn


class Controller:
    """Leads the platform: the only one who decides and commands."""

    def __init__(
        self,
        store: Store,
        backend: Backend,
        order_for: Callable[[Connection, Job], wire.WorkerSpec],
        clock: Callable[[], float] = time.time,
        secrets_for: Callable[[Connection, Job], Mapping[str, str]] = no_secrets,
    ) -> None:
        self.store = store
        self.backend = backend
        self.clock = clock
        self.outlook = Outlook({}, {})
        self.telemetry: dict[str, wire.Telemetry] = {}
        self.meter = WorkerMeter()
        self.known = Gangs({}, {}, {})
        self._nodes: dict[str, Node] = {}
        self._joined: dict[str, NodeJoined] = {}
        self._lost: set[str] = set()
        self._seen: dict[tuple[str, str], int] = {}
        self._inbox: asyncio.Queue[BackendEvent] = asyncio.Queue()
        self._nudged = asyncio.Event()
        self._round_due = True
        self._unfinished = False  # the last round decided something that could not be stored yet
        self._paused = False
        self._unanswered = False
        self._advancing: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._metered_s = 0.0
        self._round_cost_s = 0.0
        self._news = asyncio.Event()
        self._fatal: asyncio.Future[None] | None = None
        self._carry_out = CarryOut(store, backend, self.known, order_for, lambda: self._nodes, clock, secrets_for)

    # ------------------------------------------------------------ doors

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes with their present state."""
        return self._nodes

    @property
    def reachable(self) -> frozenset[str]:
        """Nodes on which workers can be started now."""
        return frozenset(name for name in self._joined if name not in self._nodes or not self._nodes[name].outdated)

    def nudge(self, job: str | None = None) -> None:
        """Something was written that asks for a decision, or for a look at this job."""
        if job is not None:
            self._again.add(job)
        self._round_due = True
        self._nudged.set()

    def pause(self) -> None:
        """Hold no more rounds: the platform is ending."""
        self._paused = True

    def publish(self) -> None:
        """Wake those who follow events."""
        self._news.set()
        self._news = asyncio.Event()

    async def news(self, timeout_s: float) -> None:
        """Returns when something new may be in the store, or after the timeout."""
        waiting = self._news
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):  # not wait_for: it may miss being cancelled
                await waiting.wait()

    # ------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Reconcile until cancelled; raises LostLeadership when another control plane leads."""
        self._fatal = asyncio.get_running_loop().create_future()
        self._seen = await outlast(lambda: self.store.read(nodes.cursors), "cursors")
        await outlast(self.refresh, "nodes")
        pump = asyncio.create_task(self._pump())
        loop = asyncio.create_task(self._reconcile_forever())
        try:
            done, _ = await asyncio.wait({pump, loop, self._fatal}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            running = [pump, loop, *self._advancing.values()]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _pump(self) -> None:
        async for event in self.backend.events():
            if isinstance(event, NodeTelemetry):  # of every node about once a second: no reason to look at anything
                self.telemetry[event.node] = event.body
                self.known.observe(event.body)
                self.meter.take(event.node, event.body)
                continue
            self._inbox.put_nowait(event)
            self._nudged.set()

    async def _reconcile_forever(self) -> None:
        while True:
            batch = await self._next_batch()
            await outlast(partial(self._reconcile, batch), "reconciling")

    async def _reconcile(self, batch: list[BackendEvent]) -> None:
        """One pass. Done again from where it stopped when the store did not answer on the way."""
        await self._absorb(batch)
        live = await self.store.read(jobs.on_their_way)
        if self._round_due and not self._paused:
            with tracing.round():
                await self._round()
        if self.clock() - self._metered_s >= METER_S:
            await self._meter(live)
        for job in sorted({*live, *self._again} - self._advancing.keys()):
            self._advance_soon(job)
        self._again &= self._advancing.keys()  # those come again when what they are at is done
        self.publish()

    async def _next_batch(self) -> list[BackendEvent]:
        """Wait for something to do; progress alone may wait a little for company."""
        waiting = bool(self.outlook.holds) or bool(self.known.cooling_until_s) or self._unfinished
        busy = bool(self.known.workers) or waiting or self._round_due
        if not self._nudged.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S if busy else IDLE_S):
                    await self._nudged.wait()
        every_s = min(ROUND_AT_LEAST_S, max(ROUND_EVERY_S, IDLE_SPACING * self._round_cost_s))
        self._round_due = self._round_due or (busy and self.clock() - self.outlook.decided_s > every_s)
        batch = self._drain()
        if batch and all(_can_wait(event) for event in batch):
            await asyncio.sleep(BATCH_S)
            batch += self._drain()
        elif not batch and self._round_cost_s:
            await asyncio.sleep(min(0.5, ROUND_SPACING * self._round_cost_s))
            batch = self._drain()
        return batch

    def _drain(self) -> list[BackendEvent]:
        self._nudged.clear()
        batch = []
        while not self._inbox.empty():
            batch.append(self._inbox.get_nowait())
        return batch

    # ------------------------------------------------------------ taking in

    async def _absorb(self, batch: list[BackendEvent]) -> None:
        """Consequences into the store, facts into memory, then the acknowledgement; what is done leaves the batch."""
        while batch:
            first = batch[0]
            if isinstance(first, NodeJoined | NodeLost):
                await self._node_changed(first)
                del batch[0]
            else:
                said = list(takewhile(lambda event: not isinstance(event, NodeJoined | NodeLost), batch))
                await self._store_worker_events([event for event in said if isinstance(event, WorkerEvent)])
                del batch[: len(said)]

    async def _store_worker_events(self, batch: list[WorkerEvent]) -> None:
        fresh = [e for e in batch if e.sequence > self._seen.get((e.node, e.incarnation), 0)]
        if fresh:
            now_s = self.clock()
            again, self._unanswered = self._unanswered, True  # until it is known whether they are stored

            def work(connection: Connection) -> set[str]:
                stored = nodes.cursors(connection) if again else {}
                unstored = [e for e in fresh if e.sequence > stored.get((e.node, e.incarnation), 0)]
                return store_events(connection, unstored, now_s)

            await self.store.write(work)
            self._unanswered = False
            failpoint("events-stored")
            for event in fresh:
                self._seen[event.node, event.incarnation] = event.sequence
                self._take_fact(event)
            self._again |= {event.job for event in fresh}
            self._round_due = self._round_due or not all(_can_wait(event) for event in fresh)
        for node, incarnation in {(event.node, event.incarnation) for event in batch}:
            await self.backend.acknowledge(node, incarnation, self._seen.get((node, incarnation), 0))

    def _take_fact(self, event: WorkerEvent) -> None:
        joined = self._joined.get(event.node)
        reflected = joined and joined.incarnation == event.incarnation and event.sequence <= joined.sequence
        if reflected and not isinstance(event.body, wire.Finished):  # of a worker that is gone, only this says how
            return  # the phases that the node reported when it joined already include this
        known = self.known.workers.get(event.job, {})
        if event.worker in known:
            known[event.worker] = fact_after(known[event.worker], event.body)

    async def _node_changed(self, event: NodeJoined | NodeLost) -> None:
        self._round_due = True
        if isinstance(event, NodeJoined):
            self._joined[event.node] = event
            self._lost.discard(event.node)
            await self._adopt(event)
            kind, text = "node-joined", f"{event.node} joined"
        else:
            self._joined.pop(event.node, None)
            self._lost.add(event.node)
            self.telemetry.pop(event.node, None)
            for workers in self.known.workers.values():
                for worker, fact in workers.items():
                    if fact.node == event.node:
                        workers[worker] = replace(fact, exited=True)
            kind, text = "node-lost", f"{event.node} is lost: {event.why}"
        await self.refresh()
        now_s = self.clock()
        await self.store.write(lambda c: events.append(c, time_s=now_s, kind=kind, text=text, node=event.node))

    async def _adopt(self, event: NodeJoined) -> None:
        """Take over what runs on the node and belongs to a job on its way; end what does not."""
        live = await self.store.read(lambda connection: generations.current(connection, {s.job for s in event.workers}))
        strays: dict[str, dict[str, str]] = {}
        for status in event.workers:
            wanted = {m.worker for generation in live.get(status.job, []) for m in generation.members}
            if status.worker in wanted:
                gone = status.phase == "gone"
                phase = "left" if gone else status.phase
                fact = WorkerFact(event.node, phase, status.generation, status.device, exited=gone)
                self.known.of(status.job)[status.worker] = fact
                self.known.cpu.adopt(status.job, status.worker)
            else:
                strays.setdefault(status.job, {})[status.worker] = event.node
        for job, workers in strays.items():
            log.info("ending workers that no job needs any more", job=job, workers=sorted(workers))
            try:
                await self.backend.release(job, workers, forget_memory=True)
            except LostLeadership:
                raise
            except FairleadError as error:  # it ends with its node, or when that joins again
                log.warning("strays could not be ended", job=job, error=str(error))

    async def refresh(self) -> None:
        """Read the nodes anew, with what an admin wants of them."""
        states = await self.store.read(nodes.states)
        inventory = await self.backend.inventory()
        fresh = {}
        for node in inventory.nodes:
            state = states.get(node.name, NodeState.READY) if node.name in self._joined else NodeState.LOST
            fresh[node.name] = replace(node, state=state)
        self._nodes = fresh  # exchanged whole: threads of the store read it, too

    # ------------------------------------------------------------ deciding

    async def _round(self) -> None:
        self._round_due = False  # before anything is read: what is written from here on asks for another round
        await self.refresh()
        started_s = time.monotonic()
        now_s = self.clock()
        before = self.outlook
        state = await read_state(self.store, now_s, self._nodes, self.known, self._undecided(), before.memory)
        decided = decide(state.cluster)
        keep = before.forgets_less(decided, now_s)
        changed = await self.store.write(lambda connection: apply_round(connection, state, decided, remember=keep))
        if changed:
            failpoint("round-stored")
        holds = {decision.job: decision for decision in decided.decisions if isinstance(decision, Hold)}
        self.outlook = Outlook(holds, decided.entitlements, now_s, decided.memory, now_s if keep else before.stored_s)
        self._unfinished = any(not isinstance(d, Hold) and d.job not in changed for d in decided.decisions)
        self._again |= changed
        self._round_cost_s = time.monotonic() - started_s
        live.round_held(self._round_cost_s, bool(changed), decided.decisions)
        tracing.decided(decided.decisions, changed, now_s)

    def _undecided(self) -> frozenset[str]:
        """Nodes of which it is not known yet whether they live: jobs with workers there are left alone."""
        return frozenset(self._nodes) - self._joined.keys() - self._lost

    async def _meter(self, live: list[str]) -> None:
        now_s = self.clock()
        self._metered_s = now_s
        nodes_now = dict(self._nodes)

        pairs = await self.store.read(partial(meterable, live=set(live))) if live else []
        cpu_s = {job.id: self.known.cpu.take(generation) for job, generation in pairs}

        def work(connection: Connection) -> bool:
            fresh = [pair for pair in meterable(connection, set(live)) if pair[0].id in cpu_s]
            meter(connection, fresh, nodes_now, now_s, cpu_s)
            return bool(fresh)

        metered = bool(pairs) and await self.store.write(work)
        if metered:
            failpoint("metered")

    # ------------------------------------------------------------ carrying out

    def _advance_soon(self, job: str) -> None:
        """One task per job at a time, so that a slow node holds up nobody else."""
        self._again.discard(job)
        task = asyncio.create_task(self._advance(job))
        self._advancing[job] = task
        task.add_done_callback(lambda done: self._advanced(job, done))

    def _advanced(self, job: str, task: asyncio.Task[None]) -> None:
        self._advancing.pop(job, None)
        if job in self._again:
            self._nudged.set()
        if task.cancelled() or self._fatal is None or self._fatal.done():
            return
        error = task.exception()
        if isinstance(error, FairleadError) and not isinstance(error, LostLeadership):
            log.warning("the next step for a gang failed; it will be tried again", job=job, error=str(error))
            self._again.add(job)  # at the next tick; a job that has ended would not be looked at otherwise
        elif error is not None:
            self._fatal.set_exception(error)

    async def _advance(self, job: str) -> None:
        for _ in range(ACTIONS_AT_ONCE):
            view = await self._view(job)
            if view is None or self._touches(view, self._undecided()):
                return
            bind_contextvars(job=job, tenant=view.job.tenant, generation=view.job.generation)
            if VALIDATE:
                wrong = contradiction(view)
                if wrong is not None:
                    log.error("contradiction", what=wrong)
            action = next_action(view)
            if action is None:
                return
            log.debug("carry out", job=job, action=type(action).__name__)
            await self._carry_out.do(action, view)
            self.nudge(job)
            self.publish()

    async def _view(self, job_id: str) -> GangView | None:
        def work(connection: Connection) -> tuple[Job | None, list[Generation]]:
            return jobs.get(connection, job_id), generations.current(connection, {job_id}).get(job_id, [])

        job, live = await self.store.read(work)
        if job is None:
            return None
        if job.phase in ENDED and not self.known.workers.get(job_id):
            self.known.forget(job_id)
            return None
        if job.phase is JobPhase.QUEUED and not self.known.workers.get(job_id):
            self.known.told.pop(job_id, None)  # also when the answer to its last conclusion was lost
        told = frozenset(self.known.told.get(job_id, set()))
        return GangView(job, live, dict(self.known.of(job_id)), told, self.clock(), self.reachable)

    @staticmethod
    def _touches(view: GangView, undecided: frozenset[str]) -> bool:
        return any(m.node in undecided for generation in view.generations for m in generation.members)


def _can_wait(event: BackendEvent) -> bool:
    return isinstance(event, WorkerEvent) and isinstance(event.body, wire.Progress | wire.Snapshot)
