"""How long is waited: for a gang that says nothing, and before a gang that lost workers is planned anew."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fairlead import wire
from fairlead.agent.protocol import Backend
from fairlead.control.reconcile import gang_actions
from fairlead.control.reconcile.gang_executor import FAILED_START_PAUSE_S, GangExecutor
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.gang_state_machine import GangView, WorkerFact
from fairlead.control.records import Generation, GenerationPhase, Job, JobPhase
from fairlead.control.store import events, generations, jobs
from fairlead.recovery.policy import FIRST_S
from tests.control import made
from tests.control.stores import Clock, Opened, run

JOB = "mlp-abc234"
DEAD, ALIVE = WorkerFact("node-0", "joined", exited=True, cause="killed"), WorkerFact("node-0", "joined")
NOT_STARTED = WorkerFact("node-1", "starting", exited=True, cause="not-started")


@pytest.fixture
def url(new_sqlite: Path, tmp_path: Path) -> str:
    """No question of databases."""
    shutil.copy(new_sqlite, tmp_path / "fairlead.db")
    return f"sqlite:///{tmp_path}/fairlead.db"


class Heard:
    """A backend that keeps what workers are told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    async def tell(self, job: str, nodes: object, message: wire.ToWorker) -> None:
        self.told.append(message)


def done(
    db: Opened, clock: Clock, job: Job, live: list[Generation], action: gang_actions.Action,
    facts: Mapping[str, WorkerFact] | None = None, document: Mapping[str, Any] | None = None,
) -> tuple[GangRegistry, Heard]:  # fmt: skip
    """Stores the job with its generations and carries out one action for it."""
    db.write(jobs.insert, job, document or {}, {}, None, "digest")
    for generation in live:
        db.write(generations.insert, generation)
    known, backend = GangRegistry({JOB: dict(facts or {})}, {}, {}), Heard()
    hands = GangExecutor(db.store, cast(Backend, backend), known, made.worker_order, dict, clock)
    run(hands.execute(action, GangView(job, live, dict(facts or {}), frozenset(), clock(), frozenset())))
    return known, backend


@pytest.mark.parametrize(
    ("told", "plan", "document", "silence_s"),
    [
        ({}, {"step_s": 20.0}, {}, 200.0),
        ({"batch_size": 10, "samples_per_s": 1.0}, {"step_s": 20.0}, {}, 200.0),
        ({"batch_size": 40, "samples_per_s": 1.0}, {"step_s": 20.0}, {}, 400.0),
        ({}, {"step_s": 20.0}, {"silence_timeout": 12.0}, 12.0),
        ({}, {}, {}, 30.0),
    ],
)
def test_a_gang_is_silent_after_ten_steps_as_measured_or_as_its_plan_expects_whichever_are_longer(
    told: dict[str, Any], plan: dict[str, Any], document: dict[str, Any], silence_s: float, db: Opened, clock: Clock
) -> None:
    generation = made.generation(("w0", "node-0"), phase=GenerationPhase.JOINING, plan=plan)
    job = made.job(phase=JobPhase.STARTING, **told)
    _, backend = done(db, clock, job, [generation], gang_actions.TellJoin(generation, 0), document=document)
    assert [join.silence_s for join in backend.told] == [pytest.approx(silence_s)]


def grown() -> tuple[Generation, Generation]:
    former = made.generation(("w0", "node-0"))
    newest = made.generation(("w0", "node-0"), ("w1", "node-1"), number=2, phase=GenerationPhase.PLANNED,
                             running_s=None, metered_s=None)  # fmt: skip
    return former, newest


def test_a_growth_that_was_given_up_is_not_planned_again_at_once(db: Opened, clock: Clock) -> None:
    former, newest = grown()
    action = gang_actions.Abandon(newest, "a node has no room")
    known, _ = done(db, clock, made.job(generation=2), [former, newest], action, {"w0": ALIVE})
    assert known.cooling_until_s == {JOB: clock() + FAILED_START_PAUSE_S}


def test_newcomers_that_die_again_and_again_make_the_next_growth_wait_longer_than_that(
    db: Opened, clock: Clock
) -> None:
    former, newest = grown()
    deaths = [
        {"worker": "w1", "cause": "not-started", "generation": -at, "time_s": clock() - at, "joined": False,
         "spared": True, "answered": True} for at in range(9, 0, -1)
    ]  # fmt: skip
    action = gang_actions.Abandon(newest, "w1 could not be started")
    facts = {"w0": ALIVE, "w1": NOT_STARTED}
    known, _ = done(db, clock, made.job(generation=2, deaths=deaths), [former, newest], action, facts)
    assert known.cooling_until_s[JOB] > clock() + 2 * FAILED_START_PAUSE_S


def test_a_gang_that_goes_on_without_a_newcomer_does_not_grow_again_before_its_pause_is_over(
    db: Opened, clock: Clock
) -> None:
    generation = made.generation(("w0", "node-0"), ("w1", "node-1"), phase=GenerationPhase.JOINING)
    facts = {"w0": ALIVE, "w1": NOT_STARTED}
    job = made.job(phase=JobPhase.STARTING)
    known, _ = done(db, clock, job, [generation], gang_actions.MarkBroken(generation, ("w1",)), facts)
    assert known.cooling_until_s == {JOB: clock() + FIRST_S}


def test_a_gang_that_goes_on_after_a_death_on_the_way_is_planned_at_once(db: Opened, clock: Clock) -> None:
    generation = made.generation(("w0", "node-0"), ("w1", "node-0"))
    facts = {"w0": ALIVE, "w1": replace(DEAD)}
    known, _ = done(db, clock, made.job(), [generation], gang_actions.MarkBroken(generation, ("w1",)), facts)
    assert known.cooling_until_s == {}


def told(db: Opened, kind: str) -> tuple[str, str | None, dict[str, Any]]:
    found = db.read(events.last, JOB, kind)
    assert found is not None and found.job == JOB
    return found.text, found.tenant, dict(found.facts)


@pytest.mark.parametrize(
    ("plan", "text"),
    [
        (None, "runs on 2 workers"), ({"id": "dp2"}, "runs on 2 workers as dp2"),
        ({"id": "single", "workers_used": 1}, "runs on 1 of 2 workers, the others are idle, as single"),
    ],
)  # fmt: skip
def test_that_a_generation_runs_is_told_with_its_workers(
    plan: dict[str, Any] | None, text: str, db: Opened, clock: Clock
) -> None:
    generation = made.generation(("w0", "n0"), ("w1", "n1"), phase=GenerationPhase.JOINING, running_s=None, plan=plan)
    job = made.job(phase=JobPhase.STARTING, generation=1, started_s=None)
    done(db, clock, job, [generation], gang_actions.MarkRunning(generation))
    said = {"generation": 1, "workers": 2, "reason": "started"}
    assert told(db, "generation-running") == (f"{JOB} {text}", "vision", said)
    now = db.read(jobs.get, JOB)
    assert (now.phase, now.started_s, now.since_s) == (JobPhase.RUNNING, clock(), clock())


def test_a_growth_that_was_given_up_is_told(db: Opened, clock: Clock) -> None:
    former, newest = grown()
    done(db, clock, made.job(generation=2), [former, newest], gang_actions.Abandon(newest, "no room"), {"w0": ALIVE})
    assert told(db, "generation-abandoned") == (f"{JOB}: no room", "vision", {"generation": 2})


@pytest.mark.parametrize(
    ("then", "outcome", "message", "text", "preempted"),
    [
        (JobPhase.SUCCEEDED, "finished", "once failed", "succeeded", 0),
        (JobPhase.FAILED, "failed", "it broke", "failed: it broke", 0),
        (JobPhase.CANCELLED, "cancelled", None, "is cancelled", 0),
        (JobPhase.QUEUED, "preempted", None, "goes back into the queue", 1),
    ],
)
def test_how_a_job_ended_is_told_and_stored(
    then: JobPhase, outcome: str, message: str | None, text: str, preempted: int, db: Opened, clock: Clock
) -> None:
    generation = made.generation(("w0", "n0"))
    job = made.job(phase=JobPhase.STOPPING, then=then, outcome=outcome, generation=1, message=message, since_s=500.0)
    done(db, clock, job, [generation], gang_actions.Conclude(then, outcome))
    assert told(db, f"job-{then}") == (f"{JOB} {text}", "vision", {"outcome": outcome})
    now = db.read(jobs.get, JOB)
    assert (now.phase, now.then, now.outcome, now.preemptions) == (then, None, None, preempted)
    assert now.message == (None if then is JobPhase.SUCCEEDED else message)
    at_end = {"finished": 500.0, "failed": 500.0, "cancelled": clock(), "preempted": None}[outcome]
    assert now.finished_s == at_end and db.read(generations.get, JOB, 1).outcome == outcome
