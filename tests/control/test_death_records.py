"""What is written down of a death: whose it was, how it is told, and what becomes of the job."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fairlead import wire
from fairlead.control.reconcile import worker_deaths
from fairlead.control.reconcile.gang_state_machine import WorkerFact
from fairlead.control.reconcile.worker_deaths import (
    LONGEST_WHY,
    MOST_KEPT,
    _changes,
    _how,
    last_step,
    record_death,
    record_lost_generation,
    stored_deaths,
    unanswered_deaths,
)
from fairlead.control.records import JobPhase
from fairlead.control.store import jobs
from fairlead.recovery.deaths import Cause, Death
from fairlead.recovery.verdicts import Action, Verdict
from tests.control import made
from tests.control.stores import Opened, a_job, submit

GENERATION = made.generation(("w0", "n0"), ("w1", "n1"))


def kept(*deaths: Death, **changes: Any) -> Any:
    return made.job(deaths=msgspec.to_builtins(deaths), **changes)


@pytest.mark.parametrize(
    ("exited", "demand", "how"),
    [
        (wire.Exited(None, int(signal.SIGKILL), cause="out-of-memory"), {"memory": 2e9}, "asked for 2"),
        (wire.Exited(None, int(signal.SIGKILL), cause="out-of-memory"), {}, "no resources.memory was asked for"),
        (wire.Exited(3, None, detail="the disk"), {}, "the disk"), (wire.Exited(3, None), {}, "3"),
        (wire.Exited(None, int(signal.SIGSEGV)), {}, "SIGSEGV"), (wire.Exited(0, None), {}, "0"),
    ],
)  # fmt: skip
def test_how_a_worker_ended_is_told_by_what_is_known_best(exited: wire.Exited, demand: Any, how: str) -> None:
    assert _how(exited, made.job(demand=demand)).startswith(how)


@pytest.mark.parametrize(
    ("fact", "cause", "joined"),
    [
        (None, Cause.NODE_LOST, True), (WorkerFact("n0", "joined", 1, exited=True), Cause.NODE_LOST, True),
        (WorkerFact("n0", "broken", 1), Cause.LOST_TOUCH, True),
        (WorkerFact("n0", "joined", 1, exited=True, cause="crashed"), Cause.CRASHED, True),
        (WorkerFact("n0", "left", 1, exited=True, cause="crashed"), Cause.UNKNOWN, True),
        (WorkerFact("n0", "starting", 1, exited=True, cause="crashed"), Cause.CRASHED, False),
        (WorkerFact("n0", "ready", 1, exited=True, cause="killed"), Cause.KILLED, False),
        (WorkerFact("n0", "asked", 1, exited=True), Cause.NODE_LOST, False),
    ],
)  # fmt: skip
def test_the_cause_of_an_end_that_nobody_told_of_follows_from_how_far_the_worker_was(
    fact: WorkerFact | None, cause: Cause, joined: bool
) -> None:
    facts = {} if fact is None else {"w0": fact}
    (death,) = unanswered_deaths(made.job(step=7), GENERATION, ["w0"], facts)
    assert (death.worker, death.cause, death.joined, death.generation, death.step) == ("w0", cause, joined, 1, 7)


def test_what_was_told_counts_before_what_is_inferred_and_is_of_the_generation_that_is_judged() -> None:
    told = Death("w0", Cause.RAISED, 9, "odd", step=3, time_s=5.0)
    (death,) = unanswered_deaths(kept(told), GENERATION, ["w0"], {"w0": WorkerFact("n0", "ready", 1, exited=True)})
    assert death == replace(told, generation=1, joined=False)


@pytest.mark.parametrize(
    ("judged", "alive", "again"),
    [
        (Death("w0", Cause.CRASHED, 1, answered=True), False, False),
        (Death("w0", Cause.LOST_TOUCH, 1, answered=True), False, True),
        (Death("w0", Cause.LOST_TOUCH, 1, answered=True), True, False),
        (Death("w0", Cause.CRASHED, 2, answered=True), False, True),
        (Death("w1", Cause.CRASHED, 1, answered=True), False, True),
    ],
)  # fmt: skip
def test_nobody_is_judged_twice_but_who_lost_touch_and_is_gone_now(judged: Death, alive: bool, again: bool) -> None:
    facts = {"w0": WorkerFact("n0", "broken", 1, exited=not alive, cause=None if alive else "killed")}
    assert bool(unanswered_deaths(kept(judged), GENERATION, ["w0"], facts)) is again


def test_deaths_that_cannot_be_read_are_left_out() -> None:
    good = Death("w0", Cause.KILLED, 1, step=4)
    job = made.job(deaths=[{"worker": 7}, *msgspec.to_builtins([good])])
    assert stored_deaths(job) == (good,) and stored_deaths(made.job()) == ()


def test_the_last_step_is_that_of_the_last_death_of_its_own() -> None:
    own, others = Death("w0", Cause.CRASHED, 1, step=5), Death("w1", Cause.NODE_LOST, 2, step=9)
    spared = Death("w2", Cause.CRASHED, 3, step=11, spared=True)
    assert last_step(kept(Death("w0", Cause.KILLED, 1, step=3), own, others, spared)) == 5
    assert last_step(kept(others, spared)) is None and last_step(made.job()) is None


def verdict(action: Action, **more: Any) -> Verdict:
    return Verdict(action, "worker-killed", "w0 was killed", **more)


def test_a_verdict_becomes_the_jobs_next_phase() -> None:
    job = made.job(failures=2)
    over = _changes(job, verdict(Action.START_OVER, after_s=4.0), 100.0, 90.0)
    assert (over["failures"], over["back_off_until_s"], over["back_off_why"]) == (2, 104.0, "w0 was killed")
    assert (over["phase"], over["then"], over["outcome"]) == (JobPhase.STOPPING, JobPhase.QUEUED, "worker-lost")
    assert "message" not in over and over["since_s"] == 100.0
    at_once = _changes(job, verdict(Action.START_OVER, without_plan=True), 100.0, 90.0)
    assert (at_once["outcome"], at_once["back_off_until_s"], at_once["back_off_why"]) == ("plan-failed", None, None)
    counted = _changes(job, verdict(Action.START_OVER, counts=True, without_plan=True), 100.0, 90.0)
    assert (counted["outcome"], counted["failures"], counted["message"]) == ("failed", 3, "w0 was killed")
    forgets = _changes(job, verdict(Action.START_OVER, counts=True, resets_history=True), 100.0, 90.0)
    assert forgets["failures"] == 1
    fails = _changes(job, verdict(Action.FAIL, counts=True, after_s=9.0), 100.0, 90.0)
    assert (fails["then"], fails["outcome"], fails["message"]) == (JobPhase.FAILED, "failed", "w0 was killed")
    assert (fails["since_s"], fails["back_off_until_s"]) == (90.0, None), "it ended when its worker died"
    goes_on = _changes(job, verdict(Action.GO_ON, after_s=9.0), 100.0, 90.0)
    assert goes_on == {"failures": 2, "back_off_until_s": None, "back_off_why": None}
    long = _changes(job, replace(verdict(Action.START_OVER, after_s=1.0), text="x" * 999), 100.0, 90.0)
    assert len(long["back_off_why"]) == LONGEST_WHY == 500


def test_only_ends_that_need_no_second_look_are_noted(db: Opened) -> None:
    job = submit(db, a_job())
    for worker, exited in (
        ("w0", wire.Exited(0)), ("w1", wire.Exited(None, None, cause="stopped")), ("w2", wire.Exited(3)),
        ("w3", wire.Exited(None, int(signal.SIGKILL))),
    ):  # fmt: skip
        db.write(record_death, db.read(jobs.get, job.id), worker, exited, 50.0)
    found = stored_deaths(db.read(jobs.get, job.id))
    assert [(death.worker, death.cause, death.how, death.time_s) for death in found] == [
        ("w2", Cause.EXITED, "3", 50.0), ("w3", Cause.KILLED, "SIGKILL", 50.0)
    ]  # fmt: skip
    db.write(record_death, db.read(jobs.get, job.id), "w2", wire.Exited(4), 60.0)
    assert [death.how for death in stored_deaths(db.read(jobs.get, job.id))] == ["SIGKILL", "4"], (
        "the newest word counts"
    )


@pytest.mark.parametrize("told", [True, False])
def test_a_generation_of_which_nobody_is_left_starts_its_job_over(db: Opened, told: bool) -> None:
    job = submit(db, a_job(phase=JobPhase.RUNNING, generation=1))
    facts = {"w0": WorkerFact("n0", "joined", 1), "w1": WorkerFact("n1", "joined", 1, exited=True, cause="killed")}
    facts |= {} if told else {"w1": WorkerFact("n1", "joined", 1)}
    generation = replace(GENERATION, job=job.id)
    db.write(record_lost_generation, job.id, generation, facts, 2_000_000.0)
    now = db.read(jobs.get, job.id)
    assert (now.phase, now.then, now.outcome) == (JobPhase.STOPPING, JobPhase.QUEUED, "worker-lost")
    assert [death.worker for death in stored_deaths(now)] == (["w1"] if told else [])
    assert all(death.answered for death in stored_deaths(now))


def test_bounds_are_those_that_the_documents_tell() -> None:
    assert (MOST_KEPT, worker_deaths.LONGEST_WHY) == (24, 500)
