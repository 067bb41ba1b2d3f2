"""Quarantines pipelines on an internal error: retries with back-off, then fails the pipeline; other pipelines go on."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection

from fairlead.control.pipelines.driver import Pipelines
from fairlead.control.reconcile.internal_errors import Backoff, must_propagate, report_error
from fairlead.control.reconcile.quarantine import TRIES
from fairlead.control.reconcile.worker_events import stop_changes
from fairlead.control.records import ENDED, JobPhase
from fairlead.control.store import events, jobs, pipelines
from fairlead.control.store.engine import Store
from fairlead.pipelines.next_steps import OVER, StagePhase

DOING = "advancing a pipeline"


class PipelineQuarantine:
    """Runs on the leader: drives each pipeline of :class:`Pipelines` with its own error handling."""

    def __init__(self, inner: Pipelines, store: Store, clock: Callable[[], float]) -> None:
        self._inner, self._store, self._clock = inner, store, clock
        self._backoff = Backoff(clock)

    async def advance(self) -> set[str] | None:
        """Carry out all possible steps of pipelines without back-off. Returns the jobs touched; None: nothing to do."""
        if self._backoff:
            self._backoff.retain(await self._inner.running())
        return await self._inner.advance(
            exclude={str(name) for name in self._backoff.waiting_names()}, drive=self._drive
        )

    async def _drive(self, name: str) -> set[str] | None:
        try:
            touched = await self._inner.drive(name)
        except Exception as error:
            if must_propagate(error):
                raise
            return await self._set_aside(name, error)
        self._backoff.record_success(name)
        return touched

    async def _set_aside(self, pipeline: str, error: Exception) -> set[str]:
        mark = report_error(DOING, error, pipeline=pipeline)
        tries, now_s = self._backoff.record_failure(pipeline), self._clock()
        why = f"an error of the platform's own while {DOING}: {type(error).__name__} (error {mark})"
        if tries < TRIES:
            await self._store.write(lambda connection: _log_event(
                connection, pipeline, "pipeline-set-aside", f"{pipeline} is set aside for a while: {why}", now_s
            ))  # fmt: skip
            return set()
        message = f"{why}, {tries} times in a row; tell an administrator"
        touched = await self._store.write(lambda connection: _fail_pipeline(connection, pipeline, message, now_s))
        self._backoff.record_success(pipeline)
        return touched


def _fail_pipeline(connection: Connection, pipeline: str, message: str, now_s: float) -> set[str]:
    """End the pipeline as failed and cancel its unfinished jobs."""
    touched: set[str] = set()
    for name, stage in pipelines.stages_of(connection, [pipeline])[pipeline].items():
        if stage.phase in OVER:
            continue
        job = jobs.get(connection, stage.job) if stage.job is not None else None
        if job is not None and job.phase not in ENDED:
            changes = stop_changes(JobPhase.CANCELLED, "cancelled", "its pipeline failed", now_s)
            if job.phase is JobPhase.QUEUED:
                changes = {"phase": JobPhase.CANCELLED, "finished_s": now_s, "since_s": now_s}
            jobs.update(connection, job.id, **changes)
            touched.add(job.id)
        pipelines.update_stage(connection, pipeline, name, phase=StagePhase.CANCELLED, finished_s=now_s)
    pipelines.update(connection, pipeline, phase="failed", finished_s=now_s, message=message)
    _log_event(connection, pipeline, "pipeline-failed", f"{pipeline} failed: {message}", now_s)
    return touched


def _log_event(connection: Connection, pipeline: str, kind: str, text: str, now_s: float) -> None:
    record = pipelines.get(connection, pipeline)
    tenant = None if record is None else record.tenant
    events.append(connection, time_s=now_s, kind=kind, text=text, tenant=tenant, facts={"pipeline": pipeline})
