"""Simulated machines and their node managers: what holds devices, starts workers, and speaks the wire's protocol.

The line to the leader (:class:`LeaderLine`: refuses older epochs) and the :class:`Outbox` (numbered events, kept until
acknowledged) are the real ones; processes, sandboxes and clocks are not.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fairlead import wire
from fairlead.agent.embedded.node_records import NodeRecord
from fairlead.agent.embedded.node_shapes import NodeShape
from fairlead.agent.node import processes
from fairlead.agent.node.device_slots import NoRoom, check_room, full_demand
from fairlead.agent.node.leader_line import LeaderLine
from fairlead.agent.node.outbox import Outbox
from fairlead.errors import LostLeadership, Unavailable
from tests.storm.simulated_network import FROM, TO, End
from tests.storm.simulated_workers import LINE_S, SimWorker
from tests.storm.virtual_loop import Process

if TYPE_CHECKING:
    from tests.storm.world import World

TELEMETRY_S = 3.0
LEASE_S = 20.0
"""A machine that nothing reaches ends its workers itself after so long; before that it cannot be fenced from afar."""

LINGER_S = 1.0

_PHASES = {wire.Ready: "ready", wire.Joined: "joined", wire.Left: "left", wire.Broken: "broken",
           wire.Finished: "finished"}  # fmt: skip


class Machine:
    """One machine: it outlives its node managers."""

    def __init__(self, world: World, shape: NodeShape) -> None:
        self.world, self.name, self.shape = world, shape.name, shape
        self.up = True
        self.manager: Manager | None = None
        self.record: tuple[NodeRecord, Manager] | None = None
        self.clock_off_s = self.booted_s = 0.0
        self.fence_trouble = False
        self.newest_epoch = 0  # of any command that arrived here
        self.alone_since_s: float | None = None

    def start(self, epoch: int) -> None:
        """Fork a node manager for the leader of this epoch."""
        if not self.up or self.alone_since_s is not None:
            raise Unavailable(f"{self.name} does not answer")
        if self.manager is not None and self.manager.process.alive:
            return
        self.manager = Manager(self, epoch)
        self.world.trace("node-starts", self.name, epoch)

    def found(self) -> NodeRecord | None:
        """What is written down about the node manager that was started last."""
        if self.record is None:
            return None
        record, manager = self.record
        return NodeRecord(record.node, record.incarnation, manager.control.epoch, record.process, record.capacity,
                          isolation="sandbox")  # fmt: skip

    def fence(self, epoch: int | None) -> None:
        """Make sure that nothing lives here; raises while that cannot be known."""
        record = self.found()
        if record is not None and epoch is not None and record.epoch > epoch:
            raise LostLeadership(f"{self.name} is led by epoch {record.epoch}, not {epoch}")
        if self.fence_trouble:
            raise OSError(28, "No space left on device")
        if self.alone_since_s is not None and self.manager is not None and self.manager.process.alive:
            raise Unavailable(f"{self.name} is not reached, and its lease has not run out")
        self.die("fenced")
        self.record = None

    def die(self, why: str) -> None:
        """All of its processes end at once."""
        manager, self.manager = self.manager, None
        if manager is not None:
            self.world.trace("node-dies", self.name, why)
            manager.die()

    # ------------------------------------------------------------ alone

    def fall_silent(self, directions: set[str]) -> None:
        self.world.network.weather[self.name].silent |= directions
        if self.alone_since_s is None and self.manager is not None:
            self.alone_since_s = self.world.loop.now_s
            self.world.loop.within(self.world.process, LEASE_S, self._lease_over, self.alone_since_s)
        elif self.alone_since_s is None:
            self.alone_since_s = self.world.loop.now_s

    def _lease_over(self, since_s: float) -> None:
        if self.alone_since_s == since_s:
            self.die("its lease ran out")

    def clear_up(self) -> None:
        self.alone_since_s, self.fence_trouble, self.up = None, False, True
        self.world.network.clear_up(self.name)
        if self.manager is not None and self.manager.process.stopped:
            self.world.loop.resume(self.manager.process)

    @property
    def busy(self) -> bool:
        """Whether any worker is there."""
        return self.manager is not None and bool(self.manager.workers)

    @property
    def well(self) -> bool:
        """Whether a leader that tries can speak with it."""
        weather = self.world.network.weather[self.name]
        manager = self.manager
        return (self.up and manager is not None and manager.process.alive and not manager.process.stopped
                and not weather.silent)  # fmt: skip


class Manager:
    """One node manager, from its start to its end."""

    def __init__(self, machine: Machine, epoch: int) -> None:
        world = self.world = machine.world
        self.machine, self.name = machine, machine.name
        world.incarnations += 1
        self.incarnation = f"{machine.name}#{world.incarnations}"
        self.process = Process(self.incarnation, machine.clock_off_s, machine.booted_s)
        self.capacity: Mapping[str, float] = machine.shape.capacity()
        self.outbox = Outbox()
        self.control = LeaderLine(epoch, self._answer, self.outbox, lambda: None)
        self.workers: dict[tuple[str, str], SimWorker] = {}
        self.unheard: dict[int, float] = {}  # numbers of events that nobody has acknowledged, and since when
        pid = 1000 + world.incarnations
        world.pids[pid] = self.process
        record = NodeRecord(machine.name, self.incarnation, epoch, processes.Process(pid, pid), dict(self.capacity))
        machine.record = record, self
        self._telemetry_later()

    def die(self) -> None:
        self.process.kill()
        self.world.gone_s[self.incarnation] = self.world.loop.now_s
        for worker in list(self.workers.values()):
            worker.vanish()
            self.world.holdings.ends(worker)
        self.world.network.died(self.process)

    def serve(self, end: End) -> None:
        """A leader has connected."""
        self.world.loop.create_task(self.control.serve(end.reader, end), context=self.process.context)

    def _telemetry_later(self) -> None:
        self.world.loop.within(self.process, TELEMETRY_S, self._telemetry)

    def _telemetry(self) -> None:
        self._telemetry_later()
        if self.control.connected:
            now_s = self.world.loop.now_s
            used = [wire.WorkerUsage(one.job, one.name, round(0.9 * (now_s - one.started_s), 3), 1 << 28)
                    for one in self.workers.values() if one.started and not one.ended]  # fmt: skip
            self.control.push(wire.Event(0, time.time(), wire.Telemetry(0.5, 1 << 30, used, warm=True)))

    # ------------------------------------------------------------ what the leader asks

    def _answer(self, request: wire.Request) -> wire.Reply | asyncio.Future[wire.Reply]:
        body = request.body
        self.world.truth.commanded(self, request)
        match body:
            case wire.Start():
                return self._start(request.id, body)
            case wire.Tell():
                for worker in self._named(body.job, body.workers):
                    self._tell(worker, body.message)
            case wire.Stop():
                for worker in self._named(body.job, body.workers):
                    self._stop(worker, body.grace_s)
            case wire.Release():
                return self.world.loop.create_task(self._release(request.id, body), context=self.process.context)
            case wire.Acknowledge():
                self.outbox.acknowledge(body.sequence)
                self.unheard = {number: at for number, at in self.unheard.items() if number > body.sequence}
            case wire.Status():
                return wire.Reply(request.id, status=self._status(), sent_s=time.monotonic())
            case wire.Shutdown():
                self.machine.die("told to")
            case _:
                pass
        return wire.Reply(request.id)

    def _named(self, job: str, names: list[str]) -> list[SimWorker]:
        return [self.workers[job, name] for name in names if (job, name) in self.workers]

    def _start(self, number: int, body: wire.Start) -> wire.Reply:
        wanted = {name: device for name, device in body.workers.items() if (body.job, name) not in self.workers}
        staying = [worker for worker in self.workers.values() if not worker.finished]
        try:
            check_room(self.capacity, staying, wanted, body.demand)
        except NoRoom as error:
            return wire.Reply(number, error=str(error), code="no-room")
        for name, device in wanted.items():
            worker = SimWorker(self, body.job, name, device, full_demand(body.demand, self.capacity))
            self.workers[worker.key] = worker
            worker.generation, worker.environment = body.generation, body.environment.get(name, {})
            worker.looks = body.worker.looks == name
            self.world.holdings.begins(worker)
        self._submit()
        return wire.Reply(number)

    def _submit(self) -> None:
        """Start what waits, where the process that had its seat is gone."""
        for worker in list(self.workers.values()):
            if worker.phase == "starting" and not worker.started:
                before = [other for other in self.workers.values()
                          if other.started and not other.gone.is_set() and other.device == worker.device]  # fmt: skip
                if not before:
                    worker.start()
                    if not worker.behaviour.training:  # nobody speaks for a command but its node
                        self.world.loop.within(self.process, worker.behaviour.load_s, self._command_ready, worker)
                for other in before:
                    if other.finished:
                        self.world.loop.within(self.process, LINGER_S, other.die, None, 9)

    def _command_ready(self, worker: SimWorker) -> None:
        if not worker.gone.is_set() and worker.phase == "starting":
            self._say(worker, wire.Ready())
            early, worker.early = worker.early, []
            for message in early:
                self._tell(worker, message)

    def _tell(self, worker: SimWorker, message: wire.ToWorker) -> None:
        if worker.phase == "gone":
            return
        if worker.behaviour.training:
            self.world.loop.within(worker.process, LINE_S, worker.hear, message)
        elif worker.phase == "starting":
            worker.early.append(message)
        elif isinstance(message, wire.Join):
            worker.generation = message.generation
            self._say(worker, wire.Joined(message.generation, 0))
        elif not worker.leaving:
            worker.leaving = True
            self._stop(worker, 5.0)

    def _stop(self, worker: SimWorker, grace_s: float) -> None:
        if worker.phase == "gone":
            return
        worker.cause = worker.cause or "stopped"
        if not worker.started:
            self._end(worker, wire.Exited(code=None, cause=worker.cause))
        else:
            number = 15 if grace_s > 0 else 9
            within_s = self.world.chance.uniform(0.01, min(grace_s, 1.0) or 0.1)
            self.world.loop.within(self.process, within_s, worker.die, None, number)

    async def _release(self, number: int, body: wire.Release) -> wire.Reply:
        workers = self._named(body.job, body.workers)
        living = [worker for worker in workers if worker.phase != "gone"]
        for worker in living:
            self._stop(worker, 0.0)
        for worker in living:
            await worker.gone.wait()
        for worker in workers:
            if self.workers.pop(worker.key, None) is not None:
                self.world.holdings.ends(worker)
        return wire.Reply(number)

    def _status(self) -> wire.NodeStatus:
        told = [wire.WorkerStatus(one.job, one.name, one.device, one.generation, one.phase, one.finished_ago_s)
                for one in self.workers.values()]  # fmt: skip
        return wire.NodeStatus(
            self.name, self.incarnation, self.control.epoch, dict(self.capacity), "cpu", told, True, "sandbox",
            self.outbox.last, wire.PROTOCOL,
        )  # fmt: skip

    # ------------------------------------------------------------ what workers say

    def heard(self, worker: SimWorker, body: wire.FromWorker) -> None:
        if worker.gone.is_set():
            return
        if isinstance(body, wire.Joined):
            worker.generation = body.generation
        self._say(worker, body)

    def _say(self, worker: SimWorker, body: wire.FromWorker | wire.Exited) -> None:
        worker.phase = _PHASES.get(type(body), worker.phase)
        if isinstance(body, wire.Finished) and worker.finished_s is None:
            worker.finished_s = self.world.loop.now_s
        event = self.outbox.add(time.time(), worker.job, worker.name, body, time.monotonic())
        if not isinstance(body, wire.Progress | wire.Snapshot):
            self.world.truth.stir(worker.job)
        self.unheard[event.sequence] = self.world.loop.now_s
        self.world.trace("says", self.name, worker.job, worker.name, type(body).__name__,
                         getattr(body, "generation", ""))  # fmt: skip
        self.control.push(event)

    def bury(self, worker: SimWorker, code: int | None, signal: int | None) -> None:
        """Its process is gone."""
        command = not worker.behaviour.training
        if command and worker.leaving:
            self._say(worker, wire.Left(worker.generation, 0))
        elif command and code == 0 and worker.cause is None:
            self.world.ends.ended_well(worker)
            self._say(worker, wire.Finished(worker.generation, 0))
        self._end(worker, wire.Exited(code, signal, worker.cause))
        self._submit()

    def _end(self, worker: SimWorker, exited: wire.Exited) -> None:
        if not worker.gone.is_set():
            self._say(worker, exited)
            worker.phase = "gone"
            worker.gone.set()
            self.world.holdings.ends(worker)


SILENT_BOTH, SILENT_TO, SILENT_FROM = {TO, FROM}, {TO}, {FROM}
