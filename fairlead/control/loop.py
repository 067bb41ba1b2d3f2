"""The reconcile loop: takes in what happened, decides, and mends the difference between what should be and what is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile

import structlog
from sqlalchemy import Connection

from fairlead import wire
from fairlead.backends.protocol import Backend, BackendEvent, NodeChange, NodeTelemetry, WorkerEvent
from fairlead.cluster import Node
from fairlead.control import tracing
from fairlead.control.carry_out import CarryOut, SecretsFor, no_secrets
from fairlead.control.deciding import Outlook, RoundInput, apply_round, learn, read_state, seated
from fairlead.control.failpoints import failpoint
from fairlead.control.gang_tasks import GangTasks
from fairlead.control.gone_incarnations import GoneIncarnations
from fairlead.control.inbox import Inbox
from fairlead.control.internal_errors import apart
from fairlead.control.known_gangs import Gangs
from fairlead.control.metrics import live
from fairlead.control.metrics.workers import WorkerMeter
from fairlead.control.observe import Taken, asks_for_a_round, can_wait, fact_after, store_events
from fairlead.control.planner_process import Planner
from fairlead.control.plans import Gauge, Plans
from fairlead.control.quarantine import Parts, Quarantine, tell_damage
from fairlead.control.records import Job
from fairlead.control.roster import Roster
from fairlead.control.store import damage, neighbours, nodes
from fairlead.control.store.engine import Store
from fairlead.control.store.patience import outlast
from fairlead.control.usage_meter import UsageMeter
from fairlead.recovery.policy import LONGEST_S
from fairlead.scheduling.decide import decide
from fairlead.scheduling.state import AS_DIALLED, Hold, Round, Sharing

log = structlog.get_logger()

TICK_S = 1.0  # how often time itself is a reason to look again while jobs are on their way
IDLE_S = 10.0  # ... and while there are none
ROUND_EVERY_S = 3.0  # waiting and growing depend on time, so rounds are held even when nothing happens; and while jobs
# only wait, nothing but a round can change anything, so that there is no need to look more often than that
IDLE_SPACING = 200.0  # ... but with a deep queue not so often that time alone eats more than half a percent of a core
ROUND_AT_LEAST_S = 15.0
ROUND_SELDOM_S = 60.0  # ... where no job waits, so that time alone changes little
BATCH_S = 0.1  # reports of progress are gathered for so long; everything else is taken in at once
BATCH_SPACING = 50.0  # ... and where there are many, for so many lengths of what it took to store the last ones
BATCH_AT_MOST_S = 1.0
LEAST_WAIT_S = 0.05  # for a timer: several that run out soon after each other are one look
METER_S = 15.0  # a line of the ledger per generation and node so often; after a crash the next one closes the gap
METER_SPACING = 200.0  # ... but with thousands of gangs not so often that it takes more than half a percent of a core
METER_AT_LEAST_S = 60.0
ROUND_SPACING = 4.0  # pause between rounds, in lengths of the last one: a deep queue must not eat the core


class Controller:
    """Leads the platform: the only one who decides and commands."""

    def __init__(
        self, store: Store, backend: Backend, order_for: Callable[[Connection, Job], wire.WorkerSpec],
        clock: Callable[[], float] = time.time, secrets_for: SecretsFor = no_secrets,
        gauge: Gauge | None = None, sleep_after_s: float | None = None, sharing: Sharing = AS_DIALLED,
        planner: Planner | None = None,
    ) -> None:  # fmt: skip
        self.store = store
        self.backend = backend
        self.clock = clock
        self.sharing = sharing
        self.outlook = Outlook({}, {})
        self.meter = WorkerMeter()
        self.known = Gangs({}, {}, {})
        self.roster = Roster(store, backend, self.known, clock, sleep_after_s)
        self.quarantine = Quarantine(store, clock, lambda job: self._gangs.want([job]))
        self._parts = Parts(store, clock)
        self._meter = UsageMeter(store, self.known, lambda: self.nodes, clock, self.quarantine)
        self._seen: dict[tuple[str, str], int] = {}
        self._gone = GoneIncarnations(store, self._seen, clock)
        self._inbox = Inbox()
        self._behind: frozenset[str] = frozenset()  # nodes whose last change could not be taken in yet
        self._nudged = asyncio.Event()
        self._urgent = asyncio.Event()  # something that reports are not gathered any longer for
        self._storing_s = 0.0  # what the last events took
        self._round_due = True
        self._unfinished = False  # the last round decided something that could not be stored yet
        self._paused = False
        self._unanswered = False
        self._metered_s = 0.0
        self._meter_every_s = METER_S
        self._round_cost_s = 0.0
        self._news = asyncio.Event()
        self.published = 0  # how often: who has seen as many has missed nothing
        self.orchestrate: Callable[[], Awaitable[set[str] | None]] | None = None  # what pipelines do next
        self.plans = Plans(store, lambda: self.nodes, clock, gauge, planner)
        executor = CarryOut(store, backend, self.known, order_for, lambda: self.nodes, clock, secrets_for, self.plans)
        self._gangs = GangTasks(store, self.known, self.roster, self.quarantine, executor, clock, self)

    # ------------------------------------------------------------ doors

    @property
    def nodes(self) -> Mapping[str, Node]:
        """All nodes with their present state."""
        return self.roster.nodes

    @property
    def telemetry(self) -> Mapping[str, wire.Telemetry]:
        """What each node last said of itself."""
        return self.roster.telemetry

    async def refresh(self) -> None:
        """Read the nodes anew, with what an admin wants of them."""
        await self.roster.refresh()

    def nudge(self, job: str | None = None) -> None:
        """Something was written that asks for a decision, or for a look at this job."""
        if job is not None:
            self._gangs.want([job])
        self._round_due = True
        self._nudged.set()
        self._urgent.set()

    def wake(self) -> None:
        """There is something to look at."""
        self._nudged.set()

    def pause(self) -> None:
        """Hold no more rounds: the platform is ending."""
        self._paused = True

    def publish(self) -> None:
        """Wake those who follow events."""
        self.published += 1
        self._news.set()
        self._news = asyncio.Event()

    async def news(self, timeout_s: float, seen: int | None = None) -> None:
        """Returns when something new may be in the store, or after the timeout; at once if more was ``published``."""
        if seen is not None and seen != self.published:
            return
        waiting = self._news
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):  # not wait_for: it may miss being cancelled
                await waiting.wait()

    # ------------------------------------------------------------ the loop

    async def run(self) -> None:
        """Reconcile until cancelled; raises LostLeadership when another control plane leads."""
        fatal = self._gangs.fatal = asyncio.get_running_loop().create_future()
        self._metered_s = self.clock()  # not before the nodes have told which jobs ended while nobody led
        damage.forget()  # whoever leads tells of it
        self._seen.update(await outlast(lambda: self.store.read(nodes.cursors), "cursors"))
        await outlast(self.refresh, "nodes")
        self.known.company.table = await outlast(lambda: self.store.read(neighbours.table), "neighbours")
        pump = asyncio.create_task(self._pump())
        loop = asyncio.create_task(self._reconcile_forever())
        try:
            done, _ = await asyncio.wait({pump, loop, fatal}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self.plans.close()
            self.roster.close()
            running = [pump, loop, *self._gangs.tasks, *self._parts.tasks]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _pump(self) -> None:
        async for event in self.backend.events():
            if isinstance(event, NodeTelemetry):  # of every node about once a second: no reason to look at anything
                self.roster.telemetry[event.node] = event.body
                with apart("taking in telemetry", node=event.node):
                    self.known.observe(event.body)
                    self.meter.take(event.node, event.body)
                continue
            self._inbox.put(event)
            self._nudged.set()
            if not can_wait(event):
                self._urgent.set()

    async def _reconcile_forever(self) -> None:
        batch: list[BackendEvent] = []
        while True:
            if all(event.node in self._behind for event in batch):
                batch += await self._next_batch()
            else:  # what the last pass did not get to comes first, and no more is taken on top of it
                await asyncio.sleep(TICK_S)
            await self._parts.do("a pass", partial(outlast, partial(self._reconcile, batch), "reconciling"))

    async def _reconcile(self, batch: list[BackendEvent]) -> None:
        """One pass. Done again from where it stopped when the store did not answer on the way."""
        await self._absorb(batch)
        self._forget_cooled()
        if self._round_due and not self._paused:
            await self._parts.do("holding a round", self._decide)
        await self._parts.do("learning from neighbours", lambda: learn(self.store, self.known, self.clock()))
        live = [job for job, workers in self.known.workers.items() if workers]
        if not 0.0 <= self.clock() - self._metered_s < self._meter_every_s:
            self._metered_s, begun_s = self.clock(), time.monotonic()
            await self._parts.do("metering", lambda: self._meter.measure(live))
            spent_s = time.monotonic() - begun_s
            self._meter_every_s = min(METER_AT_LEAST_S, max(METER_S, METER_SPACING * spent_s))
            await self._parts.do("clearing nodes", self.roster.clear)
            await self._parts.do("forgetting nodes that are gone", self._gone.forget)
        if live and not self._paused:
            self._parts.beside("reviewing plans", lambda: self._review(live))
        await self._gangs.look()
        await tell_damage(self.store, self.clock())
        self.publish()

    def _forget_cooled(self) -> None:
        """Jobs that may be planned for again: the next round sees them."""
        now_s, cooling = self.clock(), self.known.cooling_until_s
        for job in [job for job, until_s in cooling.items() if not 0.0 < until_s - now_s <= LONGEST_S]:
            del cooling[job]
            self._round_due = True

    async def _review(self, live: Collection[str]) -> None:
        for job in await self.plans.review(self.known.of, live):
            self.nudge(job)

    async def _next_batch(self) -> list[BackendEvent]:
        """Wait for something to do; progress alone may wait a little for company."""
        under_way = bool(self.known.workers) or bool(self.known.cooling_until_s) or self._gangs.busy
        soon = under_way or self._unfinished or self._round_due or bool(self._behind)
        busy = soon or bool(self.outlook.holds) or bool(self.quarantine)
        idle_s = min(IDLE_S, max(TICK_S, self.roster.sleep_after_s or IDLE_S))
        if not self._nudged.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._within(TICK_S if soon else ROUND_EVERY_S if busy else idle_s)):
                    await self._nudged.wait()
        waits = bool(self.outlook.holds) or self._unfinished
        seldom_s = ROUND_AT_LEAST_S if waits else ROUND_SELDOM_S
        every_s = min(seldom_s, max(ROUND_EVERY_S, IDLE_SPACING * self._round_cost_s))
        rests = self.roster.sleep_after_s is not None  # who is idle goes to sleep when nothing happens
        self._round_due = self._round_due or ((busy or rests) and self.clock() - self.outlook.decided_s > every_s)
        batch = self._drain()
        if batch and all(can_wait(event) for event in batch):
            await self._gather(min(BATCH_AT_MOST_S, max(BATCH_S, BATCH_SPACING * self._storing_s)))
            batch += self._drain()
        elif not batch and self._round_cost_s:
            await asyncio.sleep(min(0.5, ROUND_SPACING * self._round_cost_s))
            batch = self._drain()
        return batch

    def _within(self, wait_s: float) -> float:
        """How long to wait for something to happen: not beyond the moment at which a gang is to be looked at."""
        next_s = self._gangs.next_s
        return wait_s if next_s is None else min(wait_s, max(LEAST_WAIT_S, next_s - self.clock()))

    async def _gather(self, for_s: float) -> None:
        """Let reports come together for a while, but only as long as nothing more urgent comes."""
        with suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await self._urgent.wait()

    def _drain(self) -> list[BackendEvent]:
        self._nudged.clear()
        self._urgent.clear()
        batch = self._inbox.take(self._behind)
        if self._inbox.waits(self._behind):  # a node had more to say than its turn
            self._nudged.set()
        return batch

    # ------------------------------------------------------------ taking in

    async def _absorb(self, batch: list[BackendEvent]) -> None:
        """Consequences into the store, facts into memory, then the acknowledgement; what is done leaves the batch. A
        change of a node that could not be taken in stays, and what its node says later waits for it."""
        behind, place = set[str](), 0
        while place < len(batch):
            first = batch[place]
            if first.node in behind:
                place += 1
            elif isinstance(first, NodeChange) and await self._take_change(first):
                del batch[place]
            elif isinstance(first, NodeChange):
                behind.add(first.node)
            else:
                said = list(takewhile(lambda e: not isinstance(e, NodeChange) and e.node not in behind, batch[place:]))
                await self._store_worker_events([event for event in said if isinstance(event, WorkerEvent)])
                del batch[place : place + len(said)]
        self._behind = frozenset(behind)

    async def _take_change(self, change: NodeChange) -> bool:
        """Whether a node's change was taken in; the gangs of all nodes are looked at then."""
        taken = await self._parts.do(f"taking in {change.node}", partial(self.roster.take, change))
        if taken:
            self._round_due = True
            self._gangs.want_all()
            self._gone.note(change, self.nodes)
            self._heard_of(change.node, change.incarnation)
        return taken

    async def _store_worker_events(self, batch: list[WorkerEvent]) -> None:
        fresh = [e for e in batch if e.sequence > self._seen.get((e.node, e.incarnation), 0)]
        if fresh:
            now_s, begun_s = self.clock(), time.monotonic()
            again, self._unanswered = self._unanswered, True  # until it is known whether they are stored

            def work(connection: Connection) -> tuple[list[WorkerEvent], Taken]:
                stored = nodes.cursors(connection) if again else {}
                unstored = [e for e in fresh if e.sequence > stored.get((e.node, e.incarnation), 0)]
                return unstored, store_events(connection, unstored, now_s)

            unstored, taken = await self.store.write(work)
            self._unanswered = False
            failpoint("events-stored")
            refused = {id(unstored[place]) for place in taken.refused}
            for event in fresh:
                self._seen[event.node, event.incarnation] = event.sequence
                if id(event) not in refused:
                    self._hear(event)
            self._gangs.want(taken.touched | {event.job for event in fresh if again or not can_wait(event)})
            self._storing_s = time.monotonic() - begun_s
            self._round_due = self._round_due or any(asks_for_a_round(event) for event in fresh)
        for node, incarnation in sorted({(event.node, event.incarnation) for event in batch}):
            self.backend.acknowledge(node, incarnation, self._seen.get((node, incarnation), 0))
            self._heard_of(node, incarnation)

    def _heard_of(self, node: str, incarnation: str) -> None:
        """Gangs of this node that were left alone until its workers' last words were known go on."""
        if self.roster.heard(node, incarnation, self._seen.get((node, incarnation), 0)):
            self._gangs.want_all()
            self._round_due = True

    def _hear(self, event: WorkerEvent) -> None:
        """What is kept in memory of an event that was stored."""
        with apart("hearing a message", job=event.job, message=type(event.body).__name__):
            self._take_fact(event)
            if isinstance(event.body, wire.Exited):
                self.known.ended(event.job, event.worker, event.body.cpu_s, event.time_s)
            self.known.company.hear(event.job, event.body)
            if isinstance(event.body, wire.Profiled | wire.Raised | wire.Exited):
                self.plans.forget(event.job)
            elif isinstance(event.body, wire.Progress | wire.Ready):
                self.plans.hear(event.job, event.body)

    def _take_fact(self, event: WorkerEvent) -> None:
        joined = self.roster.joined.get(event.node)
        reflected = joined and joined.incarnation == event.incarnation and event.sequence <= joined.sequence
        if reflected and not isinstance(event.body, wire.Finished | wire.Exited):  # how and when it ended
            return  # the phases that the node reported when it joined already include this
        known = self.known.workers.get(event.job, {})
        if event.worker in known:
            known[event.worker] = fact_after(known[event.worker], event.body, event.time_s)
            if isinstance(event.body, wire.Joined) and event.body.resumed:
                self.known.resumed(event.job, event.body.generation)

    # ------------------------------------------------------------ deciding

    async def _decide(self) -> None:
        """What pipelines hand in, and a round."""
        self._round_due = False  # before anything is read: what is written from here on asks for all of this again
        try:
            handed_in = await self.orchestrate() if self.orchestrate is not None else None
            self._gangs.want(handed_in or ())
            with tracing.round():
                await self._round()
        except BaseException:
            self._round_due = True
            raise

    async def _round(self) -> None:
        await self.refresh()
        started_s = time.monotonic()
        now_s = self.clock()
        before = self.outlook
        state = await read_state(
            self.store, now_s, self.nodes, self.known, self.roster.undecided, before.memory, self.plans.curve,
            self.plans.refresh, self.sharing, self.quarantine.held(),
        )  # fmt: skip
        state, decided = await self.quarantine.decided(state, self._decide_about)
        keep = before.forgets_less(decided, now_s)
        failed: dict[str, Exception] = {}
        changed = await self.store.write(
            lambda connection: apply_round(connection, state, decided, remember=keep, failed=failed)
        )
        await self.quarantine.stored(changed, failed)
        if changed:
            failpoint("round-stored")
        holds = {decision.job: decision for decision in decided.decisions if isinstance(decision, Hold)}
        self.outlook = Outlook(holds, decided.entitlements, now_s, decided.memory, now_s if keep else before.stored_s)
        self._unfinished = any(not isinstance(d, Hold) and d.job not in changed for d in decided.decisions)
        self._gangs.want(changed)
        self.roster.rest(decided.nodes)
        self._round_cost_s = time.monotonic() - started_s
        live.round_held(self._round_cost_s, bool(changed), decided.decisions)
        tracing.decided(decided.decisions, changed, now_s)

    def _decide_about(self, state: RoundInput) -> Round:
        seated(state, self.known)
        return decide(replace(state.cluster, sleep_after_s=self.roster.sleep_after_s))
