"""Drives pipelines: compares each stage's desired next step with its job's state and carries out the difference.

The reconcile loop calls it before every round, so that stages made ready by a finished one are scheduled at once. All
its state is in the store: after a crash the next leader goes on from there.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from fairlead.control.pipelines.steps import NO_VALUE, JobStatus, PipelineState, carry_out, job_room
from fairlead.control.reconcile.failpoints import failpoint
from fairlead.control.records import ENDED, Job, JobPhase
from fairlead.control.store import jobs, pipelines
from fairlead.control.store.engine import Store
from fairlead.pipelines import next_steps
from fairlead.pipelines.fingerprints import cacheable_stages
from fairlead.pipelines.graph import PipelineSpec, stored_pipeline
from fairlead.pipelines.next_steps import DONE, JobFact, StagePhase

STEPS_AT_ONCE = 50
"""Steps per transaction; submitting a stage's job takes one or two milliseconds."""
MAX_BATCHES = 100
"""Transactions of one pipeline before the next pipeline's turn."""
MAX_PASS_S = 0.25
"""Longest time that a round waits for pipelines; the rest is done before the next round, which follows at once."""
RECHECK_S = 300.0
"""A pipeline without changes is checked again after this time, one in each pass."""

GONE: JobStatus = ("gone", None)
_IN_PROGRESS: JobStatus = ("under way", None)


@dataclass(frozen=True, slots=True)
class IdlePipeline:
    """A pipeline with nothing to do, and what would change that."""

    tenant: str
    cancelled: bool
    job_statuses: Mapping[str, JobStatus]  # of the jobs of its active stages
    wanted: frozenset[str]  # fingerprints for which a result of another pipeline could be reused
    no_room: bool  # a stage waits only because its tenant has too many jobs
    checked_s: float


class Pipelines:
    """Runs on the leader. Checks only pipelines that something happened to, each in transactions of its own."""

    def __init__(
        self, store: Store, clock: Callable[[], float], wake: Callable[[], None] = lambda: None
    ) -> None:  # fmt: skip
        """``wake`` is called when more can be done than one pass should wait for."""
        self._store, self._clock, self._wake = store, clock, wake
        self._specs: dict[str, PipelineSpec] = {}
        self._cacheable: dict[str, frozenset[str]] = {}
        self._idle: dict[str, IdlePipeline] = {}
        self._turns: dict[str, int] = {}  # by pipeline: its last turn; the oldest is next
        self._turn = 0

    async def running(self) -> list[str]:
        """The pipelines that have not ended."""
        return await self._store.read(pipelines.running_ids)

    async def advance(
        self, exclude: Collection[str] = (), drive: Callable[[str], Awaitable[set[str] | None]] | None = None
    ) -> set[str] | None:  # fmt: skip
        """Carry out all possible steps except for the pipelines in ``exclude``. Returns the jobs touched; None.

        Nothing to do.

        ``drive`` replaces :meth:`drive`.
        """
        due = await self._store.read(partial(self._due, exclude=exclude))
        touched: set[str] = set()
        done, began_s = False, time.monotonic()
        for place, name in enumerate(due):
            if place and time.monotonic() - began_s > MAX_PASS_S:
                self._wake()
                break
            self._turn += 1
            self._turns[name] = self._turn
            more = await (drive or self.drive)(name)
            done = done or more is not None
            touched |= more or set()
        return touched if done else None

    async def drive(self, name: str) -> set[str] | None:
        """The same for one pipeline: plans outside the writer thread and writes a limited number of steps at once."""
        touched: set[str] = set()
        done, began_s = False, time.monotonic()
        for _ in range(MAX_BATCHES):
            seen, planned = await self._store.read(partial(self._plan_steps, name=name))
            if seen is None:
                break
            if not planned:
                self._mark_idle(seen, no_room=False)
                break
            if done and time.monotonic() - began_s > MAX_PASS_S:
                self._wake()
                break
            now_s = self._clock()
            batch = planned[:STEPS_AT_ONCE]
            jobs_of_it, acted, no_room = await self._store.write(
                partial(carry_out, seen=seen, batch=batch, now_s=now_s)
            )
            failpoint("pipeline-stored")
            touched |= jobs_of_it
            done = done or acted
            self._wake_waiting(seen, batch)
            if no_room and not acted:
                self._mark_idle(seen, no_room=True)
                break
        return touched if done else None

    # ------------------------------------------------------------ which pipelines

    def _due(self, connection: Connection, exclude: Collection[str]) -> list[str]:
        """The pipelines that something may have happened to since their last check, in order of their turns."""
        running = pipelines.list_running(connection)
        names = {name for name, _, _ in running}
        for memory in (self._specs, self._cacheable, self._idle, self._turns):
            for name in memory.keys() - names:
                del memory[name]
        if not running:
            return []
        watched = {job for idle in self._idle.values() for job in idle.job_statuses}
        job_statuses = {job: _job_status(*each) for job, each in jobs.phases_of(connection, watched).items()}
        room: dict[str, bool] = {}
        due, forgotten = [], []
        for name, tenant, cancelled in running:
            idle = self._idle.get(name)
            if name in exclude:
                continue
            if idle is None or self._has_changed(idle, job_statuses, cancelled=cancelled):
                due.append(name)
            elif idle.no_room and tenant not in room:
                room[tenant] = job_room(connection, tenant) > 0
                due += [name] if room[tenant] else []
            elif not 0.0 <= self._clock() - idle.checked_s < RECHECK_S:
                forgotten.append(name)
        due += sorted(forgotten, key=lambda name: self._turns.get(name, 0))[:1]
        return sorted(due, key=lambda name: self._turns.get(name, 0))

    def _has_changed(self, idle: IdlePipeline, job_statuses: Mapping[str, JobStatus], *, cancelled: bool) -> bool:
        changed = any(job_statuses.get(job, GONE) != course for job, course in idle.job_statuses.items())
        return changed or idle.cancelled != cancelled

    def _mark_idle(self, seen: PipelineState, *, no_room: bool) -> None:
        wanted = {stage.fingerprint for name, stage in seen.stages.items()
                  if stage.phase is StagePhase.WAITING and name in self._cacheable.get(seen.record.id, ())}  # fmt: skip
        cancelled = seen.record.cancelled_by is not None
        self._idle[seen.record.id] = IdlePipeline(
            seen.record.tenant, cancelled, seen.job_statuses, frozenset(wanted), no_room, self._clock()
        )

    def _wake_waiting(self, seen: PipelineState, batch: Sequence[next_steps.Step]) -> None:
        """Wake idle pipelines that can reuse a result of these steps."""
        self._idle.pop(seen.record.id, None)
        given = {
            seen.stages[s.stage].fingerprint for s in batch if isinstance(s, next_steps.Settle) and s.phase in DONE
        }
        for name, idle in list(self._idle.items()) if given else ():
            if idle.tenant == seen.record.tenant and not given.isdisjoint(idle.wanted):
                del self._idle[name]

    # ------------------------------------------------------------ planning

    def _plan_steps(self, connection: Connection, name: str) -> tuple[PipelineState | None, list[next_steps.Step]]:
        record = pipelines.get(connection, name)
        if record is None or record.finished_s is not None:
            return None, []
        if name not in self._specs:
            self._specs[name] = stored_pipeline(record.spec)
            self._cacheable[name] = cacheable_stages(self._specs[name])
        own = pipelines.stages_of(connection, [name])[name]
        active = {stage.job: each for each, stage in own.items() if stage.phase is StagePhase.ACTIVE and stage.job}
        found = jobs.get_many(connection, active)
        facts = {active[job.id]: job_fact(job) for job in found.values()}
        job_statuses = {job: _job_status(found[job].phase, found[job].then) if job in found else GONE for job in active}
        may = [each for each in self._cacheable[name] if own[each].phase is StagePhase.WAITING]
        wanted = {each: own[each].fingerprint for each in may}
        known = pipelines.reusable_stages(connection, record.tenant, sorted(set(wanted.values())))
        earlier = {each: known[mark] for each, mark in wanted.items() if mark in known}
        seen = PipelineState(record, self._specs[name], own, facts, earlier, job_statuses)
        return seen, sorted(
            seen.next(), key=lambda step: isinstance(step, next_steps.Start)
        )  # steps that need no room for a job come first


def _job_status(phase: str, then: str | None) -> JobStatus:
    """A job's status as far as pipelines care: waiting, starting, running and restarting jobs are all in progress."""
    if phase == JobPhase.STOPPING and then != JobPhase.QUEUED:
        return str(phase), None if then is None else str(then)
    return (str(phase), None) if phase in ENDED else _IN_PROGRESS


def job_fact(job: Job) -> JobFact:
    """How far a stage's job is. A stored result counts as success before the worker has exited."""
    done = job.phase is JobPhase.STOPPING and job.then is JobPhase.SUCCEEDED and "value" in job.result
    end = job.phase.value if job.phase in ENDED else "succeeded" if done else None
    given = dict(job.result.get("value", {})) or dict(NO_VALUE)
    missing = tuple(str(each) for each in job.result.get("missing", ()))
    stopping = job.phase is JobPhase.STOPPING and job.then is not JobPhase.QUEUED
    return JobFact(end, job.message, given, missing, stopping)
