"""What the workers say, turned into facts in memory and changes in the store."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection

from fairlead import wire
from fairlead.backends.protocol import BackendEvent, WorkerEvent
from fairlead.control import datasets, knowing
from fairlead.control.gangs import WorkerFact
from fairlead.control.internal_errors import stays_what_it_is, told
from fairlead.control.metrics import families, live
from fairlead.control.records import ENDED, Generation, Job, JobPhase
from fairlead.control.store import events, generations, jobs, metrics, nodes
from fairlead.control.worker_messages import MOST_MISSING, Nonsense, checked
from fairlead.units import shown_size

SPEED_AFTER_S = 3.0  # a generation must have run for so long before its speed is believed
LONGEST_ERROR = 2000  # characters of an error that are kept; the whole of it is in the worker's log


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of a batch of events: the jobs it touched, and the events that were refused, by their places."""

    touched: set[str] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)


def can_wait(event: BackendEvent) -> bool:
    """Whether it may wait a little for company: signs of life, which come all the time."""
    return isinstance(event, WorkerEvent) and isinstance(event.body, wire.Progress | wire.Snapshot)


def asks_for_a_round(event: WorkerEvent) -> bool:
    """Whether others could be decided about differently now.

    Not because a worker came up: its seat was given away before. And not because it ended: its seat is free once that
    is acted upon, which asks for a round by itself.
    """
    body = event.body
    plain = isinstance(body, wire.Ready) and not body.batch_size  # one that trains tells how much there is to do
    return not (plain or isinstance(body, wire.Joined | wire.Exited) or can_wait(event))


def fact_after(
    fact: WorkerFact, body: wire.FromWorker | wire.Exited, time_s: float | None = None
) -> WorkerFact:  # fmt: skip
    """What is known of a worker after this event, which its node saw then."""
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
            return replace(fact, exited=True, ended_by=_ended_by(body), lost_s=time_s)
        case _:
            return fact


def store_events(connection: Connection, batch: Sequence[WorkerEvent], now_s: float) -> Taken:
    """Write what a batch of events means, with the cursor up to which it is known."""
    taken = Taken()
    for place, event in enumerate(batch):
        if not _take(connection, event, now_s, taken.touched):
            taken.refused.add(place)
    newest = {(event.node, event.incarnation): event.sequence for event in batch}
    for (node, incarnation), sequence in newest.items():
        nodes.advance(connection, node, incarnation, sequence)
    return taken


def _take(connection: Connection, event: WorkerEvent, now_s: float, touched: set[str]) -> bool:
    """Whether the event was stored, if it had to be.

    The tenant's code has a say in these words: what cannot be stored fails its own job, not the platform.
    """
    savepoint = connection.begin_nested()
    try:
        job = jobs.get(connection, event.job)
        if job is not None and job.phase not in ENDED:
            touched.add(job.id)
            said = checked(event.body, job.submitted_s, now_s)
            _store_event(connection, replace(event, body=said), job, now_s)
    except Exception as error:
        if stays_what_it_is(error):
            raise
        savepoint.rollback()
        _refuse(connection, event, error, now_s)
        return False
    savepoint.commit()
    return True


def _refuse(connection: Connection, event: WorkerEvent, error: Exception, now_s: float) -> None:
    """Fail the job that this message is about, with one line that says why."""
    kind = type(event.body).__name__
    if isinstance(error, Nonsense):
        why = f"{event.worker}: the worker talks nonsense: its {kind} {error}"
    else:
        mark = told("taking in a message", error, job=event.job, message=kind)
        why = f"{event.worker}: its {kind} could not be taken in: {type(error).__name__} (error {mark})"
    savepoint = connection.begin_nested()
    try:
        job = jobs.get(connection, event.job)
        if job is not None and job.phase not in ENDED and job.phase is not JobPhase.STOPPING:
            fail(connection, job, why, final=True, now_s=now_s)
    except Exception as again:
        if stays_what_it_is(again):
            raise
        savepoint.rollback()
        told("failing a job", again, job=event.job)
    else:
        savepoint.commit()


def _store_event(connection: Connection, event: WorkerEvent, job: Job, now_s: float) -> None:
    ended_s = min(event.time_s, now_s)  # the control plane may have been down since
    match event.body:
        case wire.Ready(samples=samples, epochs=epochs, batch_size=batch, plan=said) if batch:
            steps = epochs * -(-samples // batch)
            wants = {"facts": {**job.facts, "plan": said}} if said != "auto" and "plan" not in job.facts else {}
            jobs.update(connection, job.id, batch_size=batch, total_steps=steps, **wants)
        case wire.Progress() as progress if progress.steps:
            _store_progress(connection, event, job, progress)
        case wire.Snapshot(step=step, where=where, seconds=seconds):
            live.observe(families.SNAPSHOT, seconds, "disk" if where == "disk" else "memory")
            if event.body.waited_s > 0:
                live.observe(families.SNAPSHOT_WAIT, event.body.waited_s, job.tenant)
            jobs.update(connection, job.id, snapshot_step=max(step, job.snapshot_step))
        case wire.Finished() as finished if job.training and _is_leader(connection, event):
            result = {"metrics": _finite(finished.metrics), "artifacts": finished.artifacts}
            result |= {"value": finished.value} if finished.value else {}
            changes: dict[str, Any] = {"result": result, "step": finished.step}
            if job.phase is not JobPhase.STOPPING or job.then is JobPhase.QUEUED:
                changes |= stop_changes(JobPhase.SUCCEEDED, "finished", None, ended_s)
            jobs.update(connection, job.id, **changes)
            datasets.store_origin(connection, job, finished, now_s)
        case wire.Profiled() as profiled if job.training:
            knowing.store_profile(connection, job, profiled, now_s)
        case wire.Raised() as raised if job.phase is not JobPhase.STOPPING:
            final = raised.permanent or job.failures >= job.retries
            if raised.missing:
                jobs.update(connection, job.id, result={"missing": raised.missing[:MOST_MISSING]})
            fail(connection, job, f"{event.worker}: {raised.error[:LONGEST_ERROR]}", final=final, now_s=ended_s)
        case wire.Exited() as exited if job.phase is not JobPhase.STOPPING:
            message = failure_of(exited, job, event.worker)
            if message is not None:
                final = exited.cause == "disk-full" or job.failures >= job.retries  # its folder stays as full as it is
                fail(connection, job, message, final=final, now_s=ended_s)


def _store_progress(connection: Connection, event: WorkerEvent, job: Job, progress: wire.Progress) -> None:
    metrics.append(connection, job.id, progress.generation, progress.steps)
    generation = _generation(connection, job.id, progress.generation)
    changes: dict[str, Any] = {
        "step": progress.step,
        "total_steps": progress.total_steps,
        "epoch": progress.epoch,
        "loss": _finite(progress.steps[-1]).get("loss"),
        "samples_per_s": progress.samples_per_s,
    }
    if generation is not None:
        changes["speeds"] = {**job.speeds, **measured_speed(job, generation, progress.step, event.time_s)}
    if progress.step > job.step:
        changes["losses"] = 0
    own = [step for step in progress.steps if generation and step.get("time_s", event.time_s) >= generation.created_s]
    if generation is not None and generation.first_step is None and own:  # it may first tell of the former
        generations.update(connection, job.id, generation.number, first_step=int(own[0]["step"]))
        stepped_s = min(float(own[0].get("time_s", event.time_s)), event.time_s)  # its word, which may be any number
        live.observe(families.FIRST_STEP, stepped_s - generation.created_s, job.tenant)
        changes |= _recovered(connection, job, generation, stepped_s)
    jobs.update(connection, job.id, **changes)


def _finite(numbers: Mapping[str, float]) -> dict[str, float]:
    """Those that are numbers: JSON has no word for the others."""
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def measured_speed(job: Job, generation: Generation, step: int, now_s: float) -> dict[int, float]:
    """Samples per second with this generation's number of workers, averaged since it ran; empty while it is too young.

    An average over the whole generation, with its snapshots and evaluations, is what the scheduler can bank on; the
    speed of the last fraction of a second is not.
    """
    if generation.running_s is None or generation.first_step is None or now_s - generation.running_s < SPEED_AFTER_S:
        return {}
    samples = (step - generation.first_step + 1) * job.batch_size
    if samples <= 0:
        return {}
    return {len(generation.members): samples / (now_s - generation.running_s)}


def _recovered(connection: Connection, job: Job, generation: Generation, stepped_s: float) -> dict[str, Any]:
    """The first step after a loss closes the recovery: FRT is the time from the loss to here."""
    lost: list[float] = []
    for earlier in reversed([g for g in generations.of_job(connection, job.id) if g.number < generation.number]):
        if earlier.broken_s is not None:
            lost.append(earlier.broken_s)
        if earlier.first_step is not None:
            break  # it had recovered from anything before
    if not lost:
        return {}
    took_s = max(0.0, stepped_s - min(lost))
    text = f"{job.id} trains again {took_s:.2f} s after it lost a worker"
    events.append(connection, time_s=stepped_s, kind="job-recovered", text=text, tenant=job.tenant, job=job.id,
                  facts={"seconds": round(took_s, 3), "generation": generation.number})  # fmt: skip
    return {"recoveries": job.recoveries + 1, "recovery_s": job.recovery_s + took_s}


def failure_of(exited: wire.Exited, job: Job, worker: str) -> str | None:
    """Why the end of this worker is the fault of the job's own code, or None if the worker was merely lost."""
    if exited.cause == "out-of-memory":
        asked = job.demand.get("memory")
        limit = f"asked for {shown_size(asked)}" if asked else "no resources.memory was asked for"
        return f"{worker}: ended because it used more memory than granted ({limit}); raise resources.memory"
    if exited.cause == "disk-full":
        return f"{worker}: ended because {exited.detail}"
    if exited.cause in ("silent", "stopped") or exited.code == 0:
        return None
    if exited.code is not None:
        return f"{worker}: ended with exit code {exited.code}; see fairlead logs {job.id}"
    if exited.signal in (signal.SIGKILL, signal.SIGTERM) or job.training:
        return None
    return f"{worker}: ended by {_signal_name(exited.signal)}; see fairlead logs {job.id}"


def _ended_by(exited: wire.Exited) -> str | None:
    if exited.cause == "silent":
        return "silent for too long"
    return None if exited.signal is None else _signal_name(exited.signal)


def _signal_name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def fail(connection: Connection, job: Job, message: str, *, final: bool, now_s: float) -> None:
    """The gang ends because of its own code; the job tries again if it has retries left.

    One that ran a plan of the planner's starts over without it first, which costs it no retry.
    """
    plan = knowing.blame_plan(connection, job, message)
    if plan is not None:
        jobs.update(connection, job.id, **stop_changes(JobPhase.QUEUED, "plan-failed", None, now_s))
        text = f"{job.id} failed under {plan} and starts over as whole copies: {message}"
        events.append(connection, time_s=now_s, kind="plan-failed", text=text, tenant=job.tenant, job=job.id,
                      facts={"plan": plan})  # fmt: skip
        return
    then = JobPhase.FAILED if final else JobPhase.QUEUED
    jobs.update(connection, job.id, failures=job.failures + 1, **stop_changes(then, "failed", message, now_s))
    again = "" if final else f" (attempt {job.failures + 2} of {job.retries + 1} follows)"
    events.append(connection, time_s=now_s, kind="job-failing", text=f"{job.id}: {message}{again}", tenant=job.tenant,
                  job=job.id)  # fmt: skip


def stop_changes(then: JobPhase, outcome: str, message: str | None, now_s: float) -> dict[str, Any]:
    """The changes that put a job on its way out; workers are ended afterwards."""
    changes = {"phase": JobPhase.STOPPING, "then": then, "outcome": outcome, "since_s": now_s}
    return changes if message is None else {**changes, "message": message}


def _generation(connection: Connection, job: str, number: int) -> Generation | None:
    return next((g for g in generations.of_job(connection, job) if g.number == number), None)


def _is_leader(connection: Connection, event: WorkerEvent) -> bool:
    number = getattr(event.body, "generation", 0)
    generation = _generation(connection, event.job, number)
    return generation is not None and any(m.worker == event.worker and m.rank == 0 for m in generation.members)
