"""The reconcile loop: takes in events, decides, and repairs the difference between the wanted and the actual state."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile

import structlog
from sqlalchemy import Connection

from fairlead import wire
from fairlead.agent.protocol import Backend, BackendEvent, NodeChange, NodeTelemetry, WorkerEvent
from fairlead.cluster import Node
from fairlead.control.accounting.usage_meter import UsageMeter
from fairlead.control.observability import live_metrics as live
from fairlead.control.observability import tracing
from fairlead.control.observability.worker_metrics import WorkerMeter
from fairlead.control.plans.gang_plans import Calibrator, Plans
from fairlead.control.plans.planner_process import Planner
from fairlead.control.reconcile.failpoints import failpoint
from fairlead.control.reconcile.gang_executor import GangExecutor, SecretsFor, no_secrets
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.gang_tasks import GangTasks
from fairlead.control.reconcile.inbox import Inbox
from fairlead.control.reconcile.internal_errors import guard_errors
from fairlead.control.reconcile.node_incarnations import EndedIncarnations
from fairlead.control.reconcile.node_registry import NodeRegistry
from fairlead.control.reconcile.quarantine import GuardedSteps, Quarantine, report_damaged_rows
from fairlead.control.reconcile.round_clock import EVERY_S, RoundClock
from fairlead.control.reconcile.round_store import (
    LastRound,
    RoundInput,
    apply_round,
    learn_interference,
    read_state,
    update_placements,
)
from fairlead.control.reconcile.seats import seat_gangs
from fairlead.control.reconcile.worker_events import BatchOutcome, fact_after, is_report, needs_no_store, store_events
from fairlead.control.records import Job
from fairlead.control.store import damaged_rows, interference, nodes
from fairlead.control.store.engine import Store
from fairlead.control.store.retry import retry_until_available
from fairlead.scheduling.decide import decide
from fairlead.scheduling.state import DEFAULT_SHARING, Round, Sharing

log = structlog.get_logger()

TICK_S = 1.0  # the longest pause between two passes while jobs are on their way
IDLE_S = 10.0  # ... and while there are no jobs
BATCH_S = 0.1  # how long progress reports are gathered; everything else is taken in at once
BATCH_SPACING = 50.0  # ... under load: this many times as long as storing the last ones took
BATCH_LONGEST_S = 1.0
SHORTEST_WAIT_S = 0.05  # for a timer: timers that expire close together share one pass


class Controller:
    """Leads the platform: the only part that decides and commands."""

    def __init__(
        self, store: Store, backend: Backend, order_for: Callable[[Connection, Job], wire.WorkerSpec],
        clock: Callable[[], float] = time.time, secrets_for: SecretsFor = no_secrets,
        calibrator: Calibrator | None = None, sleep_after_s: float | None = None, sharing: Sharing = DEFAULT_SHARING,
        planner: Planner | None = None,
    ) -> None:  # fmt: skip
        self.store = store
        self.backend = backend
        self.clock = clock
        self.sharing = sharing
        self.last_round = LastRound({}, {})
        self.worker_meter = WorkerMeter()
        self.gang_registry = GangRegistry({}, {}, {})
        self.node_registry = NodeRegistry(store, backend, self.gang_registry, clock, sleep_after_s)
        self.quarantine = Quarantine(store, clock, lambda job: self._gang_tasks.request_look([job]))
        self._steps = GuardedSteps(store, clock)
        self._usage_meter = UsageMeter(store, self.gang_registry, lambda: self.nodes, clock, self.quarantine)
        self._cursors: dict[tuple[str, str], int] = {}
        self._ended_incarnations = EndedIncarnations(store, self._cursors, clock)
        self._inbox = Inbox()
        self._blocked_nodes: frozenset[str] = frozenset()  # nodes whose last change could not be taken in yet
        self._nudged = asyncio.Event()
        self._urgent = asyncio.Event()  # ends the gathering of reports
        self._storing_s = 0.0  # how long storing the last events took
        self._rounds = RoundClock(clock)
        self._paused = False
        self._write_unconfirmed = False
        self._news = asyncio.Event()
        self.publish_count = 0  # a reader that has seen this many has missed nothing
        self.orchestrate: Callable[[], Awaitable[set[str] | None]] | None = None  # advances the pipelines
        self.plans = Plans(store, lambda: self.nodes, clock, calibrator, planner)
        gangs = self.gang_registry
        executor = GangExecutor(store, backend, gangs, order_for, lambda: self.nodes, clock, secrets_for, self.plans)
        self._gang_tasks = GangTasks(store, gangs, self.node_registry, self.quarantine, executor, clock, self)

    # ------------------------------------------------------------ interface

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes with their present state."""
        return self.node_registry.nodes

    @property
    def telemetry(self) -> Mapping[str, wire.Telemetry]:
        """The last telemetry of each node."""
        return self.node_registry.telemetry

    async def refresh(self) -> None:
        """Read the nodes again, with the states that operators set."""
        await self.node_registry.refresh()

    def nudge(self, job: str | None = None) -> None:
        """Ask for a round, and for a look at this job."""
        if job is not None:
            self._gang_tasks.request_look([job])
        self._rounds.due = True
        self._nudged.set()
        self._urgent.set()

    def devices_freed(self) -> None:
        """A gang gave its devices back."""
        self._rounds.devices_freed()
        if self._rounds.due:
            self.nudge()

    def wake(self) -> None:
        """Begin the next pass at once."""
        self._nudged.set()

    def pause(self) -> None:
        """Hold no more rounds: the platform is shutting down."""
        self._paused = True

    def publish(self) -> None:
        """Wake everyone who follows events."""
        self.publish_count += 1
        self._news.set()
        self._news = asyncio.Event()

    async def wait_for_news(self, timeout_s: float, seen: int | None = None) -> None:
        """Returns when the store may hold something new, or after the timeout; at once if more than ``seen`` was
        published."""
        if seen is not None and seen != self.publish_count:
            return
        waiting = self._news
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):  # not wait_for: it may miss being cancelled
                await waiting.wait()

    # ------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Reconcile until cancelled; raises LostLeadership when another control plane leads."""
        fatal = self._gang_tasks.fatal = asyncio.get_running_loop().create_future()
        self._usage_meter.begin()  # not before the nodes have reported which jobs ended while there was no leader
        damaged_rows.reset_reports()  # each leader reports them anew
        self._cursors.update(await retry_until_available(lambda: self.store.read(nodes.cursors), "cursors"))
        await retry_until_available(self.refresh, "nodes")
        read_slowdowns = partial(self.store.read, interference.slowdowns)
        self.gang_registry.interference.table = await retry_until_available(read_slowdowns, "interference")
        pump = asyncio.create_task(self._pump())
        loop = asyncio.create_task(self._reconcile_forever())
        try:
            done, _ = await asyncio.wait({pump, loop, fatal}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.plans.close()
            self.node_registry.close()
            running = [pump, loop, *self._gang_tasks.tasks, *self._steps.tasks]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _pump(self) -> None:
        async for event in self.backend.events():
            if isinstance(event, NodeTelemetry):  # about once a second from every node: no reason for a pass
                self.node_registry.telemetry[event.node] = event.body
                with guard_errors("taking in telemetry", node=event.node):
                    self.gang_registry.observe(event.body)
                    self.worker_meter.take(event.node, event.body)
                continue
            self._inbox.put(event)
            self._nudged.set()
            if not is_report(event):
                self._urgent.set()

    async def _reconcile_forever(self) -> None:
        batch: list[BackendEvent] = []
        while True:
            if all(event.node in self._blocked_nodes for event in batch):
                batch += await self._next_batch()
            else:  # events that the last pass did not reach come first; nothing is added to them
                await asyncio.sleep(TICK_S)
            reconcile = partial(self._reconcile, batch)
            await self._steps.run("a pass", partial(retry_until_available, reconcile, "reconciling"))

    async def _reconcile(self, batch: list[BackendEvent]) -> None:
        """One pass. Repeated from where it stopped when the store did not answer."""
        await self._process_batch(batch)
        self._rounds.due |= self.gang_registry.end_expired_back_offs(self.clock())
        if self._rounds.due and not self._paused:
            await self._steps.run("holding a round", self._hold_round)
        learn = partial(learn_interference, self.store, self.gang_registry, self.clock())
        await self._steps.run("learning from neighbours", learn)
        live = [job for job, workers in self.gang_registry.workers.items() if workers]
        if self._usage_meter.due:
            await self._steps.run("metering", lambda: self._usage_meter.measure(live))
            await self._steps.run("reading nodes", self.refresh)
            await self._steps.run("clearing nodes", self.node_registry.drop_unneeded_data)
            await self._steps.run("forgetting nodes that are gone", self._ended_incarnations.forget)
        if live and not self._paused:
            self._steps.run_in_background("reviewing plans", lambda: self._review_plans(live))
        await self._gang_tasks.advance_gangs()
        await report_damaged_rows(self.store, self.clock())
        self.publish()

    async def _review_plans(self, live: Collection[str]) -> None:
        for job in await self.plans.review(self.gang_registry.workers_of, live):
            self.nudge(job)

    async def _next_batch(self) -> list[BackendEvent]:
        """Wait for something to do; progress reports wait a little to be gathered."""
        under_way = self.gang_registry.workers or self.gang_registry.cooling_until_s or self._gang_tasks.busy
        soon = bool(under_way or self._rounds.unfinished or self._rounds.due or self._blocked_nodes)
        busy = soon or bool(self.last_round.holds) or bool(self.quarantine)
        idle_s = min(IDLE_S, max(TICK_S, self.node_registry.sleep_after_s or IDLE_S))
        if not self._nudged.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limit_wait(TICK_S if soon else EVERY_S if busy else idle_s)):
                    await self._nudged.wait()
        self._rounds.tick(busy=busy or self.node_registry.sleep_after_s is not None)  # idle nodes go to sleep
        batch = self._drain()
        if batch and all(is_report(event) for event in batch):
            await self._gather(min(BATCH_LONGEST_S, max(BATCH_S, BATCH_SPACING * self._storing_s)))
            batch += self._drain()
        elif not batch and self._rounds.pause_s:
            await asyncio.sleep(self._rounds.pause_s)
            batch = self._drain()
        return batch

    def _limit_wait(self, wait_s: float) -> float:
        """How long to wait for an event: at most until a gang or a round is due."""
        next_s, wait_s = self._gang_tasks.next_s, self._rounds.limit_wait(wait_s)
        return wait_s if next_s is None else min(wait_s, max(SHORTEST_WAIT_S, next_s - self.clock()))

    async def _gather(self, for_s: float) -> None:
        """Let reports accumulate as long as nothing urgent comes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await self._urgent.wait()

    def _drain(self) -> list[BackendEvent]:
        self._nudged.clear()
        self._urgent.clear()
        batch = self._inbox.take(self._blocked_nodes)
        if self._inbox.has_events(self._blocked_nodes):  # a node sent more than its turn's worth
            self._nudged.set()
        return batch

    # ------------------------------------------------------------ taking events in

    async def _process_batch(self, batch: list[BackendEvent]) -> None:
        """Store consequences, keep facts in memory, then acknowledge; done events leave the batch. A change of a node
        that failed stays in the batch, and later events of that node wait for it."""
        behind, place = set[str](), 0
        while place < len(batch):
            first = batch[place]
            if first.node in behind:
                place += 1
            elif isinstance(first, NodeChange) and await self._apply_node_change(first):
                del batch[place]
            elif isinstance(first, NodeChange):
                behind.add(first.node)
            else:
                said = list(takewhile(lambda e: not isinstance(e, NodeChange) and e.node not in behind, batch[place:]))
                await self._store_worker_events([event for event in said if isinstance(event, WorkerEvent)])
                del batch[place : place + len(said)]
        self._blocked_nodes = frozenset(behind)

    async def _apply_node_change(self, change: NodeChange) -> bool:
        """Take in a change of a node and look at all gangs then; returns whether it succeeded."""
        taken = await self._steps.run(f"taking in {change.node}", partial(self.node_registry.apply_change, change))
        if taken:
            self._rounds.due = True
            self._gang_tasks.request_full_sweep()
            self._ended_incarnations.node_changed(change, self.nodes)
            self._resume_caught_up_node(change.node, change.incarnation)
        return taken

    async def _store_worker_events(self, batch: list[WorkerEvent]) -> None:
        fresh = [e for e in batch if e.sequence > self._cursors.get((e.node, e.incarnation), 0)]
        if not self._write_unconfirmed and all(map(needs_no_store, fresh)):
            self._apply_events(fresh, {event.job for event in fresh})
        else:
            now_s, begun_s = self.clock(), time.monotonic()
            again, self._write_unconfirmed = self._write_unconfirmed, True  # until it is known whether they are stored

            def work(connection: Connection) -> tuple[list[WorkerEvent], BatchOutcome]:
                stored = nodes.cursors(connection) if again else {}
                unstored = [e for e in fresh if e.sequence > stored.get((e.node, e.incarnation), 0)]
                return unstored, store_events(connection, unstored, now_s)

            unstored, taken = await self.store.write(work)
            self._write_unconfirmed = False
            failpoint("events-stored")
            touched = taken.touched | {event.job for event in fresh if again or not is_report(event)}
            self._apply_events(fresh, touched, {id(unstored[place]) for place in taken.refused})
            self._rounds.due |= taken.asks_for_round
            self._storing_s = time.monotonic() - begun_s
        for node, incarnation in sorted({(event.node, event.incarnation) for event in batch}):
            self.backend.acknowledge(node, incarnation, self._cursors.get((node, incarnation), 0))
            self._resume_caught_up_node(node, incarnation)

    def _apply_events(self, fresh: Sequence[WorkerEvent], touched: Iterable[str], refused: Container[int] = ()) -> None:
        for event in fresh:
            self._cursors[event.node, event.incarnation] = event.sequence
            if id(event) not in refused:
                self._update_memory(event)
        self._gang_tasks.request_look(touched)

    def _resume_caught_up_node(self, node: str, incarnation: str) -> None:
        """Go on with the gangs of this node that waited for the last events of its workers."""
        if self.node_registry.events_taken_in(node, incarnation, self._cursors.get((node, incarnation), 0)):
            self._gang_tasks.request_full_sweep()
            self._rounds.due = True

    def _update_memory(self, event: WorkerEvent) -> None:
        """Keep in memory what a stored event says."""
        with guard_errors("hearing a message", job=event.job, message=type(event.body).__name__):
            self._update_worker_fact(event)
            if isinstance(event.body, wire.Exited):
                self.gang_registry.record_exit(event.job, event.worker, event.body.cpu_s, event.time_s)
            self.gang_registry.interference.record_progress(event.job, event.body)
            if isinstance(event.body, wire.Profiled | wire.Raised | wire.Exited):
                self.plans.forget(event.job)
            elif isinstance(event.body, wire.Progress | wire.Ready):
                self.plans.record_report(event.job, event.body)

    def _update_worker_fact(self, event: WorkerEvent) -> None:
        joined = self.node_registry.joined.get(event.node)
        reflected = joined and joined.incarnation == event.incarnation and event.sequence <= joined.sequence
        if reflected and not isinstance(event.body, wire.Finished | wire.Exited):  # how and when it ended
            return  # the phases that the node reported when it joined already include this
        known = self.gang_registry.workers.get(event.job, {})
        if event.worker in known:
            known[event.worker] = fact_after(known[event.worker], event.body, event.time_s)
            if isinstance(event.body, wire.Joined) and event.body.resumed:
                self.gang_registry.record_resume(event.job, event.body.generation)

    # ------------------------------------------------------------ deciding

    async def _hold_round(self) -> None:
        """Advance the pipelines, and hold a round."""
        self._rounds.round_started()  # before anything is read: what is written from here on asks for another round
        try:
            handed_in = await self.orchestrate() if self.orchestrate is not None else None
            self._gang_tasks.request_look(handed_in or ())
            with tracing.round_span():
                await self._run_round()
        except BaseException:
            self._rounds.due = True
            raise

    async def _run_round(self) -> None:
        await self.node_registry.refresh_from_backend()
        started_s, now_s = time.monotonic(), self.clock()
        before, aside = self.last_round, self.quarantine.held_jobs()
        state = await read_state(
            self.store, now_s, self.nodes, self.gang_registry, self.node_registry.uncertain, before.memory,
            self.plans.curve, self.plans.refresh, self.sharing, aside,
        )  # fmt: skip
        state, decided = await self.quarantine.decide_round(state, self._run_policy)
        keep = before.must_store_memory(decided, now_s)
        gangs = await self.plans.choose_plans(seat_gangs(state, decided, failed := dict[str, Exception]()), failed)
        stored = partial(apply_round, state=state, decided=decided, gangs=gangs, remember=keep, failed=failed)
        changed = await self.store.write(stored)
        self._rounds.due |= any(gang.used < len(gang.members) for gang in gangs.values())
        await self.quarantine.record_stored_round(changed, failed)
        if changed:
            failpoint("round-stored")
        self.last_round = before.after(state.cluster, decided, stored=keep)
        self._gang_tasks.request_look(changed)
        self.node_registry.apply_sleep_decisions(decided.nodes)
        self._rounds.round_finished(state.cluster, decided.decisions, changed, cost_s := time.monotonic() - started_s)
        live.count_round(cost_s, bool(changed), decided.decisions)
        tracing.record_round(decided.decisions, changed, now_s)

    def _run_policy(self, state: RoundInput) -> Round:
        update_placements(state, self.gang_registry)
        return decide(replace(state.cluster, sleep_after_s=self.node_registry.sleep_after_s))
