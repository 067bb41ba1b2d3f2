"""Advances gangs: runs one task for each gang to which something happened or whose timer expired."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import structlog
from structlog.contextvars import bind_contextvars

from fairlead.control.reconcile.gang_actions import (
    Action,
    BeginJoin,
    BeginStop,
    Conclude,
    MarkRunning,
    ReleaseWorkers,
    Start,
    StopWorkers,
    TellJoin,
    TellLeave,
    WakeNodes,
)
from fairlead.control.reconcile.gang_executor import GangExecutor
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.gang_state_machine import (
    GangView,
    WorkerFact,
    find_contradiction,
    next_action,
    next_change_s,
)
from fairlead.control.reconcile.gang_sweep import GangSweep
from fairlead.control.reconcile.gang_timers import GangTimers
from fairlead.control.reconcile.gang_views import GangViews, has_member_on
from fairlead.control.reconcile.node_registry import NodeRegistry
from fairlead.control.reconcile.quarantine import Quarantine
from fairlead.control.records import ENDED, Job, JobPhase
from fairlead.control.store.engine import Store
from fairlead.errors import FairleadError, InvalidSpec, LostLeadership

log = structlog.get_logger()

RETRY_S = 1.0  # after a step that failed, or while a job is in quarantine
SHORTEST_RETRY_S = 0.05  # after a failed step, whatever happens to the gang meanwhile; doubles with each in a row
ACTIONS_AT_ONCE = 32  # for one job before other jobs get their turn
VALIDATE = bool(os.environ.get("FAIRLEAD_VALIDATE"))  # set by the crash tests

IN_MEMORY = (Start, TellLeave, TellJoin, StopWorkers, ReleaseWorkers)
"""Actions that write nothing to the store, unless a start fails: the next one is decided without reading it again."""

NEXT_STEP = "carrying out its next step"


class Leader(Protocol):
    """Gets notified of what the actions changed."""

    def nudge(self, job: str | None = None) -> None: ...
    def devices_freed(self) -> None: ...
    def wake(self) -> None: ...
    def publish(self) -> None: ...


class GangTasks:
    """The leader's gang tasks. Each gang advances on its own, so a slow node delays only its own gangs."""

    def __init__(
        self, store: Store, known: GangRegistry, roster: NodeRegistry, quarantine: Quarantine, executor: GangExecutor,
        clock: Callable[[], float], leader: Leader,
    ) -> None:  # fmt: skip
        self._known, self._roster, self._quarantine, self._carry_out = known, roster, quarantine, executor
        self._clock, self._leader = clock, leader
        self._views = GangViews(store, known, roster, clock)
        self._timers = GangTimers()
        self._sweep = GangSweep(store, self._views, roster, self._timers, clock)
        self._wanted: set[str] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._retry_after: dict[str, tuple[float, float]] = {}  # after a failed step: end and length of the pause
        self.fatal: asyncio.Future[None] | None = None
        """Gets the error that ends the leader."""

    def request_look(self, jobs: Iterable[str]) -> None:
        """Look at these jobs in the next pass."""
        self._wanted |= set(jobs)

    def request_full_sweep(self) -> None:
        """Look at all jobs on their way in the next pass."""
        self._sweep.sweep_at_once()

    @property
    def busy(self) -> bool:
        """True if any gang is on its way or waits for a look."""
        return bool(self._wanted or self._sweep.on_their_way or len(self._timers))

    @property
    def next_s(self) -> float | None:
        """When the next timer expires."""
        return self._timers.next_s()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return list(self._running.values())

    async def advance_gangs(self) -> None:
        """Advance every gang to which something happened, whose timer expired, or that the sweep found."""
        now_s = self._clock()
        self._wanted |= self._timers.due(now_s)
        self._wanted |= await self._sweep.jobs_with_work(
            self._wanted | self._running.keys() | self._quarantine.held_jobs()
        )
        for job in sorted(self._wanted - self._running.keys()):
            until_s, _ = self._retry_after.get(job, (now_s, 0.0))
            if self._quarantine.is_held(job):
                self._timers.arm(job, now_s + RETRY_S, now_s)
            elif 0.0 < until_s - now_s <= RETRY_S:
                self._timers.arm(job, until_s, now_s)
            else:
                self._start_task(job)
        self._wanted &= self._running.keys()  # looked at again when their present task ends

    def _start_task(self, job: str) -> None:
        self._wanted.discard(job)
        task = asyncio.create_task(self._advance_guarded(job))
        self._running[job] = task
        task.add_done_callback(lambda done: self._task_ended(job, done))

    def _task_ended(self, job: str, task: asyncio.Task[None]) -> None:
        self._running.pop(job, None)
        if job in self._wanted:
            self._leader.wake()
        if task.cancelled() or self.fatal is None or self.fatal.done():
            return
        error = task.exception()
        _, rested_s = self._retry_after.pop(job, (0.0, 0.0))
        if isinstance(error, FairleadError) and not isinstance(error, LostLeadership):
            log.warning("the next action for a gang failed and will be retried", job=job, error=str(error))
            now_s = self._clock()
            self._timers.arm(job, now_s + RETRY_S, now_s)
            # Workers that the step did reach may answer at once and thereby request the same step again.
            rests_s = min(RETRY_S, max(SHORTEST_RETRY_S, 2 * rested_s))
            self._retry_after[job] = now_s + rests_s, rests_s
        elif error is not None:
            self.fatal.set_exception(error)

    async def _advance_guarded(self, job: str) -> None:
        """Advance the gang; an error of our own quarantines the job, a failure of a node or the store is retried."""
        try:
            await self._advance(job)
        except Exception as error:
            if isinstance(error, FairleadError) and not isinstance(error, InvalidSpec):
                raise
            self._wanted.add(job)
            await self._quarantine.set_aside(job, NEXT_STEP, error)
        else:
            self._quarantine.record_success(job, NEXT_STEP)

    async def _advance(self, job: str) -> None:
        view: GangView | None = None
        for _ in range(ACTIONS_AT_ONCE):
            if view is not None and self._views.rows_are_current(view):
                view = self._views.refreshed(view)
                if view is None or next_action(view) is None:
                    return self._arm_timer(view)
            view = await self._views.view_of(job)
            if view is None or has_member_on(view, self._roster.uncertain):
                return None
            bind_contextvars(job=job, tenant=view.job.tenant, generation=view.job.generation)
            if VALIDATE:
                wrong = find_contradiction(view)
                if wrong is not None:
                    log.error("contradiction", what=wrong)
            action = next_action(view)
            if action is None:
                return self._arm_timer(view)
            log.debug("carry out", job=job, action=type(action).__name__)
            await self._carry_out.execute(action, view)
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

    def _arm_timer(self, view: GangView | None) -> None:
        """Nothing to do now: look again when time alone may change that."""
        if view is None:
            return
        self._timers.clear(view.job.id)
        at_s = next_change_s(view)
        if at_s is not None:
            self._timers.arm(view.job.id, at_s, view.now_s)


def affects_others(action: Action, job: Job, workers: Mapping[str, WorkerFact]) -> bool:
    """True if decisions about other jobs may change after this action.

    ``job`` is as it was before, ``workers`` as they are known afterwards. What a gang does on its way up, with devices
    that it was given, changes nothing for others. Of the several steps at its end only the one that frees the devices
    counts: the first if the job finished, else the last.
    """
    match action:
        case Start(generation):
            return any(member.worker not in workers for member in generation.members)
        case MarkRunning():
            return job.training
        case BeginStop():
            return any(fact.phase == "finished" for fact in workers.values())
        case ReleaseWorkers():
            return job.phase is not JobPhase.STOPPING
        case Conclude():
            return not workers
        case _:
            return not isinstance(action, WakeNodes | TellLeave | BeginJoin | TellJoin | StopWorkers)


def only_frees_devices(action: Action, job: Job) -> bool:
    """Whether an action for which :func:`affects_others` is true only frees devices: its job asks for nothing more, and
    no pipeline stage follows it."""
    match action:
        case BeginStop(then) | Conclude(then):
            return then in ENDED and "stage" not in job.facts
        case ReleaseWorkers():
            return job.phase in ENDED and "stage" not in job.facts
        case _:
            return isinstance(action, MarkRunning)
