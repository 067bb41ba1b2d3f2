"""Control planes as simulated processes: each opens the store, waits for the lease, and leads until it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unittest import mock

from fairlead import wire
from fairlead.control.accounting import usage_meter
from fairlead.control.pipelines import driver
from fairlead.control.pipelines.driver import Pipelines
from fairlead.control.pipelines.quarantine import PipelineQuarantine
from fairlead.control.plans.planner_process import InlinePlanner
from fairlead.control.plans.workload_signature import MeasuredUsage
from fairlead.control.reconcile import gang_executor, internal_errors, node_incarnations
from fairlead.control.reconcile import loop as loops
from fairlead.control.reconcile.internal_errors import run_forever
from fairlead.control.reconcile.loop import Controller
from fairlead.control.records import Job
from fairlead.control.retention import pruner
from fairlead.control.retention.pruner import Pruner
from fairlead.control.store import Store, row_deletion
from fairlead.control.store.retry import retry_until_available
from fairlead.errors import FairleadError, LostLeadership, Unavailable
from tests.storm.invariants import GONE_S, LEADS_WITHIN_S, MOST_INBOX
from tests.storm.local_seam import NOWHERE, simulated_backend
from tests.storm.more import KEPT_S, SimPlanner
from tests.storm.virtual_loop import PROCESS, Process

if TYPE_CHECKING:
    from tests.storm.world import World

LEASE_S = 3.0
RESTART_S = (0.5, 4.0)


class Killed(BaseException):
    """The process ended right here."""


def worker_order(world: World) -> Callable[[object, Job], wire.WorkerSpec]:
    def order(_: object, job: Job) -> wire.WorkerSpec:
        command = None if world.behaviours[job.id].training else ["true"]
        run = None if command else "train.py:training"
        return wire.WorkerSpec(job.id, job.tenant, None, run, command, {}, {}, None, None, 1.0)

    return order


def inbox_length(controller: Controller) -> int:
    """Events that wait in the leader's memory."""
    inbox: Any = controller._inbox
    return int(inbox.qsize()) if hasattr(inbox, "qsize") else len(inbox)


class Leader:
    """One control plane."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.process = Process(
            f"leader-{number}", world.chance.uniform(-world.leaders_off_s, world.leaders_off_s), 1e5 * number
        )
        self.store: Store | None = None
        self.controller: Controller | None = None
        self.running = False  # its controller is
        self.over = False
        self.leads_since_s: float | None = None
        self.task = world.loop.create_task(self._live(), context=self.process.context)

    @property
    def well(self) -> bool:
        return self.process.alive and not self.process.stopped and not self.over

    async def _live(self) -> None:
        try:
            await self._lead()
        except LostLeadership:
            self.world.trace("leads-no-more", self.process.name)
        except Exception as error:  # noqa: BLE001 (its edge: this is what the storm looks for)
            if not isinstance(error, Unavailable) or self.running:
                self.world.wrong("leader-ends", f"{self.process.name}: {type(error).__name__}: {error}")
            self.world.trace("leader-fails", self.process.name, error)
        finally:
            self.running, self.over = False, True
            self.world.network.died(self.process)
            self.world.supervisor.ended(self)

    async def _lead(self) -> None:
        world, process = self.world, self.process
        store = self.store = world.opened(process)

        async def take() -> int | None:
            gone: Any = world.supervisor.gone if world.one_machine else (lambda holder: False)
            return await store.acquire_lease(process.name, LEASE_S, is_dead=gone)

        while await retry_until_available(take, "taking the lease") is None:
            await asyncio.sleep(0.5)
        self.leads_since_s = world.loop.now_s
        world.trace("leads", process.name, store.epoch)
        renewing = asyncio.create_task(self._renew(store))
        prunes: list[asyncio.Task[None]] = []
        backend = simulated_backend([machine.shape for machine in world.machines.values()])
        try:
            await backend.open(store.epoch or 0)
            clock = lambda: world.wall_s(process)  # noqa: E731
            controller = self.controller = Controller(
                store, backend, worker_order(world), clock, sleep_after_s=world.sleep_after_s,
                planner=SimPlanner(world, world.more.planner) if world.more.planner else InlinePlanner(),
            )  # fmt: skip
            if world.more.pipeline:
                flows = Pipelines(store, clock, controller.nudge)
                controller.orchestrate = PipelineQuarantine(flows, store, clock).advance
            pruner = Pruner(store, NOWHERE, clock, controller)
            prunes += [asyncio.create_task(run_forever("pruning", pruner.run))] if world.more.prunes else []
            controller.gang_registry.measured_usage = MeasuredUsage(world.loop.time)
            controller.plans._curves._clock = world.loop.time
            self._count_looks(controller)
            self.running = True
            world.supervisor.steady()
            done, _ = await asyncio.wait(
                {renewing, asyncio.create_task(controller.run()), *prunes}, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
        finally:
            for task in (renewing, *prunes):
                task.cancel()
            await backend.close()

    async def _renew(self, store: Store) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 4)
            await retry_until_available(store.renew_lease, "renewing the lease")

    def _count_looks(self, controller: Controller) -> None:
        views: Any = controller._gang_tasks._views
        looked, usual, usual_each = self.world.truth.looked, views.view_of, views.views_of

        async def view_of(job: str) -> Any:
            looked(job)
            return await usual(job)

        async def views_of(jobs: Any) -> Any:
            for job in jobs:
                looked(job)
            return await usual_each(jobs)

        views.view_of, views.views_of = view_of, views_of

    # ------------------------------------------------------------ what befalls it

    def kill(self) -> None:
        self.running, self.over = False, True
        self.process.kill()
        self.world.network.died(self.process)

    def check(self) -> None:
        """What must hold of it at every moment."""
        world, now_s = self.world, self.world.loop.now_s
        if not self.well or self.leads_since_s is None:
            return
        if not self.running:
            if now_s - max(self.leads_since_s, world.supervisor.store_well_since_s) > LEADS_WITHIN_S:
                world.wrong("slow-to-lead", f"{self.process.name} has the lease since {self.leads_since_s:.1f} s")
            return
        controller = self.controller
        assert controller is not None
        if (waiting := inbox_length(controller)) > MOST_INBOX:
            world.wrong("inbox", f"{waiting} events wait in the leader's memory")
        for node in world.machines:
            if (lines := world.network.open_lines(self.process, node)) > 1:
                world.wrong("lines", f"{self.process.name} holds {lines} lines to {node}")


class Supervisor:
    """Sees to it that somebody leads, as an operator's init system would; ends processes at named places."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._numbers = 0
        self.kill_at: str | None = None  # the failpoint at which the leader ends next ...
        self.away_s = RESTART_S  # ... and how long nobody leads then
        self.store_well_since_s = 0.0
        self.struck_s = 0.0  # when the storm last kept the leader from leading, or the end of that

    def start(self) -> None:
        self._numbers += 1
        self._world.leaders.append(Leader(self._world, self._numbers))

    def start_later(self, after_s: float) -> None:
        world = self._world
        world.loop.within(world.process, after_s, self._start_if_needed)

    def _start_if_needed(self) -> None:
        if not any(leader.well for leader in self._world.leaders):
            self.start()

    def ended(self, leader: Leader) -> None:
        if self.present is None:
            self.unsteady()
        else:
            self.steady()
        self.start_later(self._world.chance.uniform(*RESTART_S))

    def resumed(self, leader: Leader) -> None:
        """It was stopped, and goes on as if nothing had been."""
        self.struck_s = max(self.struck_s, self._world.loop.now_s)
        if leader.process.alive:
            self._world.loop.resume(leader.process)
        if self.present is not None:
            self.steady()

    def store_is_well(self) -> None:
        self._world.trouble.silent, self._world.trouble.slow_s = False, 0.0
        self.store_well_since_s = self._world.loop.now_s
        if self.present is not None:
            self.steady()

    def gone(self, holder: str) -> bool:
        return not any(leader.process.name == holder and leader.process.alive and not leader.over
                       for leader in self._world.leaders)  # fmt: skip

    @property
    def present(self) -> Leader | None:
        """Whoever leads now, and can."""
        found = [leader for leader in self._world.leaders if leader.running and leader.well]
        return found[-1] if found else None

    def steady(self) -> None:
        world = self._world
        if not world.trouble.silent and not world.trouble.slow_s:
            world.truth.steady_since_s = world.loop.now_s

    def unsteady(self) -> None:
        self._world.truth.steady_since_s = float("inf")

    def check(self) -> None:
        """That nobody leads is the storm's own doing, or soon over."""
        now_s = self._world.loop.now_s
        since_s = max(self.store_well_since_s, self.struck_s)
        well = not self._world.trouble.silent and not self._world.trouble.slow_s
        if well and self.present is None and now_s - since_s > LEADS_WITHIN_S + LEASE_S:
            self._world.wrong("nobody-leads", f"nobody leads for {now_s - since_s:.1f} s, and nothing is in the way")

    def failpoint(self, name: str) -> None:
        """Named places between a store write and its side effect, where the storm may end the leader."""
        if self.kill_at == name:
            self.kill_at = None
            process = PROCESS.get()
            for leader in self._world.leaders:
                if leader.process is process and leader.well:
                    self._world.trace("killed-at", name, process.name)
                    self.kill(leader)
                    raise Killed

    def kill(self, leader: Leader) -> None:
        leader.kill()
        self.unsteady()
        away_s = self._world.chance.uniform(*self.away_s)
        self.struck_s = self._world.loop.now_s + away_s
        self.start_later(away_s)
        self.away_s = RESTART_S


class _ToldErrors:
    """Stands in for the log of internal errors: each is a failure of the storm."""

    def __init__(self, world: World) -> None:
        self._world = world

    def error(self, event: str, *, doing: str, error: str, **_: object) -> None:
        if not (doing == "planning" and self._world.more.planner == "failing"):
            self._world.wrong("internal-error", f"{doing}: {error}")

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **facts: None


def watched(world: World) -> list[Any]:
    """The patches by which internal errors and failpoints reach the storm."""
    patches = [mock.patch.object(internal_errors, "log", _ToldErrors(world))]
    patches += [mock.patch.object(room, "failpoint", world.supervisor.failpoint)
                for room in (gang_executor, loops, usage_meter, driver)]  # fmt: skip
    patches += [mock.patch.object(node_incarnations, "KEEP_CURSOR_S", GONE_S)]
    patches += [mock.patch.object(row_deletion, "KEEP_JOBS_S", KEPT_S)]
    patches += [mock.patch.object(pruner, "_PASS_S", KEPT_S / 2)]
    return patches


__all__ = ["FairleadError", "Leader", "Supervisor", "watched"]
