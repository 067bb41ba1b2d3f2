"""Runs, lists, shows and cancels pipelines."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection

from fairlead import json_values
from fairlead.control.accounting.budgets import require_budget
from fairlead.control.datasets import pin_versions as datasets_pinned
from fairlead.control.identity.access import acting_for, require, scope
from fairlead.control.pipelines.records import RUNNING, PipelineRecord, StageRecord
from fairlead.control.reconcile.failpoints import failpoint
from fairlead.control.records import Job, Role, Tenant, Token
from fairlead.control.service.core import tenant_named
from fairlead.control.service.submission import (
    SubmissionVerbs,
    jobs_allowed,
    new_job,
    require_job_room,
    require_secrets,
)
from fairlead.control.store import datasets, events, jobs, pipelines
from fairlead.errors import FairleadError, InvalidSpec, NotFound, Refused
from fairlead.pipelines.fingerprints import fingerprints
from fairlead.pipelines.graph import PipelineSpec, order, stage_job, stored_pipeline
from fairlead.pipelines.next_steps import StagePhase
from fairlead.views.pipelines import PipelineDetail, PipelinePage, PipelineView, StageView

MAX_KEY_LENGTH = 255
MAX_RUNNING = 100
"""Unfinished pipelines per tenant."""


class PipelineVerbs(SubmissionVerbs):
    """Operations on pipelines."""

    async def run_pipeline(self, who: Token, spec: PipelineSpec, key: str | None) -> tuple[PipelineDetail, bool]:
        """The pipeline, durable before this returns, and whether it is new; the same key twice is one pipeline."""
        require(who, Role.MEMBER, "run pipelines")
        if key is not None and len(key) > MAX_KEY_LENGTH:
            raise InvalidSpec(f"has {len(key)} characters", field="Idempotency-Key",
                              fix=f"use at most {MAX_KEY_LENGTH} characters")  # fmt: skip
        owner = acting_for(who, spec.tenant)
        spec = spec.model_copy(update={"tenant": owner})
        digest = hashlib.sha256(spec.model_dump_json(by_alias=True).encode()).hexdigest()
        for name in spec.stages:
            await self._require_environment(stage_job(spec, name, spec.name, {}))
        now_s = self._core.clock()
        new_id = jobs.new_id(spec.name)

        def look(connection: Connection) -> tuple[PipelineRecord, list[StageRecord]]:
            """Prepare everything slow outside the writer thread."""
            tenant = tenant_named(connection, owner)
            exact = _pinned(connection, spec, owner)
            document = exact.model_dump(mode="json", by_alias=True, exclude_none=True)
            made = PipelineRecord(new_id, owner, spec.name, RUNNING, now_s, who.id, digest, document, key)
            marks = fingerprints(
                exact, {each.name: each.version for each in datasets.newest_versions(connection, owner)}
            )
            if not pipelines.key_exists(connection, owner, key):  # a repeated request returns the stored pipeline
                self._check_stages(connection, spec, tenant, who, now_s)
            return made, [StageRecord(made.id, name, owner, marks[name]) for name in sorted(spec.stages)]

        made, own = await self._read(look)

        def work(connection: Connection) -> tuple[PipelineRecord, bool]:
            tenant = tenant_named(connection, owner)
            stored, created = pipelines.insert(connection, made, own)
            if created:
                require_job_room(connection, tenant, more=1)
                _require_pipeline_room(connection, tenant)
                require_budget(connection, tenant, now_s)
                self._audit(connection, who, "pipeline.run", stored.id, tenant=owner)
                events.append(connection, time_s=now_s, kind="pipeline-submitted", tenant=owner,
                              text=f"{stored.id} was submitted: {len(own)} stages",
                              facts={"by": who.id, "pipeline": stored.id})  # fmt: skip
            return stored, created

        stored, created = await self._write(work)
        failpoint("pipeline-submitted")
        if created:
            self._core.controller.nudge()
            self._core.controller.publish()
        return await self._read(lambda connection: _detail(connection, stored)), created

    def _check_stages(
        self, connection: Connection, spec: PipelineSpec, tenant: Tenant, who: Token, now_s: float
    ) -> None:
        """Refuse the whole pipeline if one of its stages can never run."""
        for name in sorted(spec.stages):
            job = stage_job(spec, name, spec.name, {})
            try:
                self._admit(connection, new_job(job, tenant, who, now_s), job, tenant)
                require_secrets(connection, tenant, job)
            except FairleadError as error:
                place = error.field if error.field in ("code", None) else f"stages.{name}.{error.field}"
                raise type(error)(error.message, field=place, value=error.value, fix=error.fix) from None

    async def pipelines(self, who: Token, tenant: str | None, limit: int) -> PipelinePage:
        """The newest pipelines that this token may see."""
        wanted = scope(who) if tenant is None else acting_for(who, tenant)

        def work(connection: Connection) -> PipelinePage:
            if wanted is not None:
                tenant_named(connection, wanted)
            found = pipelines.newest(connection, wanted, limit)
            own = pipelines.stages_of(connection, [each.id for each in found])
            active = {each.id: _active_jobs(connection, own[each.id]) for each in found}
            return PipelinePage(items=[PipelineView(**_facts(each, own[each.id], active[each.id])) for each in found])

        return await self._read(work)

    async def pipeline(self, who: Token, ref: str) -> PipelineDetail:
        """One pipeline with the states of its stages."""
        return await self._read(lambda connection: _detail(connection, pipelines.find(connection, ref, scope(who))))

    async def cancel_pipeline(self, who: Token, ref: str) -> PipelineDetail:
        """Start no more stages and stop the running ones."""
        require(who, Role.MEMBER, "cancel pipelines")
        now_s = self._core.clock()

        def work(connection: Connection) -> PipelineDetail:
            found = pipelines.find(connection, ref, scope(who))
            if found.finished_s is not None:
                raise Refused(f"{found.id} is {found.phase} already", fix="nothing is left to cancel")
            pipelines.update(connection, found.id, cancelled_by=who.id, message=f"cancelled by {who.id}")
            self._audit(connection, who, "pipeline.cancel", found.id, tenant=found.tenant)
            events.append(connection, time_s=now_s, kind="pipeline-cancelling", tenant=found.tenant,
                          text=f"{found.id} is being cancelled by {who.id}", facts={"pipeline": found.id})  # fmt: skip
            return _detail(connection, pipelines.find(connection, found.id, found.tenant))

        view = await self._write(work)
        self._core.controller.nudge()
        self._core.controller.publish()
        return view


def _require_pipeline_room(connection: Connection, tenant: Tenant) -> None:
    """Refuse one pipeline too many (it is counted already): each of its stages becomes a job."""
    running, stages = pipelines.count_unfinished(connection, tenant.name)
    fix = "wait for some to end, or cancel some: fairlead pipeline list"
    if running > MAX_RUNNING:
        raise Refused(f"tenant {tenant.name} has {MAX_RUNNING} running pipelines, the most that are allowed", fix=fix)
    allowed = jobs_allowed(tenant)
    if stages > allowed and running > 1:
        raised = f"fairlead tenant update {tenant.name} --jobs {2 * allowed}"
        raise Refused(f"the pipelines of tenant {tenant.name} that run would have {stages} stages in all, and no more "
                      f"are allowed than jobs: {allowed}",
                      fix=f"{fix}; or let an admin allow more: {raised}")  # fmt: skip


def _pinned(connection: Connection, spec: PipelineSpec, tenant: str) -> PipelineSpec:
    """The spec with the current versions of its data sets, for everything its stages do later.

    A data set that does not exist yet may be loaded by an earlier stage: then no earlier result can be reused.
    """
    stages = {}
    for name, stage in spec.stages.items():
        try:
            exact: dict[str, object] = {"data": datasets_pinned(connection, tenant, stage.data)}
        except NotFound:
            exact = {"data": [], "cache": False}
        stages[name] = stage.model_copy(update=exact)
    return spec.model_copy(update={"stages": stages})


def _active_jobs(connection: Connection, own: Mapping[str, StageRecord]) -> dict[str, Job]:
    """Jobs of the active stages, by stage."""
    active = {n: s.job for n, s in own.items() if s.phase is StagePhase.ACTIVE and s.job is not None}
    found = {name: jobs.get(connection, job) for name, job in active.items()}
    return {name: job for name, job in found.items() if job is not None}


def _detail(connection: Connection, record: PipelineRecord) -> PipelineDetail:
    own = pipelines.stages_of(connection, [record.id])[record.id]
    spec = stored_pipeline(record.spec)
    found = {name: jobs.get(connection, stage.job) for name, stage in own.items() if stage.job is not None}
    runs = {name: job for name, job in found.items() if job is not None}
    views = [_stage(spec, own[name], runs.get(name)) for name in order(spec.upstream)]
    return PipelineDetail(**_facts(record, own, runs), stages=views)


def _facts(record: PipelineRecord, own: Mapping[str, StageRecord], runs: Mapping[str, Job]) -> dict[str, object]:
    counts = Counter(_state(stage, runs.get(name)) for name, stage in own.items())
    return {
        "id": record.id, "name": record.name, "tenant": record.tenant, "state": record.phase,
        "labels": record.spec.get("labels", {}), "submitted_s": record.submitted_s,
        "submitted_by": record.submitted_by, "finished_s": record.finished_s, "message": record.message,
        "counts": dict(sorted(counts.items())),
    }  # fmt: skip


def _state(stage: StageRecord, job: Job | None) -> str:
    """The state shown for a stage: while active, its job's."""
    if stage.phase is not StagePhase.ACTIVE:
        return stage.phase.value
    return "running" if job is None else job.phase.value


def _started_s(stage: StageRecord, job: Job | None) -> float | None:
    """When it started running; a stage that ended before it was seen running started when it was submitted."""
    if job is not None and job.started_s is not None:
        return job.started_s
    return stage.started_s if job is None or stage.phase is StagePhase.SUCCEEDED else None


def _stage(spec: PipelineSpec, stage: StageRecord, job: Job | None) -> StageView:
    written = spec.stages[stage.name]
    return StageView(
        name=stage.name, kind=written.kind, state=_state(stage, job), upstream=sorted(written.upstream), job=stage.job,
        message=stage.message or (job.message if job is not None else None),
        attempts=0 if job is None else job.failures + 1,
        min_workers=written.workers.min, max_workers=written.workers.max, reused=stage.reused,
        started_s=_started_s(stage, job),
        finished_s=stage.finished_s,
        **_gave(stage.result),
    )  # fmt: skip


def _gave(result: object) -> dict[str, Any]:
    """The shown parts of a stage's result. Tenant code wrote it, so invalid values are dropped."""
    if not isinstance(result, Mapping):
        return {}
    shown, size, plain = result.get("shown"), result.get("bytes"), result.get("plain")
    try:
        json_values.check(plain)
    except json_values.InvalidValue:
        plain = None
    return {
        "gave": shown if isinstance(shown, str) else None,
        "gave_bytes": size if isinstance(size, int) and size in json_values.INTEGERS else None,
        "value": plain,
    }
