"""Submits jobs: admission, dry run and cancellation."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import Connection

from fairlead.control.accounting.budgets import require_budget
from fairlead.control.datasets import pin_versions
from fairlead.control.identity.access import acting_for, require, scope
from fairlead.control.job_views import job_view, reason_view
from fairlead.control.observability import tracing
from fairlead.control.plans.model_profiles import model_fact, model_key
from fairlead.control.plans.planner_process import PlannerFailed
from fairlead.control.reconcile.cluster_state import job_state
from fairlead.control.reconcile.failpoints import failpoint
from fairlead.control.reconcile.worker_events import stop_changes
from fairlead.control.records import ENDED, Job, JobPhase, Role, Tenant, Token
from fairlead.control.service.core import Verbs, tenant_named
from fairlead.control.service.sla_admission import MAX_JOBS_TO_WAIT, PAUSE_FACTOR, effective_sla, expectations, refusal
from fairlead.control.store import (
    bundles,
    events,
    generations,
    job_counts,
    jobs,
    known_models,
    lineage,
    secrets,
    tenants,
)
from fairlead.control.tenant_tree import why_beyond_limits
from fairlead.errors import InvalidSpec, NotFound, OverBudget, Refused, Unavailable
from fairlead.planning.plan_choice import MODEL_PARALLEL, why_unsupported
from fairlead.planning.profiles import model_from
from fairlead.scheduling.admission import Answer
from fairlead.scheduling.explain import can_never_run
from fairlead.scheduling.state import ClusterState, Reason
from fairlead.specs import JobSpec, Policy
from fairlead.views.jobs import DryRun, JobView

log = structlog.get_logger()


class SubmissionVerbs(Verbs):
    """Submitting and cancelling single jobs."""

    async def submit(
        self, who: Token, spec: JobSpec, key: str | None, again: Mapping[str, Any] | None = None
    ) -> tuple[JobView, bool]:
        """The job, durable before this returns, and whether it is new; the same key twice is one job.

        ``again`` says what a rerun repeats.
        """
        require(who, Role.MEMBER, "submit jobs")
        tenant_name = acting_for(who, spec.tenant)
        spec = spec.model_copy(update={"tenant": tenant_name})
        document = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
        digest = hashlib.sha256(spec.model_dump_json(by_alias=True).encode()).hexdigest()
        await self._require_environment(spec)
        now_s = self._core.clock()

        def work(checked: bool, connection: Connection) -> tuple[Job, bool] | Job:
            tenant = tenant_named(connection, tenant_name)
            job = new_job(spec, tenant, who, now_s, again)
            self._admit(connection, job, spec, tenant)
            data = pin_versions(connection, tenant_name, spec.data)
            require_secrets(connection, tenant, spec)
            strict = bool(effective_sla(spec.sla, tenant.sla).strict) and not checked
            if strict and (key is None or jobs.by_key(connection, tenant_name, key, digest) is None):
                return job  # check first whether its promise can be kept
            written = {**document, "data": data} if data else document
            job = replace(job, facts={**job.facts, "data": data}) if data else job
            stored, created = jobs.insert(connection, job, written, spec.labels, key, digest)
            if created:
                if again is not None:
                    lineage.begin(connection, stored.id, tenant_name, again, now_s)
                lineage.record_inputs(connection, stored.id, tenant_name, [_version(each) for each in data])
                _require_future_deadline(spec, now_s)  # only for new jobs: a repeated request returns the stored job
                require_job_room(connection, tenant)
                require_budget(connection, tenant, now_s)
                self._audit(connection, who, "job.submit", stored.id, tenant=tenant_name)
                events.append(connection, time_s=now_s, kind="job-submitted", text=f"{stored.id} was submitted",
                              tenant=tenant_name, job=stored.id, facts={"by": who.id})  # fmt: skip
            return stored, created

        done = await self._write(partial(work, False))
        if isinstance(done, Job):
            try:
                answer = await self._check_promise(await self._current_state(), done, strict=True)
            except PlannerFailed as error:
                raise Unavailable(f"cannot tell whether its promise can be kept: {error}",
                                  fix="try again, or leave out sla.strict") from None  # fmt: skip
            if not answer.admitted:
                raise refusal(answer)
            done = await self._write(partial(work, True))
        assert not isinstance(done, Job)
        job, created = done
        failpoint("submit-stored")
        if created:
            tracing.record_submission(job.id)
            self._core.controller.nudge()
            self._core.controller.publish()
        view = job_view(job, spec.labels, [], self._core.controller.last_round.holds.get(job.id), now_s, scope(who))
        return (await self._with_promise(view, job) if created else view), created

    async def _with_promise(self, view: JobView, job: Job) -> JobView:
        """Add the promise check to the view; a job whose promise cannot be kept is accepted all the same."""
        if job.start_by_s is None and job.finish_by_s is None:
            return view
        begun_s, deep = self._core.clock(), len(self._core.controller.last_round.holds) > MAX_JOBS_TO_WAIT
        if deep and (job.finish_by_s is None or begun_s < self._core.next_promise_check_s):
            return view  # too costly for every submission to a deep queue; `fairlead why` tells it
        try:
            answer = await self._check_promise(await self._recent_state(), job)
        except PlannerFailed as error:
            log.warning("a promise was not checked", job=job.id, error=str(error))
            return view
        self._core.next_promise_check_s = begun_s + PAUSE_FACTOR * (self._core.clock() - begun_s)
        if answer.kept is False:
            text, now_s = f"{job.id}: {answer.why.text}", self._core.clock()
            await self._write(lambda connection: events.append(
                connection, time_s=now_s, kind="promise-in-doubt", text=text, tenant=job.tenant, job=job.id,
                facts={"earliest_deadline_s": answer.earliest_deadline_s},
            ))  # fmt: skip
        looks_ahead = expectations(answer, job.tenant, begun_s)
        return view.model_copy(update={name: looks_ahead[name] for name in ("expected_start_s", "promise")})

    async def _check_promise(self, state: ClusterState, job: Job, *, strict: bool = False) -> Answer:
        """Whether the promise of a job being submitted can be kept; quick, as the submission waits."""
        asked, few = job_state(job, (), {}, cooling=False), len(state.jobs) <= MAX_JOBS_TO_WAIT
        return await self._core.promises.admission(state, asked, job.tenant, strict=strict, look_ahead=few)

    def _admit(self, connection: Connection, job: Job, spec: JobSpec, tenant: Tenant) -> None:
        """Refuse a job that can never run here."""
        nodes = list(self._core.controller.nodes.values())
        seen = job_state(job, (), {}, cooling=False)
        problem = can_never_run(seen, nodes, tenant.quota) or why_beyond_limits(
            seen, tenants.ancestry(connection, tenant), nodes
        )
        if problem is not None:
            raise Refused(problem.text, field=problem.field, value=problem.value, fix=problem.fix)
        known = known_models.get(connection, job.tenant, model_key(job)) if spec.plan in MODEL_PARALLEL else None
        if (
            known is not None
            and known.profile is not None
            and (why := why_unsupported(model_from(known.profile), spec.plan))
        ):
            raise InvalidSpec(f"{spec.plan} cannot run this model: {why}", field="plan", value=spec.plan,
                              fix="leave plan out: the fastest that can run is chosen")  # fmt: skip
        if spec.code is not None and not bundles.exists_for(connection, job.tenant, spec.code):
            raise NotFound(f"{spec.code[:19]}...: no such code bundle", field="code", value=spec.code,
                           fix="upload it first: PUT /api/v1/bundles/{digest}")  # fmt: skip
        if spec.run is not None and spec.code is None:
            raise InvalidSpec("is required with run: the code bundle that holds the function", field="code",
                              fix="submit with the fairlead command or SDK, which pack the folder")  # fmt: skip

    async def _require_environment(self, spec: JobSpec) -> None:
        """Refuse a missing virtual environment if workers run on this machine."""
        if spec.venv is None or not self._core.controller.backend.capabilities.one_machine:
            return
        # One error for every cause: a tenant must not learn what else is at that path.
        if not await asyncio.to_thread(_is_environment, Path(spec.venv)):
            raise InvalidSpec(f"{spec.venv} is not a virtual environment on the platform's machine", field="venv",
                              value=spec.venv, fix=f"make one there: python -m venv {spec.venv}")  # fmt: skip

    async def dry_run(self, who: Token, spec: JobSpec) -> DryRun:
        """Whether the job would be admitted, where it would run and when it would start; stores nothing."""
        require(who, Role.VIEWER, "ask")
        tenant_name = acting_for(who, spec.tenant)
        controller = self._core.controller
        now_s = self._core.clock()
        tenant = await self._read(lambda connection: tenant_named(connection, tenant_name))
        await self._read(lambda connection: require_secrets(connection, tenant, spec))
        _require_future_deadline(spec, now_s)
        await self._require_environment(spec)
        job = job_state(new_job(spec, tenant, who, now_s), (), {}, cooling=False)
        nodes = list(controller.nodes.values())
        above = await self._read(lambda connection: tenants.ancestry(connection, tenant))
        problem = can_never_run(job, nodes, tenant.quota) or why_beyond_limits(job, above, nodes)
        if problem is not None:
            never = Reason("impossible", f"{problem.field}: {problem.text}; {problem.fix}")
            return DryRun(admitted=False, reason=reason_view(never, scope(who)))
        try:
            await self._read(lambda connection: require_job_room(connection, tenant, more=1))
            await self._read(lambda connection: require_budget(connection, tenant, now_s))
        except (OverBudget, Refused) as error:
            refused = Reason(error.code, f"{error.message}; {error.fix}")
            return DryRun(admitted=False, reason=reason_view(refused, scope(who)))
        strict = bool(effective_sla(spec.sla, tenant.sla).strict)
        try:
            found = await self._forecast_admission(await self._recent_state(), job, scope(who), strict=strict)
        except PlannerFailed as error:
            unknown = Reason("not-known", f"would be admitted; its start cannot be predicted: {error}")
            return DryRun(admitted=True, reason=reason_view(unknown, scope(who)))
        reason = found.decided if found.admitted and found.decided is not None else found.why
        return DryRun(
            admitted=found.admitted, reason=reason_view(reason, scope(who)), nodes=list(found.seats),
            **expectations(found, scope(who), now_s),
        )  # fmt: skip

    async def cancel(self, who: Token, ref: str) -> JobView:
        """Cancel a job: at once while it waits; while it runs, when its workers have ended."""
        require(who, Role.MEMBER, "cancel jobs")
        now_s = self._core.clock()

        def work(connection: Connection) -> JobView:
            job = jobs.find(connection, ref, scope(who))
            if job.phase in ENDED:
                raise Refused(f"{job.id} is {job.phase} already", fix="nothing is left to cancel")
            if job.phase is JobPhase.QUEUED:
                changes: dict[str, Any] = {"phase": JobPhase.CANCELLED, "finished_s": now_s, "since_s": now_s}
            else:
                changes = stop_changes(JobPhase.CANCELLED, "cancelled", f"cancelled by {who.id}", now_s)
            jobs.update(connection, job.id, **changes)
            job = replace(job, **changes)
            events.append(connection, time_s=now_s, kind="job-cancelled", text=f"{job.id} was cancelled by {who.id}",
                          tenant=job.tenant, job=job.id)  # fmt: skip
            self._audit(connection, who, "job.cancel", job.id, tenant=job.tenant)
            live = generations.live_by_job(connection, {job.id}).get(job.id, [])
            return job_view(job, jobs.labels_of(connection, [job.id]).get(job.id, {}), live, None, now_s, scope(who))

        view = await self._write(work)
        failpoint("stop-stored")
        self._core.controller.nudge(view.id)
        self._core.controller.publish()
        return view


def new_job(spec: JobSpec, tenant: Tenant, who: Token, now_s: float, again: Mapping[str, Any] | None = None) -> Job:
    """The record of a job that is being submitted."""
    sla = effective_sla(spec.sla, tenant.sla)
    repeated = {} if again is None else {"again": again["of"]}
    job = Job(
        id=jobs.new_id(spec.name),
        tenant=tenant.name,
        name=spec.name,
        phase=JobPhase.QUEUED,
        submitted_s=now_s,
        submitted_by=who.id,
        min_workers=spec.workers.min,
        max_workers=spec.workers.max,
        demand=spec.resources.demand(),
        device_type=spec.resources.device,
        priority=spec.priority,
        elastic=spec.elastic,
        training=spec.run is not None,
        retries=spec.retries,
        since_s=now_s,
        facts={"application": f"{tenant.name}/{spec.name}", **model_fact(spec), **spec.facts(), **repeated},
    )
    return replace(job, start_by_s=sla.start_by_s(now_s), finish_by_s=sla.finish_by_s(now_s))


def _version(ref: str) -> tuple[str, str]:
    name, _, version = ref.partition("@")
    return name, version


def _is_environment(place: Path) -> bool:
    try:
        return all((place / name).is_file() for name in ("pyvenv.cfg", "bin/python"))
    except (OSError, ValueError):  # unreadable, or not a valid path
        return False


def _require_future_deadline(spec: JobSpec, now_s: float) -> None:
    """Refuse a deadline in the past."""
    deadline = None if spec.sla is None else spec.sla.deadline
    if isinstance(deadline, datetime) and deadline.timestamp() <= now_s:
        text = deadline.isoformat()
        raise InvalidSpec(f"{text} is past", field="sla.deadline", value=text, fix="write a future time, or like 2h")


def jobs_allowed(tenant: Tenant) -> int:
    """How many jobs of the tenant may run and wait at once."""
    return Policy.model_validate(dict(tenant.policy)).jobs


def job_room_left(connection: Connection, tenant: Tenant) -> int:
    """How many more jobs of the tenant may run or wait; negative after an admin lowered the limit."""
    return jobs_allowed(tenant) - job_counts.count_unfinished(connection, tenant.name)


def require_job_room(connection: Connection, tenant: Tenant, *, more: int = 0) -> None:
    """Refuse jobs beyond the tenant's limit: every round examines all jobs, and all tenants wait for it."""
    allowed = jobs_allowed(tenant)
    if job_counts.count_unfinished(connection, tenant.name) + more > allowed:
        raised = f"fairlead tenant update {tenant.name} --jobs {2 * allowed}"
        raise Refused(f"tenant {tenant.name} has {allowed} running and waiting jobs, the most that are allowed",
                      fix=f"wait for some to end, cancel some, or let an admin allow more: {raised}")  # fmt: skip


def require_secrets(connection: Connection, tenant: Tenant, spec: JobSpec) -> None:
    missing = secrets.missing_names(connection, tenant.name, spec.secrets)
    if missing:
        raise InvalidSpec(f"{missing[0]} is not a secret of {tenant.name}", field="secrets", value=missing[0],
                          fix=f"set it first: fairlead secret set {missing[0]}")  # fmt: skip
