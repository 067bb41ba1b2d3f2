"""Simulated workers: they load, meet, step together, leave, break and end as real ones do."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from zlib import crc32

from fairlead import wire
from fairlead.training.control_messages import must_follow_join
from fairlead.training.resumption import Resumption, patience_s
from tests.storm.virtual_loop import Process

if TYPE_CHECKING:
    from tests.storm.simulated_agents import Manager
    from tests.storm.world import World

LINE_S = 0.001
RANKS_APART = 0.2  # each rank of a command takes so much longer than the one before
_GLANCES = None, wire.Glance(3e-4, 1e-6, 1000.0), wire.Glance(1e-3, 0.5, 1000.0)
"""What whoever looks at a model may see: nothing, that one process is fastest, that copies pay."""
BEAT_S, QUIET_BEATS = 3.0, 3  # rank 0 tells how far it is so often, the others every third time


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a job's own code does."""

    training: bool = True
    steps: int = 100
    step_s: float = 0.5
    lasts_s: float = 20.0  # of a command
    load_s: float = 0.5
    fault: str = ""  # its own: segfault-at-start, exit-at-step, raises-at-start, exit-at-start
    fault_step: int = 0


class Decisions:
    """The store in which a generation met, as far as its ranks decide there whether to resume it."""

    def __init__(self) -> None:
        self._kept: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self._kept[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self._kept for key in keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self._kept.setdefault(key, desired).encode()


class Meeting:
    """One generation of a training as its workers live it: it acts from when all are there until one is missing."""

    leaves_s = (0.05, 0.6)  # from being asked to leave to the next step
    notices_s = (0.05, 1.0)  # from the end of a worker to when a peer notices

    def __init__(self, world: World, job: str, join: wire.Join) -> None:
        self.job, self.generation, self.ranks = job, join.generation, dict(join.ranks)
        self.present: dict[str, SimWorker] = {}
        self.here: set[str] = set()  # who is there, or there again
        self.acting = self.over = False
        self.step = self.resumed = 0
        self.decisions = Decisions()
        self._world, self._beats, self._leave_asked = world, 0, False

    def come(self, worker: SimWorker) -> None:
        """It waits for the others; the last one begins. Ranks that left come again when they resume."""
        self.present[worker.name] = worker
        self.here.add(worker.name)
        if self.here == self.ranks.keys() and not self.over:
            self._begin()

    def _begin(self) -> None:
        world = self._world
        self.acting, self._leave_asked = True, False
        self.step = max([world.durable.get(self.job, 0), *(worker.step for worker in self.present.values())])
        world.acted[self.job] = self
        world.truth.acts(self)
        for worker in self._ranked():
            worker.state = "training"
            worker.step = self.step
            if not self.resumed:
                worker.say(wire.Joined(self.generation, self.step))
        self._beat_later()
        for worker in self._ranked():
            worker.follow()

    def _beat_later(self) -> None:
        world = self._world
        world.loop.within(world.process, BEAT_S * world.chance.uniform(0.7, 1.3), self._beat)

    def _ranked(self) -> list[SimWorker]:
        return sorted(self.present.values(), key=lambda worker: self.ranks[worker.name])

    def _beat(self) -> None:
        if not self.acting:
            return
        if any(worker.process.stopped for worker in self.present.values()):
            self._beat_later()
            return
        behaviour = self._world.behaviours[self.job]
        speed = len(self.ranks) ** 0.8
        before, self.step = self.step, min(behaviour.steps, self.step + max(1, int(BEAT_S * speed / behaviour.step_s)))
        self._beats += 1
        if behaviour.fault == "exit-at-step" and before <= behaviour.fault_step <= self.step:
            self._ranked()[0].crash(code=3)
            return
        for worker in self._ranked():
            worker.step = self.step
        self._tell(behaviour, before)
        if self.step >= behaviour.steps:
            self._finish()
        else:
            self._beat_later()

    def _tell(self, behaviour: Behaviour, before: int) -> None:
        world = self._world
        for worker in self._ranked():
            first = self.ranks[worker.name] == 0
            if first:
                rows = [{"step": float(at), "time_s": world.wall_s(worker.manager.process), "loss": 1.0}
                        for at in {before + 1, self.step}]  # fmt: skip
                speed = (self.step - before) * 10 / BEAT_S
                worker.say(wire.Progress(self.generation, self.step, behaviour.steps, 0, speed, behaviour.step_s, rows))
            elif self._beats % QUIET_BEATS == 0:
                worker.say(wire.Progress(self.generation, self.step, behaviour.steps))
        if self._beats % 2 == 0:
            world.durable[self.job] = max(self.step, world.durable.get(self.job, 0))

    def _finish(self) -> None:
        self._stop_acting()
        self._world.durable[self.job] = self.step
        for worker in self._ranked():
            worker.say(wire.Finished(self.generation, self.step, {"loss": 1.0}))
            worker.exit_soon(code=0)

    def _stop_acting(self) -> None:
        self.acting, self.over = False, True
        self.here.clear()
        self._world.truth.rests(self)

    def ask_to_leave(self, leave: wire.Leave) -> None:
        """All leave together at the next step."""
        if not self._leave_asked:
            self._leave_asked = True
            world = self._world
            world.loop.within(world.process, world.chance.uniform(*self.leaves_s), self._leave, leave)

    def _leave(self, leave: wire.Leave) -> None:
        if not self.acting:
            return
        self._stop_acting()
        if leave.snapshot:
            self._world.durable[self.job] = max(self.step, self._world.durable.get(self.job, 0))
        self.over = False  # it may be resumed
        self.decisions = Decisions()
        for worker in self._ranked():
            worker.left(leave, self)
        self.resumed += 1

    def gone(self, worker: SimWorker) -> None:
        """It ended, or gave up waiting: nobody of this generation takes another step."""
        if self.acting:
            self._stop_acting()
        elif not self.resumed:
            self.over = True
            return  # the others wait until they are called away
        self.over = True
        for peer in self._ranked():
            if peer is not worker:
                world = self._world
                world.loop.within(peer.process, world.chance.uniform(*self.notices_s), peer.notice, self)


class SimWorker:
    """One worker: what its node holds of it, and its process."""

    def __init__(self, manager: Manager, job: str, name: str, device: int, demand: Mapping[str, float]) -> None:
        self.manager, self.job, self.name, self.device, self.demand = manager, job, name, device, demand
        self.generation, self.phase = 0, "starting"
        self.started = self.leaving = self.ended = self.looks = False
        self.finished_s: float | None = None  # when its node heard so
        self.gone = asyncio.Event()
        self.cause: str | None = None
        self.early: list[wire.ToWorker] = []
        self.environment: Mapping[str, str] = {}
        self.started_s = 0.0
        world = self._world = manager.world
        self.process = Process(f"{manager.name}/{job}/{name}")
        self.behaviour: Behaviour = world.behaviours[job]
        self.state, self.called, self.step = "loading", 0, 0
        self.inbox: list[wire.ToWorker] = []
        self.kept_back: list[wire.ToWorker] = []  # until the generation is resumed
        self.meeting: Meeting | None = None
        self.former: tuple[Meeting, Resumption] | None = None  # left in order, and perhaps resumed
        self.resumed = False  # whether the present one was left before
        self.left_generation = 0  # that it left in order, and has not been called from since

    @property
    def key(self) -> tuple[str, str]:
        return self.job, self.name

    @property
    def finished(self) -> bool:
        return self.finished_s is not None

    @property
    def finished_ago_s(self) -> float | None:
        return None if self.finished_s is None else self._world.loop.now_s - self.finished_s

    def __repr__(self) -> str:
        return f"{self.job}/{self.name} on {self.manager.name}"

    # ------------------------------------------------------------ the process

    def start(self) -> None:
        self.started, self.started_s = True, self._world.loop.now_s
        self._world.truth.started(self)
        load_s = self.behaviour.load_s * self._world.chance.uniform(0.5, 1.5)
        self._world.loop.within(self.process, load_s, self._loaded)

    def _loaded(self) -> None:
        match self.behaviour.fault:
            case "segfault-at-start":
                self.crash(signal=11)
            case "exit-at-start":
                self.crash(code=7)
            case "raises-at-start":
                self.raises("ValueError: no such column")
            case _ if self.behaviour.training:
                self.state = "idle"
                at = crc32(f"{self._world.seed}/{self.job}".encode()) % len(_GLANCES)
                seen = _GLANCES[at] if self.looks and self._world.glances else None
                self.say(wire.Ready(self.behaviour.steps * 10, 1, 10, 10, glance=seen))
                self.follow()
            case _:
                self.state = "training"
                self._world.commands.come(self)

    def say(self, body: wire.FromWorker) -> None:
        self._world.loop.within(self.manager.process, LINE_S, self.manager.heard, self, body)

    def hear(self, message: wire.ToWorker) -> None:
        self.inbox.append(message)
        self.follow()

    def follow(self) -> None:
        """Do what was said, as far as it can be done now."""
        while self.state == "idle" and self.inbox:
            message = self.inbox.pop(0)
            if not self._may_follow(message):
                continue
            match message:
                case wire.Quit():
                    self.exit_soon(code=0)
                case wire.Join() as join if join.generation > self.called:
                    self._join(join)
                case wire.Leave() as leave if leave.generation >= self.called:
                    self.called = leave.generation
                    self.left(leave)
                case _:
                    pass
        if self.state == "training" and self.meeting is not None:
            for message in self.inbox:
                if isinstance(message, wire.Leave) and message.generation == self.called:
                    self.meeting.ask_to_leave(message)
        if self.state in ("meeting", "training"):
            calls = [m for m in self.inbox if isinstance(m, wire.Join) and m.generation > self.called]
            away = [m for m in calls if must_follow_join(m, self.called, resumed=self.resumed)]
            self.inbox = [m for m in self.inbox if m not in calls or m in away]  # it refuses the others
            if away or any(isinstance(message, wire.Quit) for message in self.inbox):
                self._break_off()

    def _may_follow(self, message: wire.ToWorker) -> bool:
        """Whether the generation that was left is over, or this message does not end it (``training/worker.py``)."""
        if self.former is None or self.former[1].decided_to_leave:
            return True
        resumption = self.former[1]
        match message:
            case wire.Join(generation=generation, breaks=breaks) if generation > self.called:
                over = resumption.decide_to_leave() or breaks >= self.called
            case wire.Leave(generation=generation) as leave if generation > self.called or _ends_some(leave):
                over = resumption.decide_to_leave()
            case wire.Quit():
                over = resumption.decide_to_leave()
            case _:
                return True
        if over:
            self.former = None
        elif not isinstance(message, wire.Join):
            self.kept_back.append(message)
        return over

    def _ask_to_resume(self, former: tuple[Meeting, Resumption]) -> None:
        meeting, resumption = former
        if self.former is not former or self.state != "idle" or resumption.decided_to_leave:
            return
        if not resumption.should_resume():
            self._world.loop.within(self.process, resumption.pause_s, self._ask_to_resume, former)
            return
        self.former, self.resumed, self.left_generation = None, True, 0
        self.state, self.meeting = "meeting", meeting
        self.inbox, self.kept_back = [*self.kept_back, *self.inbox], []
        self.say(wire.Joined(self.called, self.step, resumed=True))
        if meeting.over:
            self.notice(meeting)
        else:
            meeting.come(self)

    def _join(self, join: wire.Join) -> None:
        self.called, self.left_generation, self.resumed, self.former = join.generation, 0, False, None
        if self.name not in join.ranks:
            return
        self._world.truth.met(self.job, join.generation, join.rendezvous, self.name)
        self.state = "meeting"
        self.meeting = self._world.meeting(self.job, join)
        self._world.loop.within(self.process, join.silence_s, self._waited, self.meeting)
        self.meeting.come(self)
        if self.state == "meeting":
            self.follow()

    def _waited(self, meeting: Meeting) -> None:
        if self.state == "meeting" and self.meeting is meeting:
            self._break_off()

    def notice(self, meeting: Meeting) -> None:
        """A peer is gone."""
        if self.state in ("training", "meeting") and self.meeting is meeting:
            self._break_off()

    def _break_off(self) -> None:
        meeting, self.meeting = self.meeting, None
        self.state, self.left_generation = "idle", 0
        if meeting is not None:
            meeting.gone(self)
        self.say(wire.Broken(self.called, self.step, "a peer is gone"))
        self._world.loop.within(self.process, 0.0, self.follow)

    def left(self, leave: wire.Leave, meeting: Meeting | None = None) -> None:
        """In order: together with all others, or alone where the generation was over already."""
        self.state, self.meeting = "idle", None
        if meeting is not None and not _ends_some(leave):
            size, clock = len(meeting.ranks), self._world.loop.time
            store = meeting.decisions if size > 1 else None
            wait_s = patience_s(meeting.resumed)
            self.former = meeting, Resumption(store, meeting.ranks[self.name], size, wait_s, clock)
            self._world.loop.within(self.process, self.former[1].pause_s, self._ask_to_resume, self.former)
        self.left_generation = leave.generation
        self.inbox = [m for m in self.inbox if not (isinstance(m, wire.Leave) and m == leave)]
        self.say(wire.Left(leave.generation, self.step, leave.snapshot))
        if leave.snapshot or self.name in leave.exits:
            self.exit_soon(code=0)
        else:
            self._world.loop.within(self.process, 0.0, self.follow)

    def raises(self, error: str) -> None:
        """It says so and ends, unless it has ended already."""
        if self.ended or self.state == "over":
            return
        meeting, self.meeting = self.meeting, None
        if meeting is not None:
            meeting.gone(self)
        self.say(wire.Raised(error=error))
        self.exit_soon(code=1)

    def exit_soon(self, code: int) -> None:
        self.state = "over"
        self._world.loop.within(self.process, self._world.chance.uniform(0.02, 0.4), self.die, code, None)

    def crash(self, *, code: int | None = None, signal: int | None = None, cause: str | None = None) -> None:
        """End at once, in the midst of whatever it does."""
        self.cause = self.cause or cause
        self.die(code, 9 if cause else signal)

    def die(self, code: int | None, signal: int | None) -> None:
        """The process is gone; its node hears of it."""
        if self.ended or not self.started:
            return
        self.vanish()
        self._world.loop.within(self.manager.process, 2 * LINE_S, self.manager.bury, self, code, signal)

    def vanish(self) -> None:
        """The process is gone, and perhaps nobody is left to say so."""
        if self.ended:
            return
        self.ended = True
        self.process.kill()
        if self.started:
            self._world.truth.stopped(self)
        meeting, self.meeting = self.meeting, None
        if meeting is not None and self.state in ("training", "meeting"):
            meeting.gone(self)
        self.state = "over"
        self._world.commands.gone(self)


def _ends_some(leave: wire.Leave) -> bool:
    return leave.snapshot or bool(leave.exits)


class Commands:
    """Commands of several workers: they find each other at the address that each was given, or wait for ever."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._there: dict[tuple[str, int, str], dict[str, SimWorker]] = {}

    def come(self, worker: SimWorker) -> None:
        key = self._key(worker)
        there = self._there.setdefault(key, {})
        there[worker.name] = worker
        if len(there) == int(worker.environment.get("WORLD_SIZE", "1")):
            for rank, each in enumerate(there.values()):  # one after the other
                lasts_s = worker.behaviour.lasts_s * (1.0 + RANKS_APART * rank)
                self._world.loop.within(each.process, lasts_s, each.die, 0, None)

    def gone(self, worker: SimWorker) -> None:
        there = self._there.get(self._key(worker), {})
        if there.get(worker.name) is worker:
            del there[worker.name]

    def _key(self, worker: SimWorker) -> tuple[str, int, str]:
        address = f"{worker.environment.get('MASTER_ADDR')}:{worker.environment.get('MASTER_PORT')}"
        return worker.job, worker.generation, address
