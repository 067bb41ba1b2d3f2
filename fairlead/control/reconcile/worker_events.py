"""Turns events of workers into facts in memory and changes in the store."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
from sqlalchemy import Connection

from fairlead import wire
from fairlead.agent.protocol import BackendEvent, WorkerEvent
from fairlead.control import datasets
from fairlead.control.observability import live_metrics, metric_families
from fairlead.control.plans import model_profiles
from fairlead.control.reconcile import worker_deaths
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.reconcile.internal_errors import must_propagate, report_error
from fairlead.control.reconcile.worker_messages import MOST, MOST_MISSING, SLACK_S, ImplausibleMessage, check_message
from fairlead.control.records import ENDED, Generation, Job, JobPhase
from fairlead.control.records import stop_changes as stop_changes
from fairlead.control.store import events, generations, jobs, metrics, nodes
from fairlead.recovery.deaths import Cause, Death, cause_of, signal_name

log = structlog.get_logger()

SPEED_AFTER_S = 3.0  # a generation must have run this long before its speed counts
_COMES_UP = wire.Ready()
LONGEST_ERROR = 2000  # characters of an error that are kept; the worker's log has all of it


@dataclass(slots=True)
class BatchOutcome:
    """What a batch changed: jobs whose course may have changed, positions of refused events, and whether decisions
    about other jobs may change now."""

    touched: set[str] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    asks_for_round: bool = False


@dataclass(slots=True)
class _Reports:
    """Progress and snapshots of one job, summed up: its new row, the changes, and its history."""

    job: Job
    changes: dict[str, Any] = field(default_factory=dict)
    history: list[tuple[str, int, Sequence[Mapping[str, Any]]]] = field(default_factory=list)
    snapshots: list[wire.Snapshot] = field(default_factory=list)

    def change(self, changes: dict[str, Any]) -> None:
        self.changes |= changes
        self.job = replace(self.job, **changes)


def is_report(event: BackendEvent) -> bool:
    """True for progress and snapshots, which come all the time and may wait a little to be stored together."""
    return isinstance(event, WorkerEvent) and isinstance(event.body, wire.Progress | wire.Snapshot)


def asks_for_a_round(event: WorkerEvent) -> bool:
    """True if decisions about other jobs may change now that this is stored.

    Not when a worker joins: its seat was given away before. Not when it ends: its seat is free once the gang's next
    action releases it, which asks for a round by itself.
    """
    return not (isinstance(event.body, wire.Joined | wire.Exited) or is_report(event))


def needs_no_store(event: WorkerEvent) -> bool:
    """True if nothing of it has to be stored, whatever its job: the node also knows it, and reports it to the next
    leader."""
    body = event.body
    joins = isinstance(body, wire.Joined) and not body.resumed and body.step == 0 and 0 <= body.generation <= MOST
    return joins or body == _COMES_UP


def fact_after(
    fact: WorkerFact, body: wire.FromWorker | wire.Exited, time_s: float | None = None
) -> WorkerFact:  # fmt: skip
    """The worker's fact after this event, which its node saw at ``time_s``."""
    match body:
        case wire.Ready():
            return replace(fact, phase="ready")
        case wire.Joined(generation=generation):
            return replace(fact, phase="joined", generation=generation, slow_s=0.0, lost_s=None)
        case wire.Progress(generation=generation, slow_s=slow_s) if generation == fact.generation:
            return fact if slow_s == fact.slow_s else replace(fact, slow_s=slow_s)
        case wire.Left(generation=generation):
            return replace(fact, phase="left", generation=generation)
        case wire.Broken(generation=generation):
            return replace(fact, phase="broken", generation=generation, lost_s=time_s)
        case wire.Finished(generation=generation):
            return replace(fact, phase="finished", generation=generation, finished_s=time_s)
        case wire.Exited():
            cause = cause_of(body.code, body.signal, body.cause)
            return replace(fact, exited=True, ended_by=_ended_by(body), cause=cause, lost_s=time_s)
        case _:
            return fact


def store_events(connection: Connection, batch: Sequence[WorkerEvent], now_s: float) -> BatchOutcome:
    """Store what a batch of events means, with the cursors up to which events are taken in.

    Jobs that only report progress, as nearly all do, are stored together; all others event by event.
    """
    taken, together = BatchOutcome(), _store_reports(connection, batch, now_s)
    apart = {event.job for event in batch} - together
    found = jobs.get_many(connection, apart)
    known = {job: found.get(job) for job in apart}
    for place, event in enumerate(batch):
        if event.job in together:
            continue
        if not is_report(event):
            taken.touched.add(event.job)
        if not _store_guarded(connection, event, known, taken, now_s):
            taken.refused.add(place)
            taken.touched.add(event.job)
            taken.asks_for_round = True
    nodes.advance_cursors(connection, {(event.node, event.incarnation): event.sequence for event in batch})
    return taken


def _store_reports(connection: Connection, batch: Sequence[WorkerEvent], now_s: float) -> set[str]:
    """Store the events of all jobs with nothing but progress and snapshots; returns those jobs.

    Leaves out a job with any report that is not plain; leaves out all if the statements fail.
    """
    said: dict[str, list[WorkerEvent]] = {}
    for event in batch:
        said.setdefault(event.job, []).append(event)
    plain = {job: told for job, told in said.items() if all(map(is_report, told))}
    if not plain:
        return set()
    savepoint = connection.begin_nested()
    try:
        known = jobs.get_many(connection, plain)
        active = [job for job, found in known.items() if found.phase not in ENDED]
        standing = generations.live_by_job(connection, active)
        found = {
            job: _collect_reports(known.get(job), standing.get(job, []), told, now_s) for job, told in plain.items()
        }
        reports = {job: each for job, each in found.items() if each is not None}
        jobs.update_many(connection, {job: each.changes for job, each in reports.items()})
        metrics.append_all(connection, [told for each in reports.values() for told in each.history])
    except Exception as error:
        if must_propagate(error):
            raise
        savepoint.rollback()
        log.warning("storing a batch of reports one by one", error=f"{type(error).__name__}: {error}"[:500])
        return set()
    savepoint.commit()
    for each in reports.values():
        for snapshot in each.snapshots:
            _observe_snapshot(each.job, snapshot)
    return set(reports)


def _collect_reports(
    job: Job | None, standing: Sequence[Generation], told: Sequence[WorkerEvent], now_s: float
) -> _Reports | None:
    """Sums up the reports if all are plain: valid, and of a generation whose first step was seen before."""
    if job is None:
        return None
    found = _Reports(job)
    if job.phase in ENDED:
        return found  # its progress no longer matters
    for event in told:
        try:
            body = check_message(event.body, job.submitted_s, now_s)
        except ImplausibleMessage:
            return None
        if isinstance(body, wire.Snapshot):
            found.snapshots.append(body)
            found.change({"snapshot_step": _snapshot_step(found.job, body)})
        elif isinstance(body, wire.Progress) and body.steps:
            generation = next((each for each in standing if each.number == body.generation), None)
            if generation is None or generation.first_step is None:
                return None
            found.history.append((job.id, body.generation, body.steps))
            found.change(_progress_changes(found.job, generation, body, event.time_s))
    return found


def _store_guarded(
    connection: Connection, event: WorkerEvent, known: dict[str, Job | None], taken: BatchOutcome, now_s: float
) -> bool:  # fmt: skip
    """Store the event if needed; False if it was refused. ``known`` holds jobs as read, without those that changed.

    The tenant's code influences the content: an event that cannot be stored fails its own job, not the platform.
    """
    job = known[event.job] if event.job in known else jobs.get(connection, event.job)
    known[event.job] = job
    if job is None or job.phase in ENDED:
        return True
    savepoint = None
    try:
        event = replace(event, body=check_message(event.body, job.submitted_s, now_s))
        if _is_stored(event.body, job):
            del known[event.job]
            taken.asks_for_round = taken.asks_for_round or asks_for_a_round(event)
            savepoint = connection.begin_nested()
            _store_event(connection, event, job, now_s)
    except Exception as error:
        if must_propagate(error):
            raise
        if savepoint is not None:
            savepoint.rollback()
        known.pop(event.job, None)
        _fail_sender(connection, event, error, now_s)
        return False
    if savepoint is not None:
        savepoint.commit()
    return True


def _is_stored(body: wire.FromWorker | wire.Exited, job: Job) -> bool:
    """True if :func:`_store_event` may write anything: most events of a command are facts in memory alone."""
    match body:
        case wire.Ready():
            return body.batch_size > 0
        case wire.Joined():
            return body.resumed
        case wire.Finished():
            return job.training
        case wire.Exited():
            return worker_deaths.is_recorded(body)
        case _:
            return True


def _fail_sender(connection: Connection, event: WorkerEvent, error: Exception, now_s: float) -> None:
    """Fail the job that this message is about, with one line that says why."""
    kind = type(event.body).__name__
    if isinstance(error, ImplausibleMessage):
        why = f"the worker sent an invalid message: its {kind} {error}"
    else:
        mark = report_error("taking in a message", error, job=event.job, message=kind)
        why = f"its {kind} could not be stored: {type(error).__name__} (error {mark})"
    savepoint = connection.begin_nested()
    try:
        job = jobs.get(connection, event.job)
        if job is not None and job.phase not in ENDED and job.phase is not JobPhase.STOPPING:
            record_failure(connection, job, event.worker, why, permanent=True, now_s=now_s)
    except Exception as again:
        if must_propagate(again):
            raise
        savepoint.rollback()
        report_error("failing a job", again, job=event.job)
    else:
        savepoint.commit()


def _store_event(connection: Connection, event: WorkerEvent, job: Job, now_s: float) -> None:
    ended_s = min(event.time_s, now_s)  # the control plane may have been down since
    match event.body:
        case wire.Ready(samples=samples, epochs=epochs, batch_size=batch, plan=said) if batch:
            steps = epochs * -(-samples // batch)
            wants = {"facts": {**job.facts, "plan": said}} if said != "auto" and "plan" not in job.facts else {}
            total = steps if steps >= job.step else 0  # unknown if it has made more steps already
            jobs.update(connection, job.id, batch_size=batch, total_steps=total, **wants)
        case wire.Joined(resumed=True) as joined if _is_leader(connection, event):
            if _resume_is_stored(connection, joined, job):
                return
            text = f"{job.id} resumed generation {joined.generation}: it left, but was never told to join the next one"
            events.append(connection, time_s=event.time_s, kind="generation-resumed", text=text, tenant=job.tenant,
                          job=job.id, facts={"generation": joined.generation, "step": joined.step})  # fmt: skip
        case wire.Progress() as progress if progress.steps:
            _store_progress(connection, event, job, progress)
        case wire.Snapshot() as snapshot:
            _observe_snapshot(job, snapshot)
            jobs.update(connection, job.id, snapshot_step=_snapshot_step(job, snapshot))
        case wire.Finished() as finished if job.training and not _has_result(job) and _is_leader(connection, event):
            result: dict[str, Any] = {"metrics": _finite(finished.metrics)}
            result |= {"value": finished.value} if finished.value else {}
            changes: dict[str, Any] = {"result": result, "step": _within_total(finished.step, job)}
            if job.phase is not JobPhase.STOPPING or job.then is JobPhase.QUEUED:
                changes |= stop_changes(JobPhase.SUCCEEDED, "finished", None, ended_s)
            jobs.update(connection, job.id, **changes)
            datasets.store_origin(connection, job, finished, now_s)
        case wire.Profiled() as profiled if job.training:
            model_profiles.store_profile(connection, job, profiled, now_s)
        case wire.Raised() as raised if job.phase is not JobPhase.STOPPING:
            if raised.missing:
                jobs.update(connection, job.id, result={"missing": raised.missing[:MOST_MISSING]})
            record_failure(connection, job, event.worker, raised.error, permanent=raised.permanent, now_s=ended_s)
        case wire.Exited() as exited if job.phase in (JobPhase.STARTING, JobPhase.RUNNING):
            worker_deaths.record_death(connection, job, event.worker, exited, ended_s)


def _has_result(job: Job) -> bool:
    """True if the job's result is stored already: a result counts once."""
    return "metrics" in job.result


def _resume_is_stored(connection: Connection, joined: wire.Joined, job: Job) -> bool:
    """True if an event says already that the gang resumed this generation."""
    known = events.last(connection, job.id, "generation-resumed")
    return known is not None and known.facts.get("generation") == joined.generation


def _within_total(step: int, job: Job) -> int:
    """Limits a step to the number of steps there are, if that is known."""
    return min(step, job.total_steps) if job.total_steps else step


def _snapshot_step(job: Job, snapshot: wire.Snapshot) -> int:
    return max(_within_total(snapshot.step, job), job.snapshot_step)


def _store_progress(connection: Connection, event: WorkerEvent, job: Job, progress: wire.Progress) -> None:
    metrics.append(connection, job.id, progress.generation, progress.steps)
    generation = generations.get(connection, job.id, progress.generation)
    changes = _progress_changes(job, generation, progress, event.time_s)
    own = [step for step in progress.steps if generation and step.get("time_s", event.time_s) >= generation.created_s]
    if generation is not None and generation.first_step is None and own:  # its first report may be of the former one
        generations.update(connection, job.id, generation.number, first_step=int(own[0]["step"]))
        # The worker may claim any time, but a first step is reported at once.
        stepped_s = min(max(float(own[0].get("time_s", event.time_s)), event.time_s - SLACK_S), event.time_s)
        live_metrics.observe(metric_families.FIRST_STEP, stepped_s - generation.created_s, job.tenant)
        changes |= _record_recovery(connection, job, generation, stepped_s)
    jobs.update(connection, job.id, **changes)


def _progress_changes(
    job: Job, generation: Generation | None, progress: wire.Progress, time_s: float
) -> dict[str, Any]:  # fmt: skip
    """The changes that a report with steps makes to its job's row."""
    changes: dict[str, Any] = {
        "step": progress.step,
        "total_steps": progress.total_steps,
        "epoch": progress.epoch,
        "loss": _finite(progress.steps[-1]).get("loss"),
        "samples_per_s": progress.samples_per_s,
    }
    if generation is not None:
        changes["speeds"] = {**job.speeds, **measured_speed(job, generation, progress.step, time_s)}
    return changes


def _observe_snapshot(job: Job, snapshot: wire.Snapshot) -> None:
    live_metrics.observe(metric_families.SNAPSHOT, snapshot.seconds, "disk" if snapshot.where == "disk" else "memory")
    if snapshot.waited_s > 0:
        live_metrics.observe(metric_families.SNAPSHOT_WAIT, snapshot.waited_s, job.tenant)


def _finite(numbers: Mapping[str, float]) -> dict[str, float]:
    """Only finite numbers: JSON has no form for the others."""
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def measured_speed(job: Job, generation: Generation, step: int, now_s: float) -> dict[int, float]:
    """Samples per second with this generation's number of workers, averaged since it ran; empty while it is too young.

    The scheduler can rely on an average over the whole generation, with its snapshots and evaluations, but not on the
    speed of the last fraction of a second.
    """
    if generation.running_s is None or generation.first_step is None or now_s - generation.running_s < SPEED_AFTER_S:
        return {}
    samples = (step - generation.first_step + 1) * job.batch_size
    if samples <= 0:
        return {}
    return {len(generation.members): samples / (now_s - generation.running_s)}


def _record_recovery(connection: Connection, job: Job, generation: Generation, stepped_s: float) -> dict[str, Any]:
    """The first step after a loss ends the recovery: recovery time (FRT) counts from the loss to here."""
    lost = generations.failures_before(connection, job.id, generation.number)
    if not lost:
        return {}
    took_s = max(0.0, stepped_s - min(lost))
    text = f"{job.id} trains again {took_s:.2f} s after it lost a worker"
    events.append(connection, time_s=stepped_s, kind="job-recovered", text=text, tenant=job.tenant, job=job.id,
                  facts={"seconds": round(took_s, 3), "generation": generation.number})  # fmt: skip
    return {"recoveries": job.recoveries + 1, "recovery_s": job.recovery_s + took_s}


def _ended_by(exited: wire.Exited) -> str | None:
    if exited.cause == "silent":
        return "silent for too long"
    if exited.signal is not None:
        return signal_name(exited.signal)
    return f"exit code {exited.code}" if exited.code else None


def record_failure(connection: Connection, job: Job, worker: str, error: str, *, permanent: bool, now_s: float) -> None:
    """A worker reported an error: the policy decides whether the job tries again."""
    cause = Cause.REFUSED if permanent else Cause.RAISED
    death = Death(worker, cause, job.generation, error[:LONGEST_ERROR], job.step, now_s)
    worker_deaths.judge_deaths(connection, job, [death], 0, now_s)


def _is_leader(connection: Connection, event: WorkerEvent) -> bool:
    number = getattr(event.body, "generation", 0)
    generation = generations.get(connection, event.job, number)
    return generation is not None and any(m.worker == event.worker and m.rank == 0 for m in generation.members)
