"""Drives pipelines: compares what each should do next with what its stages do, and mends the difference.

Called by the reconcile loop before every round, so that what a finished stage makes possible is decided about at once.
Everything it knows is in the store: after a crash the next leader goes on from there.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import Connection

from fairlead.control.failpoints import failpoint
from fairlead.control.observe import stop_changes
from fairlead.control.pipeline_records import PipelineRecord, StageRecord
from fairlead.control.records import ENDED, Job, JobPhase
from fairlead.control.service.submitting import new_job
from fairlead.control.store import events, generations, jobs, pipelines, tenants, tokens
from fairlead.control.store.engine import Store
from fairlead.errors import FairleadError
from fairlead.pipelines import steps, wiring
from fairlead.pipelines.graph import PipelineSpec, stage_job, stored_pipeline
from fairlead.pipelines.prints import lasting
from fairlead.pipelines.steps import DONE, JobFact, StagePhase

NOTHING: Mapping[str, Any] = {"kind": "plain", "plain": None, "shown": "None"}
"""What a command gives."""
STEPS_AT_ONCE = 50
"""In one transaction: a stage's job is handed in within a millisecond or two."""
BITES = 100
LARGE_BYTES = 1 << 20
"""Of a result: a smaller one is copied to another node sooner than anybody notices."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A pipeline with all that its next steps depend on."""

    record: PipelineRecord
    spec: PipelineSpec
    stages: Mapping[str, StageRecord]
    jobs: Mapping[str, JobFact]
    earlier: Mapping[str, StageRecord]  # by stage: whose result may stand for it

    def next(self) -> list[steps.Step]:
        states = {name: stage.state for name, stage in self.stages.items()}
        cancelled = self.record.cancelled_by is not None
        return steps.next_steps(self.spec.upstream, states, self.jobs, frozenset(self.earlier), cancelled=cancelled)


class Pipelines:
    """The leader's."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._specs: dict[str, PipelineSpec] = {}

    async def running(self) -> list[str]:
        """The pipelines that have not ended."""
        return await self._store.read(pipelines.running)

    async def advance(self, but: Collection[str] = ()) -> set[str] | None:
        """Do what can be done, ``but`` for these. The jobs that it touched; None when there was nothing to do."""
        due = await self._store.read(partial(self._due, but=but))
        if not due:
            return None
        touched: set[str] = set()
        for _ in range(BITES):  # nobody's write waits for a whole pipeline; what is left then is done next time
            if not due:
                break
            now_s = self._clock()
            more, due = await self._store.write(partial(self._advance, due=due, now_s=now_s))
            failpoint("pipeline-stored")
            touched |= more
        return touched

    def _due(self, connection: Connection, but: Collection[str]) -> list[str]:
        running = set(pipelines.running(connection)).difference(but)
        self._specs = {name: spec for name, spec in self._specs.items() if name in running}
        seen = self._seen(connection, running)
        return [each.record.id for each in seen if each.next()]

    def _advance(self, connection: Connection, due: Collection[str], now_s: float) -> tuple[set[str], list[str]]:
        """The jobs touched, and the pipelines in which there is more to do than one transaction should hold.

        One step may make another possible at once, such as a row of stages that need not run again. Only to start a
        stage makes nothing else possible, and then nobody has to look again.
        """
        touched: set[str] = set()
        left = STEPS_AT_ONCE
        while True:
            ready = [(each, each.next()) for each in self._seen(connection, due)]
            if not any(planned for _, planned in ready):
                return touched, []
            if left <= 0:
                return touched, [each.record.id for each, planned in ready if planned]
            started = True
            for seen, planned in ready:
                wanted, left = planned[: max(0, left)], left - len(planned)
                started = started and len(wanted) == len(planned)
                for step in wanted:
                    jobs_of_it = _do(connection, seen, step, now_s)
                    started = started and isinstance(step, steps.Start) and bool(jobs_of_it)
                    touched |= jobs_of_it
            if started:
                return touched, []

    # ------------------------------------------------------------ looking

    def _seen(self, connection: Connection, wanted: Collection[str]) -> list[Seen]:
        records = [each for each in (pipelines.get(connection, name) for name in sorted(wanted)) if each is not None]
        running = [each for each in records if each.finished_s is None]
        own = pipelines.stages_of(connection, [each.id for each in running])
        return [self._look(connection, each, own[each.id]) for each in running]

    def _look(self, connection: Connection, record: PipelineRecord, own: Mapping[str, StageRecord]) -> Seen:
        if record.id not in self._specs:
            self._specs[record.id] = stored_pipeline(record.spec)
        spec = self._specs[record.id]
        facts = {}
        for name, stage in own.items():
            job = jobs.get(connection, stage.job) if stage.phase is StagePhase.ACTIVE and stage.job else None
            if job is not None:
                facts[name] = fact_of(job)
        may = [name for name in lasting(spec) if own[name].phase is StagePhase.WAITING]
        wanted = {name: own[name].fingerprint for name in may}
        found = pipelines.reusable(connection, record.tenant, sorted(set(wanted.values())))
        earlier = {name: found[mark] for name, mark in wanted.items() if mark in found}
        return Seen(record, spec, own, facts, earlier)


def fact_of(job: Job) -> JobFact:
    """How far a stage's job is. A result that is stored counts: that its worker has gone is not waited for."""
    done = job.phase is JobPhase.STOPPING and job.then is JobPhase.SUCCEEDED and "value" in job.result
    end = job.phase.value if job.phase in ENDED else "succeeded" if done else None
    given = dict(job.result.get("value", {})) or dict(NOTHING)
    missing = tuple(str(each) for each in job.result.get("missing", ()))
    stopping = job.phase is JobPhase.STOPPING and job.then is not JobPhase.QUEUED
    return JobFact(end, job.message, given, missing, stopping)


# ---------------------------------------------------------------- doing


def _do(connection: Connection, seen: Seen, step: steps.Step, now_s: float) -> set[str]:
    """Carry out one step within the transaction; returns the jobs it touched."""
    match step:
        case steps.Start(name):
            return _start(connection, seen, name, now_s)
        case steps.Reuse(name):
            _reuse(connection, seen, name, now_s)
        case steps.Settle(name, phase, message, result):
            _settle(connection, seen, name, phase, message, dict(result), now_s)
        case steps.Rebuild(name, for_stage):
            _rebuild(connection, seen, name, for_stage, now_s)
        case steps.Stop(name):
            return _stop(connection, seen, name, now_s)
        case steps.End(phase, message):
            pipelines.update(connection, seen.record.id, phase=phase, finished_s=now_s, message=message)
            why = f": {message}" if message else ""
            _tell(connection, seen, f"pipeline-{phase}", f"{seen.record.id} {phase}{why}", now_s)
    return set()


def _start(connection: Connection, seen: Seen, name: str, now_s: float) -> set[str]:
    record, stage = seen.record, seen.spec.stages[name]
    given = {other: dict(seen.stages[other].result or NOTHING) for other in sorted(stage.inputs)}
    try:
        spec = stage_job(seen.spec, name, record.id, {"args": stage.args, "inputs": given})
        if stage.command is not None:
            spec = spec.model_copy(update={"command": _words(stage.command, given)})
        near = _homes(connection, seen, given)
        mark = {"pipeline": record.id, "name": name, "trains": stage.trains}
        wished = {"stage": mark, "behind": seen.spec.behind[name]}
        job = _hand_in(connection, record, name, spec, near, wished, now_s)
    except FairleadError as error:
        text = f"{error} (fix: {error.fix})" if error.fix else str(error)
        _settle(connection, seen, name, StagePhase.FAILED, text, {}, now_s)
        return set()
    pipelines.update_stage(connection, record.id, name, phase=StagePhase.ACTIVE, job=job.id, message=None,
                           started_s=now_s, finished_s=None)  # fmt: skip
    return {job.id}


def _homes(connection: Connection, seen: Seen, given: Mapping[str, Mapping[str, Any]]) -> set[str]:
    """The nodes whose grids hold most of what a stage takes, where that is much: there it would rather run."""
    sizes = {other: reference.get("bytes") for other, reference in given.items()}
    large = {other: size for other, size in sizes.items() if isinstance(size, int) and size >= LARGE_BYTES}
    marks = [seen.stages[other].fingerprint for other in large]
    makers = pipelines.reusable(connection, seen.record.tenant, marks)  # also of what was not run again
    held: Counter[str] = Counter()
    for other, size in large.items():
        maker = makers.get(seen.stages[other].fingerprint, seen.stages[other])
        for generation in generations.of_job(connection, maker.job or "")[-1:]:
            held[generation.members[0].node] += size
    most = max(held.values(), default=0)
    return {node for node, size in held.items() if 2 * size >= most}


def _hand_in(
    connection: Connection, record: PipelineRecord, name: str, spec: Any, near: set[str], facts: Mapping[str, Any],
    now_s: float,
) -> Job:  # fmt: skip
    tenant = tenants.get(connection, record.tenant)
    who = tokens.get(connection, record.submitted_by)
    if tenant is None or who is None:
        raise FairleadError("whoever submitted the pipeline is not known any more", fix="run it again")
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


def _words(command: list[str], given: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The words of a command, with plain results of other stages in their places."""

    def word(reference: wiring.Reference) -> str:
        result = given[reference.stage]
        if result.get("kind") != "plain":
            raise FairleadError(f"{reference} is {result.get('shown')}, and a command takes plain values only",
                                field="command", fix="take a number or a text of it, like $stage[key]")  # fmt: skip
        try:
            return str(reference.part_of(result["plain"]))
        except (LookupError, TypeError):
            raise FairleadError(f"there is no {reference}: {reference.stage} gave {result.get('shown')}",
                                field="command", fix="look at what it returns") from None  # fmt: skip

    return [str(each) for each in wiring.resolve(command, word)]


def _reuse(connection: Connection, seen: Seen, name: str, now_s: float) -> None:
    earlier = seen.earlier[name]
    pipelines.update_stage(connection, seen.record.id, name, phase=StagePhase.CACHED, result=earlier.result, kept=False,
                           reused=earlier.pipeline, finished_s=now_s,
                           message=f"not run again: code and inputs are those of {earlier.pipeline}")  # fmt: skip
    _tell(connection, seen, "stage-cached", f"{seen.record.id}: {name} is not run again", now_s, stage=name)


def _settle(
    connection: Connection, seen: Seen, name: str, phase: StagePhase, message: str | None, result: dict[str, Any],
    now_s: float,
) -> None:  # fmt: skip
    if phase is StagePhase.SKIPPED:
        message = f"skipped: {message}" if not (message or "").startswith("skipped") else message
    changes: dict[str, Any] = {"phase": phase, "message": message, "finished_s": now_s}
    if phase in DONE:
        changes |= {"result": result, "kept": True, "fresh": False}
    pipelines.update_stage(connection, seen.record.id, name, **changes)
    why = f": {message}" if message else ""
    _tell(connection, seen, f"stage-{phase.value}", f"{seen.record.id}: {name} {phase.value}{why}", now_s, stage=name)


def _rebuild(connection: Connection, seen: Seen, name: str, for_stage: str, now_s: float) -> None:
    record, stage = seen.record, seen.stages[name]
    pipelines.forget_results(connection, record.tenant, stage.fingerprint)
    pipelines.update_stage(connection, record.id, name, phase=StagePhase.WAITING, job=None, result=None, kept=False,
                           reused=None, rebuilds=stage.rebuilds + 1, fresh=True, message=None)  # fmt: skip
    pipelines.update_stage(connection, record.id, for_stage, phase=StagePhase.WAITING, job=None, message=None)
    text = f"{record.id}: {name} is run anew for {for_stage}: what it gave is not in memory any more"
    _tell(connection, seen, "stage-rebuilt", text, now_s, stage=name)


def _stop(connection: Connection, seen: Seen, name: str, now_s: float) -> set[str]:
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


def _tell(connection: Connection, seen: Seen, kind: str, text: str, now_s: float, **facts: Any) -> None:
    events.append(connection, time_s=now_s, kind=kind, text=text, tenant=seen.record.tenant,
                  facts={"pipeline": seen.record.id, **facts})  # fmt: skip
