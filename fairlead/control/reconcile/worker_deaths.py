"""Stores deaths of workers, puts them before the recovery policy and stores its verdict."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from sqlalchemy import Connection

from fairlead import wire
from fairlead.control.plans.model_profiles import ban_plan, running_planner_plan
from fairlead.control.reconcile.gang_state_machine import WorkerFact, describe_loss, time_of_loss_s
from fairlead.control.records import Generation, GenerationPhase, Job, JobPhase, stop_changes
from fairlead.control.store import damaged_rows, events, generations, jobs
from fairlead.recovery.deaths import OTHERS, Cause, Death, cause_of, signal_name
from fairlead.recovery.policy import FORGET_S, decide
from fairlead.recovery.verdicts import Action, Policy, Situation, Verdict
from fairlead.units import shown_size

MOST_KEPT = 24
"""Deaths of earlier generations that a job's row keeps."""

LONGEST_WHY = 500

POLICY: Policy = decide
"""The recovery policy; any function of this type may replace it."""


def stored_deaths(job: Job) -> tuple[Death, ...]:
    """All deaths stored with this job, newest last."""
    try:
        return msgspec.convert(list(job.deaths), tuple[Death, ...])
    except msgspec.ValidationError:
        return tuple(death for each in job.deaths if (death := _readable(job, each)) is not None)


def _readable(job: Job, stored: Mapping[str, Any]) -> Death | None:
    try:
        return msgspec.convert(stored, Death)
    except msgspec.ValidationError:
        damaged_rows.report_damage("jobs", job.id, "one of its deaths cannot be read")
        return None


def last_step(job: Job) -> int | None:
    """The newest step reported before its last death that may be its own fault; None if there is no such death."""
    own = [death.step for death in stored_deaths(job) if death.cause not in OTHERS and not death.spared]
    return own[-1] if own else None


def is_recorded(exited: wire.Exited) -> bool:
    """True if the store keeps this kind of end."""
    return cause_of(exited.code, exited.signal, exited.cause) not in (Cause.UNFINISHED, Cause.STOPPED)


def record_death(connection: Connection, job: Job, worker: str, exited: wire.Exited, now_s: float) -> None:
    """Store how this worker ended, for the verdict that follows when the gang is looked at.

    An exit code of 0 is left to that look: only there is it known whether the worker had finished.
    """
    if not is_recorded(exited):
        return
    cause = cause_of(exited.code, exited.signal, exited.cause)
    death = Death(worker, cause, job.generation, _how(exited, job), job.step, now_s)
    _store_deaths(connection, job, stored_deaths(job), (death,))


def _how(exited: wire.Exited, job: Job) -> str:
    if exited.cause == "out-of-memory":
        asked = job.demand.get("memory")
        return f"asked for {shown_size(asked)}" if asked else "no resources.memory was asked for"
    if exited.detail:
        return exited.detail
    return str(exited.code) if exited.signal is None else signal_name(exited.signal)


def unanswered_deaths(
    job: Job, generation: Generation, workers: Collection[str], facts: Mapping[str, WorkerFact]
) -> list[Death]:
    """The deaths among these members that have no verdict yet, each with its cause."""
    stored = stored_deaths(job)
    found = []
    for worker in workers:
        fact = facts.get(worker)
        untold = next((death for death in stored if death.worker == worker and not death.answered), None)
        if untold is not None or not _has_verdict(stored, worker, generation, fact):
            found.append(_death_of(untold, worker, job, generation, fact))
    return found


def _has_verdict(stored: Sequence[Death], worker: str, generation: Generation, fact: WorkerFact | None) -> bool:
    """True if a verdict was given; a worker that only lost touch at that time may have died since."""
    alive = fact is not None and fact.alive
    judged = [death for death in stored if (death.worker, death.generation) == (worker, generation.number)]
    return any(alive or death.cause is not Cause.LOST_TOUCH for death in judged)


def _death_of(untold: Death | None, worker: str, job: Job, generation: Generation, fact: WorkerFact | None) -> Death:
    joined = fact is None or fact.phase not in ("asked", "starting", "ready")
    if untold is not None:
        return replace(untold, generation=generation.number, joined=joined)
    if fact is None or (fact.exited and fact.cause is None):
        cause = Cause.NODE_LOST
    elif not fact.exited:
        cause = Cause.LOST_TOUCH
    else:  # a worker that left in order may have been told to: its generation was abandoned afterwards
        cause = Cause.UNKNOWN if fact.phase == "left" else Cause(fact.cause or Cause.UNKNOWN)
    return Death(worker, cause, generation.number, "", job.step, joined=joined)


def judge_deaths(connection: Connection, job: Job, deaths: Sequence[Death], survivors: int, now_s: float) -> Verdict:
    """Ask the policy what these deaths of one generation mean, and store the verdict: next phase, used retries,
    back-off.

    The caller and the scheduler take care of survivors that go on.
    """
    stored = stored_deaths(job)
    this = deaths[-1].generation
    fresh = [death if death.time_s else replace(death, time_s=now_s) for death in deaths]
    names = {death.worker for death in fresh}
    fresh += [d for d in stored if not d.answered and d.generation == this and d.worker not in names]
    former = tuple(death for death in stored if death.answered)
    verdict = POLICY(Situation(
        job.id, job.training, tuple(fresh), former, job.retries, job.failures, job.min_workers, survivors, job.step,
        _progress_s(connection, job, former, now_s), running_planner_plan(connection, job),
    ))  # fmt: skip
    plan = ban_plan(connection, job, verdict.text) if verdict.without_plan else None
    changes = _changes(job, verdict, now_s, min(now_s, max(death.time_s for death in fresh)))
    done = [replace(death, answered=True, spared=verdict.spares, counted=verdict.counts) for death in fresh]
    _store_deaths(connection, job, () if verdict.resets_history else former, done, **changes)
    _log_verdict(connection, job, verdict, plan, now_s)
    return verdict


def _changes(job: Job, verdict: Verdict, now_s: float, died_s: float) -> dict[str, Any]:
    """The changes of the job's row. A job that fails ended when its worker died: there may have been no leader then."""
    changes: dict[str, Any] = {"failures": (0 if verdict.resets_history else job.failures) + verdict.counts}
    rests = verdict.after_s > 0 and verdict.action is Action.START_OVER
    changes["back_off_until_s"] = now_s + verdict.after_s if rests else None
    changes["back_off_why"] = verdict.text[:LONGEST_WHY] if rests else None
    if verdict.action is Action.FAIL:
        changes |= stop_changes(JobPhase.FAILED, "failed", verdict.text, died_s)
    elif verdict.action is Action.START_OVER:
        outcome = "failed" if verdict.counts else "plan-failed" if verdict.without_plan else "worker-lost"
        changes |= stop_changes(JobPhase.QUEUED, outcome, verdict.text if verdict.counts else None, now_s)
    return changes


def _store_deaths(
    connection: Connection, job: Job, former: Sequence[Death], fresh: Sequence[Death], **changes: object
) -> None:
    """Store these deaths with the job: all of its newest generation, and the last of the earlier ones."""
    names = {(death.generation, death.worker) for death in fresh}
    every = [death for death in former if (death.generation, death.worker) not in names] + list(fresh)
    earlier = [death for death in every if death.generation != job.generation]
    kept = earlier[-MOST_KEPT:] + [death for death in every if death.generation == job.generation]
    jobs.update(connection, job.id, deaths=msgspec.to_builtins(kept), **changes)


def _progress_s(connection: Connection, job: Job, former: Sequence[Death], now_s: float) -> float:
    """How long its gangs have worked since its last death that may be its own fault."""
    own = [death.time_s for death in former if death.cause not in OTHERS and not death.spared]
    if not own and not job.failures:
        return 0.0
    since_s = max(own, default=job.submitted_s)
    return generations.worked_s(connection, job.id, since_s, now_s, stepped=job.training, enough_s=FORGET_S)


def _log_verdict(connection: Connection, job: Job, verdict: Verdict, plan: str | None, now_s: float) -> None:
    facts: dict[str, Any] = {"reason": verdict.code, "action": str(verdict.action), "after_s": verdict.after_s}
    if plan is not None:
        goes = "goes on" if verdict.action is Action.GO_ON else "starts over"
        text = f"{job.id} {goes} without {plan}, as whole copies: {verdict.text}"
        _event(connection, job, "plan-failed", text, now_s, facts | {"plan": plan})
    if verdict.counts:
        fails = verdict.action is Action.FAIL
        used = (0 if verdict.resets_history else job.failures) + 2
        wait = f" in {verdict.after_s:g} s" if verdict.after_s else ""
        again = "" if fails else f" (attempt {used} of {job.retries + 1} follows{wait})"
        _event(connection, job, "job-failing", f"{job.id}: {verdict.text}{again}", now_s, facts)
    elif verdict.after_s:
        text = f"{job.id} starts over in {verdict.after_s:g} s: {verdict.text}"
        if verdict.action is Action.GO_ON:
            text = f"{job.id} goes on without it, and grows in {verdict.after_s:g} s at the earliest: {verdict.text}"
        _event(connection, job, "job-backing-off", text, now_s, facts)


def _event(connection: Connection, job: Job, kind: str, text: str, now_s: float, facts: Mapping[str, Any]) -> None:
    events.append(connection, time_s=now_s, kind=kind, text=text, tenant=job.tenant, job=job.id, facts=facts)


# ---------------------------------------------------------------- generations that lost workers


def record_broken_generation(
    connection: Connection, job_id: str, generation: Generation, gone: Sequence[str], facts: Mapping[str, WorkerFact],
    now_s: float,
) -> float:  # fmt: skip
    """Store that a generation lost these workers, and what follows. Returns the back-off of the next growth."""
    job = _stored(connection, job_id)
    deaths = unanswered_deaths(job, generation, gone, facts)
    dead, what = describe_loss([death.worker for death in deaths] or gone, facts)
    told = {"workers": dead, "generation": generation.number}
    _event(connection, job, "worker-lost", f"{job.id} {what}", now_s, told)
    verdict = judge_deaths(connection, job, deaths, _alive(generation, facts), now_s) if deaths else None
    begun = generation.phase is not GenerationPhase.PLANNED
    if generation.broken_s is None and (begun or verdict is None or verdict.action is Action.GO_ON):
        broken_s = time_of_loss_s(gone, facts, generation.created_s, now_s)
        generations.update(connection, job.id, generation.number, broken_s=broken_s)
    return verdict.after_s if verdict is not None and verdict.action is Action.GO_ON else 0.0


def record_failed_newcomers(
    connection: Connection, job_id: str, generation: Generation, former: Generation, facts: Mapping[str, WorkerFact],
    now_s: float,
) -> float:  # fmt: skip
    """Judge the newcomers that died while a planned generation came up, which is abandoned. Returns the back-off."""
    job, staying = _stored(connection, job_id), {member.worker for member in former.members}
    dead = [m.worker for m in generation.members if m.worker in facts and facts[m.worker].lost]
    if not staying.isdisjoint(dead):
        return 0.0  # the former generation broke as well, and is judged next
    deaths = unanswered_deaths(job, generation, dead, facts)
    return judge_deaths(connection, job, deaths, _alive(former, facts), now_s).after_s if deaths else 0.0


def record_lost_generation(
    connection: Connection, job_id: str, generation: Generation, facts: Mapping[str, WorkerFact], now_s: float,
) -> None:  # fmt: skip
    """No worker of a generation is left, or none could start: the job starts over or fails."""
    job = _stored(connection, job_id)
    gone = [m.worker for m in generation.members if m.worker not in facts or not facts[m.worker].alive]
    deaths = unanswered_deaths(job, generation, gone, facts)
    verdict = judge_deaths(connection, job, deaths, 0, now_s) if deaths else None
    if verdict is None or verdict.action is Action.GO_ON:
        jobs.update(connection, job.id, **stop_changes(JobPhase.QUEUED, "worker-lost", None, now_s))


def _stored(connection: Connection, job_id: str) -> Job:
    job = jobs.get(connection, job_id)
    assert job is not None
    return job


def _alive(generation: Generation, facts: Mapping[str, WorkerFact]) -> int:
    return sum(member.worker in facts and facts[member.worker].alive for member in generation.members)
