"""What befalls the world: each fault is a method that draws its own size, and the seed says when which one comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from fairlead import wire
from fairlead.cluster import NodeState
from fairlead.control.reconcile.failpoints import NAMES
from fairlead.control.store import nodes
from tests.storm.simulated_agents import SILENT_BOTH, SILENT_FROM, SILENT_TO, Machine
from tests.storm.simulated_store import TENANTS
from tests.storm.simulated_workers import SimWorker

if TYPE_CHECKING:
    from tests.storm.workload import Clients
    from tests.storm.world import World

LEAST, MOST = 10, 22
LOST_STARTS = 4  # in seeds with gangs over several nodes
POINTS = sorted(NAMES - {"submit-stored", "pipeline-submitted", "pipeline-stored", "lease-taken"})
NONSENSE = (
    wire.Ready(-1, -1, -1), wire.Progress(1, 2**62, 5), wire.Progress(1, 1, 10, steps=[{"step": 1.0, "time_s": 1e308}]),
    wire.Ready(10, 1, 10, 10, glance=wire.Glance(0.0, 0.0, 0.0)), wire.Profiled({"batch_size": 2**31}),
    wire.Finished(1, -4, {"x" * 600: 1.0}), wire.Snapshot(1, 1, "disk", -5, -1.0), wire.Raised(error="\x1b]0;x\x07"),
)  # fmt: skip


class Storm:
    """All faults of one seed."""

    def __init__(self, world: World, clients: Clients) -> None:
        self._world, self._clients = world, clients
        self._chance, self._more = Random(f"{world.seed}/faults"), Random(f"{world.seed}/more-faults")
        self._kinds: list[tuple[int, Callable[[], None]]] = [
            (5, self.machine_dies), (5, self.manager_hangs), (4, self.partition), (6, self.line_is_cut),
            (6, self.message_is_lost), (3, self.slow_network), (3, self.doubled_messages), (3, self.flapping_lines),
            (4, self.leader_dies), (4, self.leader_dies_at_a_point), (4, self.leader_is_paused),
            (3, self.leader_dies_in_a_change), (4, self.store_is_slow), (3, self.workers_crash_in_turn),
            (4, self.store_is_silent), (4, self.answers_of_the_store_are_lost), (3, self.clock_is_set),
            (3, self.worker_says_nonsense), (3, self.worker_says_odd_things), (5, self.worker_crashes),
            (2, self.job_is_cancelled), (6 if world.sleep_after_s else 2, self.cannot_fence),
            (1, self.worker_chatters), (2, self.node_is_drained),
        ]  # fmt: skip

    def plan(self, until_s: float) -> None:
        """Set all faults on their times."""
        chance, world = self._chance, self._world
        weights = [weight * chance.choice((0, 1, 1, 3)) for weight, _ in self._kinds]  # each seed has its own climate
        kinds = [kind for _, kind in self._kinds]
        for _ in range(chance.randrange(LEAST, MOST)):
            kind = chance.choices(kinds, weights)[0] if any(weights) else chance.choice(kinds)
            world.faults += 1
            world.loop.within(world.process, chance.uniform(3.0, until_s), self._strike, kind)
        for _ in range(LOST_STARTS if world.more.wide else 0):
            world.loop.within(world.process, self._more.uniform(3.0, until_s), self._strike, self.start_is_lost)
        if world.more.many_cancelled:
            world.loop.within(world.process, self._more.uniform(20.0, until_s), self._strike, self.many_are_cancelled)

    def _strike(self, kind: Callable[[], None]) -> None:
        self._world.trace("fault", kind.__name__)
        kind()

    def _later(self, after_s: float, what: Callable[[], object]) -> None:
        self._world.loop.within(self._world.process, after_s, what)

    def _machine(self, what: str, among: Collection[str] = ()) -> Machine:
        machine = self._world.machines[self._chance.choice(sorted(among or self._world.machines))]
        self._world.truth.disturb_node(machine.name, what)
        self._world.trace("befalls", machine.name)
        return machine

    def _worker(self) -> SimWorker | None:
        found = [worker for worker in self._world.workers() if worker.started and not worker.ended]
        return self._chance.choice(found) if found else None

    # ------------------------------------------------------------ machines

    def machine_dies(self) -> None:
        machine = self._machine("died:")
        machine.up = False
        machine.die("its power is off")
        self._later(self._chance.uniform(0.5, 25.0), machine.clear_up)

    def manager_hangs(self) -> None:
        """SIGSTOP: its workers go on, and later all answers come."""
        machine = self._machine("hung:")
        manager = machine.manager
        if manager is None or manager.process.stopped:
            return
        manager.process.stopped = True
        if self._chance.random() < 0.4:
            self._world.network.cut_all(machine.name)
        self._later(self._chance.choice((1.0, 5.0, 9.0, 20.0)) * self._chance.uniform(0.8, 1.2),
                    lambda: self._world.loop.resume(manager.process) if manager.process.alive else None)  # fmt: skip

    def partition(self) -> None:
        machine = self._machine("cut off:")
        machine.fall_silent(self._chance.choice((SILENT_BOTH, SILENT_BOTH, SILENT_TO, SILENT_FROM)))
        self._later(self._chance.uniform(1.0, 28.0), machine.clear_up)

    def cannot_fence(self) -> None:
        """Where nodes are let sleep, one that is about to be: its processes cannot be ended either."""
        sleep_after_s = self._world.sleep_after_s
        awake = [name for name, machine in self._world.machines.items() if machine.well]
        idle = [name for name in awake if not self._world.machines[name].busy]
        machine = self._machine("cannot be fenced:", (idle or awake) if sleep_after_s else ())
        machine.fence_trouble = True
        if not sleep_after_s and self._chance.random() < 0.5:
            machine.die("the kernel killed it")
        lasts_s = self._chance.uniform(2.0, 12.0) + 2 * (sleep_after_s or 0.0)
        self._later(lasts_s, machine.clear_up)

    def node_is_drained(self) -> None:
        machine = self._machine("drained:")
        state = self._chance.choice((NodeState.CORDONED, NodeState.DRAINING))
        self._later(0.0, lambda: self._wish(machine.name, state))
        self._later(self._chance.uniform(5.0, 25.0), lambda: self._wish(machine.name, NodeState.READY))

    def _wish(self, node: str, state: NodeState) -> asyncio.Task[None]:
        asked = self._clients.asked(lambda _, connection: nodes.set_state(connection, node, state), "")
        return self._world.loop.create_task(asked)

    # ------------------------------------------------------------ the network

    def line_is_cut(self) -> None:
        machine = self._machine("line cut:")
        self._world.network.cut_all(machine.name)

    def message_is_lost(self) -> None:
        """The next message in one direction, and its line with it: a command, or only its answer."""
        machine = self._machine("message lost:")
        kind = self._chance.choice((b"", b"start", b"start", b"start", b"tell", b"release"))
        self._world.network.weather[machine.name].lose_next = self._chance.choice(("to", "from", "from")), kind

    def start_is_lost(self) -> None:
        """One node does not hear that it is to start its part of a gang; others have."""
        machine = self._world.machines[self._more.choice(sorted(self._world.machines))]
        self._world.truth.disturb_node(machine.name, "start lost:")
        self._world.network.weather[machine.name].lose_next = "to", b"start"

    def slow_network(self) -> None:
        machine = self._machine("slow:")
        weather = self._world.network.weather[machine.name]
        weather.slow_s = self._chance.choice((0.5, 2.0, 4.0))
        self._later(self._chance.uniform(2.0, 20.0), lambda: setattr(weather, "slow_s", 0.0))

    def doubled_messages(self) -> None:
        machine = self._machine("doubled:")
        weather = self._world.network.weather[machine.name]
        weather.doubled = 0.5
        self._later(self._chance.uniform(5.0, 30.0), lambda: setattr(weather, "doubled", 0.0))

    def flapping_lines(self) -> None:
        """The line is cut, and so are the next ones at their first message."""
        machine = self._machine("flaps:")
        self._world.network.weather[machine.name].cut_connects = self._chance.randrange(1, 6)
        self._world.network.cut_all(machine.name)

    # ------------------------------------------------------------ the leader and its store

    def leader_dies(self) -> None:
        leader = self._world.supervisor.present
        if leader is not None:
            self._world.supervisor.kill(leader)

    def leader_dies_at_a_point(self) -> None:
        point = self._chance.choice(POINTS)
        of_pipelines = self._world.more.pipeline and self._more.random() < 0.5
        self._world.supervisor.kill_at = "pipeline-stored" if of_pipelines else point

    def leader_dies_in_a_change(self) -> None:
        """Of a generation, and nobody leads for a while."""
        self._world.supervisor.kill_at = self._chance.choice(("leave-told", "join-stored", "leave-told", "leave-told"))
        self._world.supervisor.away_s = (12.0, 22.0)

    def leader_is_paused(self) -> None:
        """SIGSTOP: another one may take over, and this one comes back as if nothing had been."""
        leader, world = self._world.supervisor.present, self._world
        if leader is None:
            return
        leader.process.stopped = True
        world.supervisor.unsteady()
        for_s = self._chance.choice((1.0, 4.0, 12.0)) * self._chance.uniform(0.8, 1.2)
        world.supervisor.struck_s = max(world.supervisor.struck_s, world.loop.now_s + for_s)
        world.supervisor.start_later(0.5)
        self._later(for_s, lambda: world.supervisor.resumed(leader))

    def store_is_silent(self, for_s: float | None = None) -> None:
        world = self._world
        world.trouble.silent = True
        world.supervisor.unsteady()
        if for_s is None:
            for_s = self._chance.choice((0.3, 2.0, 8.0)) * self._chance.uniform(0.8, 1.2)
        self._later(for_s, world.supervisor.store_is_well)

    def store_is_slow(self) -> None:
        world = self._world
        world.trouble.slow_s = self._chance.choice((0.2, 0.5, 1.0))
        world.supervisor.unsteady()
        self._later(self._chance.uniform(5.0, 25.0), world.supervisor.store_is_well)

    def answers_of_the_store_are_lost(self) -> None:
        """Commits are made and their callers are told that they were not."""
        self._world.trouble.unanswered += self._chance.randrange(1, 4)

    def clock_is_set(self) -> None:
        world = self._world
        if self._chance.random() < 0.3 and (leader := world.supervisor.present) is not None:
            leader.process.clock_off_s = self._chance.uniform(-2.0, 2.0)
            return
        machine = world.machines[self._chance.choice(sorted(world.machines))]
        machine.clock_off_s = self._chance.uniform(-4000.0, 4000.0)
        if machine.manager is not None:
            machine.manager.process.clock_off_s = machine.clock_off_s

    # ------------------------------------------------------------ workers and their tenants

    def worker_says_nonsense(self) -> None:
        worker = self._worker()
        if worker is not None and worker.behaviour.training:
            self._blame(worker, "nonsense")
            worker.say(self._chance.choice(NONSENSE))

    def worker_says_odd_things(self) -> None:
        """Well-formed and untrue: of other generations, or of what never was."""
        worker = self._worker()
        if worker is None or not worker.behaviour.training:
            return
        self._blame(worker, "odd")
        number = max(0, worker.called + self._chance.choice((-1, 0, 1, 90)))
        worker.say(self._chance.choice((
            wire.Joined(number, 3), wire.Left(number, 3), wire.Broken(number, 3), wire.Ready(100, 1, 10, 10),
            wire.Progress(number, 3, 100), wire.Snapshot(number, 3, "disk", 5, 0.1), wire.Finished(number, 3),
        )))  # fmt: skip

    def worker_chatters(self) -> None:
        """While nothing can be stored, and again while the leader is still at the first of it."""
        worker = self._worker()
        if worker is None or not worker.behaviour.training:
            return

        def chatter() -> None:
            for step in range(500):
                worker.say(wire.Snapshot(max(1, worker.called), step % 3, "memory", 10, 0.01))

        self._world.truth.disturb(worker.job, "chatters")
        self.store_is_silent(4.0)
        chatter()
        self._later(1.5, chatter)

    def worker_crashes(self) -> None:
        worker = self._worker()
        if worker is None:
            return
        how = self._chance.choice(("killed", "segfault", "memory", "exit", "peers", "peers"))
        self._blame(worker, how)
        match how:
            case "killed":
                worker.crash(signal=9)
            case "segfault":
                worker.crash(signal=11)
            case "memory":
                worker.crash(cause="out-of-memory")
            case "peers":
                self._crash_and_raise(worker)
            case _:
                worker.crash(code=3)

    def _crash_and_raise(self, worker: SimWorker) -> None:
        """Its peers raise at about the same time, and end; to store that takes a moment."""
        trouble = self._world.trouble
        if not trouble.slow_s:
            trouble.slow_s = 0.05
            self._later(1.0, lambda: setattr(trouble, "slow_s", 0.0) if trouble.slow_s == 0.05 else None)
        for peer in self._world.workers_of(worker.job):
            if peer is not worker and peer.behaviour.training:
                self._later(self._chance.uniform(0.0, 0.03), partial(peer.raises, "ConnectionError: a peer is gone"))
        worker.crash(signal=11)

    def workers_crash_in_turn(self) -> None:
        """Workers of one job are killed every few seconds."""
        worker = self._worker()
        if worker is None:
            return
        job, chance = worker.job, self._chance

        def again() -> None:
            found = self._world.workers_of(job)
            if found:
                victim = chance.choice(found)
                self._blame(victim, "killed")
                victim.crash(signal=9)

        for turn in range(3):
            self._later(4.0 * turn + chance.uniform(0.0, 4.0), again)

    def _blame(self, worker: SimWorker, what: str) -> None:
        self._world.trace("blames", worker, what)
        self._world.truth.jobs[worker.job].blamed.append(what)
        self._world.truth.disturb(worker.job, what)

    def job_is_cancelled(self) -> None:
        name = self._chance.choice(sorted(self._world.behaviours))
        self._world.trace("cancels", name)
        self._world.loop.create_task(self._clients.cancel(name))

    def many_are_cancelled(self) -> None:
        tenant = self._more.choice(TENANTS)
        self._world.trace("cancels all of", tenant)
        self._world.loop.create_task(self._clients.cancel_all(tenant))

    # ------------------------------------------------------------ the end

    def end(self) -> None:
        """From now on all is well."""
        world = self._world
        world.supervisor.kill_at = None
        world.supervisor.store_is_well()
        world.trouble.unanswered = 0
        for _, machine in sorted(world.machines.items()):
            machine.clear_up()
            self._later(0.0, lambda machine=machine: self._wish(machine.name, NodeState.READY))  # type: ignore[misc]
        for leader in world.leaders:
            if leader.process.alive and leader.process.stopped:
                world.supervisor.resumed(leader)
        world.supervisor.start_later(0.1)
