"""Carries gangs on: looks at those that something happened to or whose time has come, with one task for each gang."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import Protocol

import structlog
from structlog.contextvars import bind_contextvars

from fairlead.control.reconcile.gang_actions import ReleaseWorkers, Start, StopWorkers, TellJoin, TellLeave
from fairlead.control.reconcile.gang_executor import GangExecutor
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.gang_state_machine import (
    GangView,
    affects_others,
    find_contradiction,
    next_action,
    next_change_s,
    only_frees_devices,
)
from fairlead.control.reconcile.gang_sweep import GangSweep
from fairlead.control.reconcile.gang_timers import GangTimers
from fairlead.control.reconcile.gang_views import GangViews, touches
from fairlead.control.reconcile.node_registry import NodeRegistry
from fairlead.control.reconcile.quarantine import Quarantine
from fairlead.control.store.engine import Store
from fairlead.errors import FairleadError, InvalidSpec, LostLeadership

log = structlog.get_logger()

AGAIN_S = 1.0  # after a step that failed, or while a job is set aside
LEAST_REST_S = 0.05  # after a step that failed, whatever happens to the gang meanwhile; doubled for each in a row
ACTIONS_AT_ONCE = 32  # for one job, before others get their turn
VALIDATE = bool(os.environ.get("FAIRLEAD_VALIDATE"))  # set by the crash tests

IN_MEMORY = (Start, TellLeave, TellJoin, StopWorkers, ReleaseWorkers)
"""Steps that write nothing to the store, unless a start fails: whether anything follows is seen without reading it."""

CARRYING_ON = "carrying out its next step"


class Leader(Protocol):
    """Whoever is told what came of it."""

    def nudge(self, job: str | None = None) -> None: ...
    def devices_freed(self) -> None: ...
    def wake(self) -> None: ...
    def publish(self) -> None: ...


class GangTasks:
    """The leader's. A slow node holds up its own gangs alone, as each gang goes on by itself."""

    def __init__(
        self, store: Store, known: GangRegistry, roster: NodeRegistry, quarantine: Quarantine, carry_out: GangExecutor,
        clock: Callable[[], float], leader: Leader,
    ) -> None:  # fmt: skip
        self._known, self._roster, self._quarantine, self._carry_out = known, roster, quarantine, carry_out
        self._clock, self._leader = clock, leader
        self._views = GangViews(store, known, roster, clock)
        self._timers = GangTimers()
        self._sweep = GangSweep(store, self._views, roster, self._timers, clock)
        self._wanted: set[str] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._rests: dict[str, tuple[float, float]] = {}  # after a step that failed: until when, and for how long
        self.fatal: asyncio.Future[None] | None = None
        """Has the error that ends the leader, once there is one."""

    def want(self, jobs: Iterable[str]) -> None:
        """Look at these jobs in the next pass."""
        self._wanted |= set(jobs)

    def want_all(self) -> None:
        """Look at all jobs on their way in the next pass."""
        self._sweep.hurry()

    @property
    def busy(self) -> bool:
        """Whether any gang is on its way, or is to be looked at."""
        return bool(self._wanted or self._sweep.on_their_way or len(self._timers))

    @property
    def next_s(self) -> float | None:
        """When a timer runs out."""
        return self._timers.next_s()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return list(self._running.values())

    async def look(self) -> None:
        """Have every gang go on that something happened to, whose time has come, or that the sweep finds forgotten."""
        now_s = self._clock()
        self._wanted |= self._timers.due(now_s)
        self._wanted |= await self._sweep.look(self._wanted | self._running.keys() | self._quarantine.held_jobs())
        for job in sorted(self._wanted - self._running.keys()):
            until_s, _ = self._rests.get(job, (now_s, 0.0))
            if self._quarantine.is_held(job):
                self._timers.arm(job, now_s + AGAIN_S, now_s)
            elif 0.0 < until_s - now_s <= AGAIN_S:
                self._timers.arm(job, until_s, now_s)
            else:
                self._begin(job)
        self._wanted &= self._running.keys()  # those come again when what they are at is done

    def _begin(self, job: str) -> None:
        self._wanted.discard(job)
        task = asyncio.create_task(self._advance_apart(job))
        self._running[job] = task
        task.add_done_callback(lambda done: self._ended(job, done))

    def _ended(self, job: str, task: asyncio.Task[None]) -> None:
        self._running.pop(job, None)
        if job in self._wanted:
            self._leader.wake()
        if task.cancelled() or self.fatal is None or self.fatal.done():
            return
        error = task.exception()
        _, rested_s = self._rests.pop(job, (0.0, 0.0))
        if isinstance(error, FairleadError) and not isinstance(error, LostLeadership):
            log.warning("the next step for a gang failed; it will be tried again", job=job, error=str(error))
            now_s = self._clock()
            self._timers.arm(job, now_s + AGAIN_S, now_s)
            # What the step did reach may answer at once, and ask for the same step again.
            rests_s = min(AGAIN_S, max(LEAST_REST_S, 2 * rested_s))
            self._rests[job] = now_s + rests_s, rests_s
        elif error is not None:
            self.fatal.set_exception(error)

    async def _advance_apart(self, job: str) -> None:
        """An error of our own sets the job aside; what a node or the store could not do is tried again."""
        try:
            await self._advance(job)
        except Exception as error:
            if isinstance(error, FairleadError) and not isinstance(error, InvalidSpec):
                raise
            self._wanted.add(job)
            await self._quarantine.set_aside(job, CARRYING_ON, error)
        else:
            self._quarantine.record_success(job, CARRYING_ON)

    async def _advance(self, job: str) -> None:
        view: GangView | None = None
        for _ in range(ACTIONS_AT_ONCE):
            if view is not None and self._views.suffices(view):
                view = self._views.again(view)
                if view is None or next_action(view) is None:
                    return self._wait_for(view)
            view = await self._views.of(job)
            if view is None or touches(view, self._roster.undecided):
                return None
            bind_contextvars(job=job, tenant=view.job.tenant, generation=view.job.generation)
            if VALIDATE:
                wrong = find_contradiction(view)
                if wrong is not None:
                    log.error("contradiction", what=wrong)
            action = next_action(view)
            if action is None:
                return self._wait_for(view)
            log.debug("carry out", job=job, action=type(action).__name__)
            await self._carry_out.do(action, view)
            asks = affects_others(action, view.job, self._known.workers_of(job))
            if asks and only_frees_devices(action, view.job):
                self._leader.devices_freed()
            elif asks:
                self._leader.nudge()
            self._leader.publish()
            if not isinstance(action, IN_MEMORY) or (asks and isinstance(action, Start)):
                view = None
        self._wanted.add(job)
        return None

    def _wait_for(self, view: GangView | None) -> None:
        """Nothing to do now: look again when time alone may have changed that."""
        if view is None:
            return
        self._timers.clear(view.job.id)
        at_s = next_change_s(view)
        if at_s is not None:
            self._timers.arm(view.job.id, at_s, view.now_s)
