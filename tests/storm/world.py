"""One simulated world, from a seed: its loop, machines, network, store and leaders, and the storm that goes over it."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fairlead import wire
from fairlead.agent.embedded.node_shapes import NodeShape
from fairlead.control.store import Store
from tests.storm.ends import Ends
from tests.storm.flows import Flows, stage_behaviour
from tests.storm.holdings import Holdings
from tests.storm.invariants import Truth
from tests.storm.leaders import Leader, Supervisor
from tests.storm.more import More
from tests.storm.simulated_agents import Machine
from tests.storm.simulated_network import Network, Weather
from tests.storm.simulated_store import Database, Trouble
from tests.storm.simulated_workers import Behaviour, Commands, Meeting, SimWorker
from tests.storm.virtual_loop import START_S, Process, VirtualLoop

_FIGURES = re.compile(r"(?<= )-?\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Wrong:
    """An invariant that did not hold."""

    at_s: float
    invariant: str
    text: str


class Behaviours(dict[str, Behaviour]):
    """What each job's own code does; of stages of pipelines it is drawn when it is first asked for."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed

    def __missing__(self, job: str) -> Behaviour:
        found = self[job] = stage_behaviour(Random(f"{self._seed}/{job}"), job)
        return found


@dataclass
class Report:
    """What one seed showed."""

    seed: int
    wrong: list[Wrong]
    digest: str
    virtual_s: float
    faults: int
    jobs: int
    lines: list[str] = field(default_factory=list)


class World:
    """All that is simulated."""

    def __init__(self, seed: int, database: Database, *, keep_trace: bool = False, plain: bool = False) -> None:
        """``plain``: without what :class:`More` brings."""
        self.seed, self.database = seed, database
        self.more = More() if plain else More.drawn(seed)
        self.glances = True  # workers look at models that nobody knows: for some, one worker is fastest
        self.loop = VirtualLoop(f"{seed}")
        self.chance = Random(f"{seed}/world")
        self.process = Process("world")
        self.network = Network(self.loop, Random(f"{seed}/network"), self.process)
        self.trouble = Trouble()
        self.machines: dict[str, Machine] = {}
        self.pids: dict[int, Process] = {}
        self.incarnations = 0
        self.behaviours: dict[str, Behaviour] = Behaviours(seed)
        self.durable: dict[str, int] = {}
        self.cancelled: set[str] = set()
        self.commands = Commands(self)
        self.gone_s: dict[str, float] = {}  # when node managers ended, by incarnation
        self.acted: dict[str, Meeting] = {}  # by job: the generation that acted last
        self.truth = Truth(self)
        self.flows, self.ends, self.holdings = Flows(self), Ends(self), Holdings(self)
        self.found: list[Wrong] = []
        self.figures: list[tuple[Any, ...]] = []
        self.leaders: list[Leader] = []
        self.supervisor = Supervisor(self)
        self.faults = 0
        self.over = False
        self._told: set[tuple[str, str]] = set()
        self.lines: list[str] = []
        self._digest = hashlib.sha256()
        self._keep_trace = keep_trace
        self._meetings: dict[tuple[str, int, str], Meeting] = {}
        database.renew()
        self.eye: sqlite3.Connection = database.look()
        self.sleep_after_s: float | None = None
        self.one_machine = True  # a dead leader's lease need not run out
        self.leaders_off_s = 2.0  # how far a leader's clock may be from the right one
        self.furnish()

    def furnish(self) -> None:
        """Draw the machines, and what the cluster is like."""
        sleepy = self.chance.random() < 0.25
        self.sleep_after_s = 6.0 if sleepy else None
        self.one_machine = self.chance.random() < 0.5
        for index in range(self.chance.choice((3, 3, 4))):
            devices = self.chance.choice((2, 2, 3))
            machine = self.machine(index, devices)
            machine.clock_off_s = self.chance.choice((0.0, 0.5, -3.0, 1200.0, -3600.0))
            machine.booted_s = self.chance.choice((5.0, 7_000.0, 3_000_000.0))

    def machine(self, index: int, devices: int) -> Machine:
        """One more machine with so many devices, each with a core and its memory."""
        shape = NodeShape(f"node-{index}", float(devices), devices * 4 << 30, devices)
        machine = self.machines[shape.name] = Machine(self, shape)
        self.network.weather[shape.name] = Weather()
        return machine

    # ------------------------------------------------------------ shared by the parts

    def trace(self, *facts: object) -> None:
        if self.over:  # what ends with the world ends in no order
            return
        line = f"{self.loop.now_s:.6f} {' '.join(map(str, facts))}"
        self._digest.update(line.encode())
        if self._keep_trace:
            self.lines.append(line)

    def wrong(self, invariant: str, text: str) -> None:
        """An invariant does not hold; told once, whatever the figures."""
        alike = invariant, _FIGURES.sub("#", text)
        if not self.over and alike not in self._told:
            self._told.add(alike)
            self.found.append(Wrong(self.loop.now_s, invariant, text))
            self.trace("WRONG", invariant, text)

    def wall_s(self, process: Process) -> float:
        return START_S + self.loop.now_s + process.clock_off_s

    def meeting(self, job: str, join: wire.Join) -> Meeting:
        key = job, join.generation, join.rendezvous
        if key not in self._meetings:
            self._meetings[key] = Meeting(self, job, join)
        return self._meetings[key]

    def workers(self) -> Iterator[SimWorker]:
        for _, machine in sorted(self.machines.items()):
            if machine.manager is not None:
                yield from machine.manager.workers.values()

    def last_meeting(self, job: str) -> Meeting | None:
        """The newest generation of which all were there."""
        return self.acted.get(job)

    def workers_of(self, job: str) -> list[SimWorker]:
        return [worker for worker in self.workers() if worker.job == job and worker.started and not worker.ended]

    def opened(self, process: Process) -> Store:
        delays = Random(f"{self.seed}/store/{process.name}")
        return self.database.opened(self.loop, lambda: self.wall_s(process), self.trouble, delays, self.truth.committed)

    def report(self) -> Report:
        return Report(
            self.seed, self.found, self._digest.hexdigest(), self.loop.now_s, self.faults, len(self.behaviours),
            self.lines,
        )  # fmt: skip

    def close(self) -> None:
        """Let go of everything without letting anything of it run on."""
        self.over = True
        self.eye.close()
        self.loop.end()
