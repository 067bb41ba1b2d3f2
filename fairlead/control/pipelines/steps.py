"""Carries out the next steps of a pipeline in one transaction, unless they are outdated or the tenant has no room."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from fairlead.control.pipelines.records import PipelineRecord, StageRecord
from fairlead.control.reconcile.worker_events import stop_changes
from fairlead.control.records import ENDED, Job, JobPhase
from fairlead.control.service.submission import job_room_left, new_job
from fairlead.control.store import events, generations, jobs, pipelines, tenants, tokens
from fairlead.errors import FairleadError
from fairlead.pipelines import argument_refs, next_steps
from fairlead.pipelines.graph import PipelineSpec, stage_job
from fairlead.pipelines.next_steps import DONE, JobFact, StagePhase

NO_VALUE: Mapping[str, Any] = {"kind": "plain", "plain": None, "shown": "None"}
"""The result of a command."""
_NEWEST = 2**31 - 1
"""Larger than any generation number."""
LARGE_BYTES = 1 << 20
"""Results of at least this size attract the next stage to their node; smaller ones are copied quickly."""

JobStatus = tuple[str, str | None]
"""The phase of a job, and the phase that follows if it is stopping."""


@dataclass(frozen=True, slots=True)
class PipelineState:
    """A pipeline with everything that its next steps depend on."""

    record: PipelineRecord
    spec: PipelineSpec
    stages: Mapping[str, StageRecord]
    jobs: Mapping[str, JobFact]
    earlier: Mapping[str, StageRecord]  # by stage: an earlier stage whose result can be reused
    job_statuses: Mapping[str, JobStatus]  # of the jobs of its active stages

    def next(self) -> list[next_steps.Step]:
        states = {name: stage.state for name, stage in self.stages.items()}
        cancelled = self.record.cancelled_by is not None
        return next_steps.next_steps(
            self.spec.upstream, states, self.jobs, frozenset(self.earlier), cancelled=cancelled
        )


def carry_out(
    connection: Connection, seen: PipelineState, batch: Sequence[next_steps.Step], now_s: float
) -> tuple[set[str], bool, bool]:  # fmt: skip
    """Carry out these steps in the transaction, unless their stages changed or the tenant has no room for more jobs.

    Returns the jobs touched, whether anything was done, and whether a job found no room.
    """
    record = pipelines.get(connection, seen.record.id)
    if record is None or (record.phase, record.cancelled_by) != (seen.record.phase, seen.record.cancelled_by):
        return set(), True, False  # planned anew
    names = {name for step in batch for name in _stages_in(step)}
    standing = pipelines.stage_states(connection, seen.record.id, names)
    room = job_room(connection, seen.record.tenant) if any(isinstance(step, next_steps.Start) for step in batch) else 0
    touched: set[str] = set()
    acted = no_room = False
    for step in batch:
        if any(standing.get(name) != _stage_state(seen.stages[name]) for name in _stages_in(step)):
            acted = True
        elif isinstance(step, next_steps.Start) and room <= 0:
            _mark_waiting(connection, seen, step.stage)
            no_room = True
        else:
            own = _carry_out_step(connection, seen, step, now_s)
            room -= isinstance(step, next_steps.Start) and bool(own)
            touched |= own
            acted = True
    return touched, acted, no_room


def _stages_in(step: next_steps.Step) -> tuple[str, ...]:
    match step:
        case next_steps.PipelineEnd():
            return ()
        case next_steps.Rebuild(name, for_stage):
            return name, for_stage
        case _:
            return (step.stage,)


def _stage_state(stage: StageRecord) -> tuple[str, str | None]:
    return stage.phase.value, stage.job


def job_room(connection: Connection, tenant: str) -> int:
    """How many more jobs of the tenant may run or wait."""
    own = tenants.get(connection, tenant)
    return 0 if own is None else job_room_left(connection, own)


def _mark_waiting(connection: Connection, seen: PipelineState, name: str) -> None:
    """Record that a stage waits because its tenant has as many jobs as it may have."""
    why = f"waits: tenant {seen.record.tenant} has reached its limit of running and waiting jobs"
    if seen.stages[name].message != why:
        pipelines.update_stage(connection, seen.record.id, name, message=why)


def _carry_out_step(connection: Connection, seen: PipelineState, step: next_steps.Step, now_s: float) -> set[str]:
    """Carry out one step in the transaction; returns the jobs it touched."""
    match step:
        case next_steps.Start(name):
            return _start(connection, seen, name, now_s)
        case next_steps.Reuse(name):
            _reuse(connection, seen, name, now_s)
        case next_steps.Settle(name, phase, message, result):
            _settle(connection, seen, name, phase, message, dict(result), now_s)
        case next_steps.Rebuild(name, for_stage):
            _rebuild(connection, seen, name, for_stage, now_s)
        case next_steps.Stop(name):
            return _stop(connection, seen, name, now_s)
        case next_steps.PipelineEnd(phase, message):
            pipelines.update(connection, seen.record.id, phase=phase, finished_s=now_s, message=message)
            why = f": {message}" if message else ""
            _log_event(connection, seen, f"pipeline-{phase}", f"{seen.record.id} {phase}{why}", now_s)
    return set()


def _start(connection: Connection, seen: PipelineState, name: str, now_s: float) -> set[str]:
    record, stage = seen.record, seen.spec.stages[name]
    given = {other: dict(seen.stages[other].result or NO_VALUE) for other in sorted(stage.inputs)}
    try:
        spec = stage_job(seen.spec, name, record.id, {"args": stage.args, "inputs": given})
        if stage.command is not None:
            spec = spec.model_copy(update={"command": _resolve_command(stage.command, given)})
        near = _nodes_with_inputs(connection, seen, given)
        mark = {"pipeline": record.id, "name": name, "trains": stage.trains}
        wished = {"stage": mark, "behind": seen.spec.behind[name]}
        job = _submit_job(connection, record, name, spec, near, wished, now_s)
    except FairleadError as error:
        text = f"{error} (fix: {error.fix})" if error.fix else str(error)
        _settle(connection, seen, name, StagePhase.FAILED, text, {}, now_s)
        return set()
    pipelines.update_stage(connection, record.id, name, phase=StagePhase.ACTIVE, job=job.id, message=None,
                           started_s=now_s, finished_s=None)  # fmt: skip
    return {job.id}


def _nodes_with_inputs(connection: Connection, seen: PipelineState, given: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The nodes whose grids hold most of a stage's large inputs: it should run there."""
    sizes = {other: reference.get("bytes") for other, reference in given.items()}
    large = {other: size for other, size in sizes.items() if isinstance(size, int) and size >= LARGE_BYTES}
    marks = [seen.stages[other].fingerprint for other in large]
    makers = pipelines.reusable_stages(connection, seen.record.tenant, marks)  # also for reused results
    held: Counter[str] = Counter()
    for other, size in large.items():
        maker = makers.get(seen.stages[other].fingerprint, seen.stages[other])
        generation = generations.previous(connection, maker.job or "", _NEWEST)
        if generation is not None and generation.members:
            held[generation.members[0].node] += size
    most = max(held.values(), default=0)
    return {node for node, size in held.items() if 2 * size >= most}


def _submit_job(
    connection: Connection, record: PipelineRecord, name: str, spec: Any, near: set[str], facts: Mapping[str, Any],
    now_s: float,
) -> Job:  # fmt: skip
    tenant = tenants.get(connection, record.tenant)
    who = tokens.get(connection, record.submitted_by)
    if tenant is None or who is None:
        raise FairleadError("the pipeline's tenant or token was deleted", fix="run it again")
    spec = spec.model_copy(update={"tenant": record.tenant})
    document = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    digest = hashlib.sha256(spec.model_dump_json(by_alias=True).encode()).hexdigest()
    job = new_job(spec, tenant, who, now_s)
    homes = {"near": sorted({*job.facts.get("near", ()), *near})} if near else {}
    job = replace(job, facts={**job.facts, **homes, **facts})
    stored, _ = jobs.insert(connection, job, document, spec.labels, None, digest)
    events.append(connection, time_s=now_s, kind="job-submitted", tenant=record.tenant, job=stored.id,
                  text=f"{stored.id} was submitted: stage {name} of {record.id}",
                  facts={"by": who.id, "pipeline": record.id, "stage": name})  # fmt: skip
    return stored


def _resolve_command(command: list[str], given: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The command's arguments with references replaced by plain results of other stages."""

    def word(reference: argument_refs.Reference) -> str:
        result = given[reference.stage]
        if result.get("kind") != "plain":
            raise FairleadError(f"{reference} is {result.get('shown')}, and a command takes plain values only",
                                field="command", fix="take a number or a text of it, like $stage[key]")  # fmt: skip
        try:
            return str(reference.part_of(result["plain"]))
        except (LookupError, TypeError):
            raise FairleadError(f"there is no {reference}: the result of {reference.stage} is {result.get('shown')}",
                                field="command", fix="look at what it returns") from None  # fmt: skip

    return [str(each) for each in argument_refs.resolve(command, word)]


def _reuse(connection: Connection, seen: PipelineState, name: str, now_s: float) -> None:
    earlier = seen.earlier[name]
    pipelines.update_stage(connection, seen.record.id, name, phase=StagePhase.CACHED, result=earlier.result, kept=False,
                           reused=earlier.pipeline, finished_s=now_s,
                           message=f"not run again: same code and inputs as in {earlier.pipeline}")  # fmt: skip
    _log_event(connection, seen, "stage-cached", f"{seen.record.id}: {name} is not run again", now_s, stage=name)


def _settle(
    connection: Connection, seen: PipelineState, name: str, phase: StagePhase, message: str | None,
    result: dict[str, Any],
    now_s: float,
) -> None:  # fmt: skip
    if phase is StagePhase.SKIPPED:
        message = f"skipped: {message}" if not (message or "").startswith("skipped") else message
    changes: dict[str, Any] = {"phase": phase, "message": message, "finished_s": now_s}
    if phase in DONE:
        changes |= {"result": result, "kept": True, "fresh": False}
    pipelines.update_stage(connection, seen.record.id, name, **changes)
    why = f": {message}" if message else ""
    _log_event(
        connection, seen, f"stage-{phase.value}", f"{seen.record.id}: {name} {phase.value}{why}", now_s, stage=name
    )


def _rebuild(connection: Connection, seen: PipelineState, name: str, for_stage: str, now_s: float) -> None:
    record, stage = seen.record, seen.stages[name]
    pipelines.mark_results_gone(connection, record.tenant, stage.fingerprint)
    pipelines.update_stage(connection, record.id, name, phase=StagePhase.WAITING, job=None, result=None, kept=False,
                           reused=None, rebuilds=stage.rebuilds + 1, fresh=True, message=None)  # fmt: skip
    pipelines.update_stage(connection, record.id, for_stage, phase=StagePhase.WAITING, job=None, message=None)
    text = f"{record.id}: {name} runs again for {for_stage}: its result is no longer in memory"
    _log_event(connection, seen, "stage-rebuilt", text, now_s, stage=name)


def _stop(connection: Connection, seen: PipelineState, name: str, now_s: float) -> set[str]:
    job = jobs.get(connection, seen.stages[name].job or "")
    if job is None or job.phase in ENDED:
        return set()
    by = f"its pipeline was cancelled by {seen.record.cancelled_by}"
    if job.phase is JobPhase.QUEUED:
        jobs.update(connection, job.id, phase=JobPhase.CANCELLED, finished_s=now_s, since_s=now_s, message=by)
    else:
        jobs.update(connection, job.id, **stop_changes(JobPhase.CANCELLED, "cancelled", by, now_s))
    events.append(connection, time_s=now_s, kind="job-cancelled", text=f"{job.id} was cancelled: {by}",
                  tenant=job.tenant, job=job.id)  # fmt: skip
    return {job.id}


def _log_event(connection: Connection, seen: PipelineState, kind: str, text: str, now_s: float, **facts: Any) -> None:
    events.append(connection, time_s=now_s, kind=kind, text=text, tenant=seen.record.tenant,
                  facts={"pipeline": seen.record.id, **facts})  # fmt: skip
