"""Tenants that all have demand, on the real controller, store and backend in virtual time: what happened, by step logs.

The storm's world (``tests/storm``) with machines of one device, no faults but the kills that are asked for, and
trainings that log each step. All that is kept here is seen by workers, machines and clients: nothing is asked of the
platform but, in the end, its own figures, to set them beside.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from unittest import mock

from sqlalchemy import Connection

from fairlead import wire
from fairlead.control.reconcile import loop as loops
from fairlead.control.records import Job, JobPhase
from fairlead.control.store import jobs as stored_jobs
from fairlead.scheduling.state import ClusterState, Round
from tests.storm.holdings import Holdings
from tests.storm.invariants import Truth
from tests.storm.run import play as played
from tests.storm.simulated_store import Database
from tests.storm.simulated_workers import Behaviour, Commands, Meeting, SimWorker
from tests.storm.virtual_loop import START_S
from tests.storm.workload import Clients
from tests.storm.world import World

if TYPE_CHECKING:
    from tests.storm.leaders import Leader

Policy = Callable[[ClusterState], Round]
Change = Callable[[], AbstractContextManager[object]]

BEGIN_S = 0.5
"""What a start costs a job: reckoned into what it needs, and into each start of the reference policy."""

LOAD_S, MEET_S = 0.25, 0.1  # to fork, and to meet: so that, as in ``benchmarks.start``, 0.3 s pass from a submission to
# the first step on a free device; the former is drawn from half to one and a half times that
TELL_S, QUIET_TELL_S = 0.5, 2.0  # rank 0 tells how far it is so often, the others
KEEP_S = 1.0  # between snapshots in memory
STEP_S = (0.05, 0.2)  # of one worker
WORK_S = (10.0, 40.0)  # of one worker
PROMISED, SLACK = 0.35, (1.5, 3.0)  # of the jobs; times what they need at their tenant's fair share
EXPONENT = 0.9  # a gang of n steps n ** 0.9 times as fast
KINDS = {"elastic": 4.0, "rigid": 2.0, "single": 2.5, "command": 1.5}
SIZES = {"elastic": (1, 4), "rigid": (2, 2)}
JOIN_S = 20.0  # all nodes have joined by then


@dataclass(frozen=True, slots=True)
class Work(Behaviour):
    """What a job does, and how much faster a gang of several does it."""

    exponent: float = EXPONENT


@dataclass(frozen=True, slots=True)
class Ask:
    """What a tenant handed in."""

    id: str
    tenant: str
    kind: str
    submitted_s: float
    least: int
    most: int
    work_s: float  # of one worker
    deadline_s: float | None = None

    def run_s(self, size: int) -> float:
        """How long a gang of this size takes."""
        return float(self.work_s / size**EXPONENT)


@dataclass(frozen=True, slots=True)
class Kill:
    """Something was killed, and these jobs were hit: with what else their tenants held then."""

    kind: str  # worker, node, control-plane
    at_s: float
    jobs: Sequence[str]
    others: Mapping[str, int]  # devices of the other gangs of each job's tenant


@dataclass(frozen=True, slots=True)
class Span:
    """From when to when."""

    from_s: float
    to_s: float

    @property
    def long_s(self) -> float:
        return self.to_s - self.from_s

    def within(self, other: Span) -> float:
        """Seconds of it that lie in the other."""
        return max(0.0, min(self.to_s, other.to_s) - max(self.from_s, other.from_s))


@dataclass
class Course:
    """What happened in one run, as seen from outside."""

    weights: Mapping[str, float]
    devices: int
    span: Span = Span(0.0, 0.0)
    asks: dict[str, Ask] = field(default_factory=dict)
    held: defaultdict[str, list[Span]] = field(default_factory=lambda: defaultdict(list))  # one for each worker
    worked: defaultdict[str, list[tuple[Span, int]]] = field(default_factory=lambda: defaultdict(list))  # and how many
    steps: defaultdict[str, list[tuple[float, int]]] = field(default_factory=lambda: defaultdict(list))
    step_s: dict[str, float] = field(default_factory=dict)  # of one worker
    ended: dict[str, float] = field(default_factory=dict)
    kills: list[Kill] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    preempts: int = 0  # these and all that follow as the platform tells
    resizes: int = 0
    told_kept: Mapping[str, bool] = field(default_factory=dict)
    told_device_s: Mapping[str, float] = field(default_factory=dict)
    told_recoveries_s: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Scene:
    """What is to be played."""

    weights: Sequence[float]
    seed: int
    seconds: float = 240.0
    machines: int = 8
    kills: bool = True
    tells: str = "promised"  # which jobs say how long they take: promised, all, none


def share(weights: Sequence[float], tenant: int, devices: int) -> float:
    """Devices that are a tenant's when all have demand."""
    return devices * weights[tenant] / sum(weights)


def jobs_at_once(devices: float) -> int:
    """How many jobs a tenant always has in the cluster, so that it can use its fair share."""
    return max(3, int(devices) + 1)


def kill_times(chance: Random, scene: Scene) -> list[tuple[str, float]]:
    """A worker, a node manager and the control plane, in an order and at moments that the seed says."""
    kinds = ["worker", "node", "control-plane"]
    chance.shuffle(kinds)
    if not scene.kills:
        return []
    return [(kind, scene.seconds * (0.2 + 0.25 * part + chance.uniform(0.0, 0.15))) for part, kind in enumerate(kinds)]


def need_s(ask: Ask, devices: float) -> float:
    """What a job needs with no more than so many devices at a time on average."""
    runs = ((size, ask.run_s(size)) for size in range(ask.least, ask.most + 1))
    return BEGIN_S + min(max(run_s, size * run_s / devices) for size, run_s in runs)


def drawn(chance: Random, name: str, tenant: str, now_s: float, devices: float) -> tuple[Ask, Work]:
    """The next job of a tenant whose fair share is so many devices."""
    kind = chance.choices(list(KINDS), list(KINDS.values()))[0]
    least, most = SIZES.get(kind, (1, 1))
    work_s, step_s = chance.uniform(*WORK_S) * least, chance.uniform(*STEP_S)
    promised, slack = chance.random() < PROMISED, chance.uniform(*SLACK)
    steps = max(1, round(work_s / step_s))
    ask = Ask(f"{kind}-{name}", tenant, kind, now_s, least, most, steps * step_s if kind != "command" else work_s)
    if promised:
        ask = replace(ask, deadline_s=now_s + slack * need_s(ask, devices))
    return ask, Work(kind != "command", steps, step_s, work_s, LOAD_S)


# ------------------------------------------------------------ the world


class LoggedMeeting(Meeting):
    """A generation that takes each step by itself, as fast as its gang is, and logs it."""

    leaves_s = (0.01, 0.15)
    notices_s = (0.02, 0.3)

    def __init__(self, world: Cluster, job: str, join: wire.Join) -> None:
        super().__init__(world, job, join)
        self._cluster, self._fresh = world, True
        self._timer: asyncio.TimerHandle | None = None
        self._told_s = self._quiet_s = self._kept_s = -KEEP_S
        self._told_step = 0

    def _begin(self) -> None:
        self._fresh = not self.resumed
        super()._begin()
        self._told_step = self.step

    def _beat_later(self) -> None:
        world, work = self._cluster, self._cluster.behaviours[self.job]
        if self._timer is not None:
            self._timer.cancel()
        step_s = work.step_s / len(self.ranks) ** EXPONENT * world.chance.uniform(0.95, 1.05)
        after_s, self._fresh = step_s + (MEET_S if self._fresh and len(self.ranks) > 1 else 0.0), False
        self._timer = world.loop.within(world.process, after_s, self._beat)

    def _beat(self) -> None:
        if not self.acting:
            return
        work, now_s = self._cluster.behaviours[self.job], self._cluster.loop.now_s
        self.step += 1
        self._cluster.course.steps[self.job].append((now_s, self.step))
        for worker in self._ranked():
            worker.step = self.step
        if now_s - self._kept_s >= KEEP_S:
            self._kept_s = now_s
            self._cluster.durable[self.job] = max(self.step, self._cluster.durable.get(self.job, 0))
        over = self.step >= work.steps
        if over or now_s - self._told_s >= TELL_S:
            self._tell_now(work, now_s)
        if over:
            self._cluster.end(self.job)
            self._finish()
        else:
            self._beat_later()

    def _tell_now(self, work: Behaviour, now_s: float) -> None:
        taken, since_s = self.step - self._told_step, now_s - self._told_s
        quiet = now_s - self._quiet_s >= QUIET_TELL_S
        for worker in self._ranked():
            if self.ranks[worker.name] == 0:
                rows = [{"step": float(at), "time_s": self._cluster.wall_s(worker.manager.process), "loss": 1.0}
                        for at in sorted({self._told_step + 1, self.step})]  # fmt: skip
                speed = taken * 10 / since_s
                worker.say(wire.Progress(self.generation, self.step, work.steps, 0, speed, work.step_s, rows))
            elif quiet:
                worker.say(wire.Progress(self.generation, self.step, work.steps))
        self._told_s, self._told_step = now_s, self.step
        self._quiet_s = now_s if quiet else self._quiet_s


class LoggedCommands(Commands):
    """Commands of one worker, from their beginning to their end."""

    def __init__(self, world: Cluster) -> None:
        super().__init__(world)
        self._cluster = world
        self._since_s: dict[SimWorker, float] = {}

    def come(self, worker: SimWorker) -> None:
        self._since_s[worker] = self._cluster.loop.now_s
        super().come(worker)

    def gone(self, worker: SimWorker) -> None:
        super().gone(worker)
        since_s = self._since_s.pop(worker, None)
        if since_s is not None:
            span = Span(since_s, self._cluster.loop.now_s)
            self._cluster.course.worked[worker.job].append((span, 1))
            stopped = worker.leaving or worker.cause is not None  # SIGTERM ends a plain command where it is
            if span.long_s >= worker.behaviour.lasts_s - 1e-6 and not stopped:
                self._cluster.end(worker.job)

    def close(self) -> None:
        """The run is over."""
        for worker, since_s in self._since_s.items():
            self._cluster.course.worked[worker.job].append((Span(since_s, self._cluster.loop.now_s), 1))


class LoggedHoldings(Holdings):
    """The judge of the ledger, who also logs which devices are held."""

    def __init__(self, world: Cluster) -> None:
        super().__init__(world)
        self._cluster = world
        self.holding: dict[SimWorker, float] = {}

    def begins(self, worker: SimWorker) -> None:
        super().begins(worker)
        self.holding[worker] = self._cluster.loop.now_s

    def ends(self, worker: SimWorker) -> None:
        super().ends(worker)
        since_s = self.holding.pop(worker, None)
        if since_s is not None:
            self._cluster.course.held[worker.job].append(Span(since_s, self._cluster.loop.now_s))

    def close(self) -> None:
        """The run is over."""
        for worker in list(self.holding):
            self.ends(worker)


class Watch(Truth):
    """The storm's judge, who also logs which gangs are at work."""

    def __init__(self, world: Cluster) -> None:
        super().__init__(world)
        self._cluster = world
        self._acting: dict[Meeting, float] = {}

    def acts(self, meeting: Meeting) -> None:
        super().acts(meeting)
        self._acting[meeting] = self._cluster.loop.now_s

    def rests(self, meeting: Meeting) -> None:
        super().rests(meeting)
        self._log(meeting, self._acting.pop(meeting))

    def _log(self, meeting: Meeting, since_s: float) -> None:
        span = Span(since_s, self._cluster.loop.now_s)
        self._cluster.course.worked[meeting.job].append((span, len(meeting.ranks)))

    def committed(self) -> None:
        """Looked at once a second: a long run commits thousands of times."""

    def every_second(self) -> None:
        super().committed()
        super().every_second()

    def close(self) -> None:
        """The run is over."""
        for meeting, since_s in self._acting.items():
            self._log(meeting, since_s)


class Cluster(World):
    """Machines of one device each, with right clocks and a calm network."""

    def __init__(self, scene: Scene, database: Database) -> None:
        self.scene = scene
        super().__init__(scene.seed, database, plain=True)
        names = {f"t{at}": weight for at, weight in enumerate(scene.weights)}
        self.course = Course(names, scene.machines)
        self.glances = False  # here all trainings gain by more workers
        self.truth: Watch = Watch(self)
        self.holdings: LoggedHoldings = LoggedHoldings(self)
        self.commands: LoggedCommands = LoggedCommands(self)
        self.over_events: dict[str, asyncio.Event] = {}

    def furnish(self) -> None:
        self.leaders_off_s = 0.0
        for at in range(self.scene.machines):
            self.machine(at, 1)

    def meeting(self, job: str, join: wire.Join) -> Meeting:
        key = job, join.generation, join.rendezvous
        if key not in self._meetings:
            self._meetings[key] = LoggedMeeting(self, job, join)
        return self._meetings[key]

    def end(self, job: str) -> None:
        """A job has done all that it was to do."""
        if job in self.course.ended:
            self.course.doubled.append(job)
        self.course.ended.setdefault(job, self.loop.now_s)
        self.release(job)

    def release(self, job: str) -> None:
        """Whoever waits for the end of a job goes on."""
        self.over_events.setdefault(job, asyncio.Event()).set()

    # ------------------------------------------------------------ kills

    def kill(self, kind: str, chance: Random) -> bool:
        """Whether there was something to kill."""
        there = [worker for worker in self.workers() if worker.state == "training" and not worker.ended]
        leader = self.supervisor.present
        if not there or (kind == "control-plane" and leader is None):
            return False
        victim = chance.choice(there)
        beside = {"worker": [victim], "node": [one for one in there if one.manager is victim.manager]}
        running = sorted({one.job for one in beside.get(kind, there)})
        others = {job: sum(1 for worker in self.holdings.holding if worker.job != job
                           and self._tenant(worker.job) == self._tenant(job)) for job in running}  # fmt: skip
        self.course.kills.append(Kill(kind, self.loop.now_s, running, others))
        self.trace("kills", kind)
        if kind == "worker":
            self.truth.disturb(victim.job, "killed")
            victim.crash(signal=9)
        elif kind == "node":
            self.truth.disturb_node(victim.manager.name, "killed:")
            victim.manager.machine.die("killed")
        else:
            assert leader is not None
            self.supervisor.kill(leader)
        return True

    def _tenant(self, job: str) -> str:
        return self.course.asks[job].tenant

    # ------------------------------------------------------------ the end

    def read(self) -> None:
        """Close the log, and set beside it what the platform says itself."""
        course, now_s = self.course, self.loop.now_s
        course.span = replace(course.span, to_s=now_s)
        self.truth.close()
        self.holdings.close()
        self.commands.close()
        ask = self.eye.execute
        (course.preempts,) = ask("SELECT count(*) FROM events WHERE kind = 'job-preempted'").fetchone()
        (course.resizes,) = ask("SELECT count(*) FROM events WHERE kind = 'job-resizing'").fetchone()
        rows = ask("SELECT id, phase, finished_s, finish_by_s FROM jobs WHERE finish_by_s IS NOT NULL").fetchall()
        course.told_kept = {job: phase == "succeeded" and finished_s <= due_s for job, phase, finished_s, due_s in rows}
        charged = ask("SELECT job, sum(devices * (to_s - from_s)) FROM usage GROUP BY job").fetchall()
        course.told_device_s = dict(charged)
        told = ask("SELECT json_extract(facts, '$.seconds') FROM events WHERE kind = 'job-recovered'").fetchall()
        course.told_recoveries_s = [seconds for (seconds,) in told]
        course.wrong = [f"{one.at_s:.1f} s {one.invariant}: {one.text}" for one in self.found]
        known = {job for (job,) in ask("SELECT id FROM jobs").fetchall()}
        course.failed += sorted(self.truth.accepted - known)


# ------------------------------------------------------------ the tenants


class Tenants:
    """Each keeps a few jobs in the cluster: when one ends, the next one is handed in."""

    def __init__(self, world: Cluster) -> None:
        self._world, self._clients = world, Clients(world)

    async def run(self) -> None:
        """Until it is cancelled."""
        weights, machines = self._world.scene.weights, self._world.scene.machines
        async with asyncio.TaskGroup() as group:
            for tenant in range(len(weights)):
                devices = share(weights, tenant, machines)
                for slot in range(jobs_at_once(devices)):
                    group.create_task(self._stream(tenant, slot, devices))

    async def _stream(self, tenant: int, slot: int, devices: float) -> None:
        world, number = self._world, 0
        chance = Random(f"{world.seed}/{tenant}/{slot}")
        await asyncio.sleep(chance.uniform(0.0, 1.0))
        while True:
            number += 1
            name = f"{tenant}-{slot}-{number}"
            ask, work = drawn(chance, name, f"t{tenant}", world.loop.now_s, devices)
            over = world.over_events.setdefault(ask.id, asyncio.Event())
            world.course.asks[ask.id], world.behaviours[ask.id] = ask, work
            world.course.step_s[ask.id] = work.step_s
            await self._submit(ask)
            await over.wait()
            await asyncio.sleep(chance.uniform(0.05, 0.3))

    async def _submit(self, ask: Ask) -> None:
        world, tells = self._world, self._world.scene.tells
        says = tells == "all" or (tells == "promised" and ask.deadline_s is not None)

        def work(leader: Leader, connection: Connection) -> None:
            now_s = world.wall_s(leader.process)
            job = Job(
                id=ask.id, tenant=ask.tenant, name=ask.id, phase=JobPhase.QUEUED, submitted_s=now_s, submitted_by="tok",
                min_workers=ask.least, max_workers=ask.most, demand={"cpu": 0.5}, device_type=None, priority=0,
                elastic=ask.kind == "elastic", training=ask.kind != "command", retries=3, since_s=now_s,
                finish_by_s=None if ask.deadline_s is None else START_S + ask.deadline_s,
                facts={"takes_s": ask.run_s(ask.least)} if says else {},
            )  # fmt: skip
            stored_jobs.insert(connection, job, {"name": job.name}, {}, job.id, "d")

        await self._clients.asked(work, ask.id)
        world.truth.accepted.add(ask.id)


async def _scene(world: Any) -> None:
    """The platform comes up, the tenants come, things are killed, and time is up."""
    scene: Scene = world.scene
    world.supervisor.start()
    async with asyncio.timeout(JOIN_S):
        while not _up(world):
            await asyncio.sleep(0.1)
    world.course.span = Span(world.loop.now_s, world.loop.now_s)
    tasks = [asyncio.create_task(each) for each in (Tenants(world).run(), _tick(world), _kill(world))]
    done, _ = await asyncio.wait(tasks, timeout=scene.seconds, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()
    world.read()
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _up(world: Cluster) -> bool:
    leader = world.supervisor.present
    return leader is not None and leader.controller is not None and len(leader.controller.node_registry.joined) == len(
        world.machines)  # fmt: skip


async def _tick(world: Cluster) -> None:
    while True:
        await asyncio.sleep(1.0)
        world.truth.every_second()
        gone = world.eye.execute("SELECT id FROM jobs WHERE phase IN ('failed', 'cancelled') ORDER BY id").fetchall()
        for (job,) in gone:
            if job not in world.course.failed:
                world.course.failed.append(job)
                world.release(job)


async def _kill(world: Cluster) -> None:
    chance, begun_s = Random(f"{world.seed}/kills"), world.loop.now_s
    for kind, after_s in kill_times(chance, world.scene):
        await asyncio.sleep(max(0.0, begun_s + after_s - world.loop.now_s))
        while not world.kill(kind, chance):
            await asyncio.sleep(0.5)


def play(scene: Scene, policy: Policy | None = None, change: Change | None = None) -> Course:
    """Play a scene, perhaps with another policy in place of ``decide``, or within a context that changes something."""
    weights = {f"t{at}": weight for at, weight in enumerate(scene.weights)}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fl-tenants-")))
        if policy is not None:
            stack.enter_context(mock.patch.object(loops, "decide", policy))
        if change is not None:
            stack.enter_context(change())
        world = Cluster(scene, Database(folder, weights))
        played(world, _scene)
    return world.course
