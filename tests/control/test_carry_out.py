"""How long is waited: for a gang that says nothing, and before a gang that lost workers is planned anew."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from fairlead import wire
from fairlead.backends.protocol import Backend
from fairlead.control import gang_actions
from fairlead.control.carry_out import COOLING_S, CarryOut
from fairlead.control.gangs import GangView, WorkerFact
from fairlead.control.known_gangs import Gangs
from fairlead.control.records import Generation, GenerationPhase, Job, JobPhase
from fairlead.control.store import generations, jobs
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
) -> tuple[Gangs, Heard]:  # fmt: skip
    """Stores the job with its generations and carries out one action for it."""
    db.write(jobs.insert, job, document or {}, {}, None, "digest")
    for generation in live:
        db.write(generations.insert, generation)
    known, backend = Gangs({JOB: dict(facts or {})}, {}, {}), Heard()
    hands = CarryOut(db.store, cast(Backend, backend), known, made.worker_order, dict, clock)
    run(hands.do(action, GangView(job, live, dict(facts or {}), frozenset(), clock(), frozenset())))
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
    assert known.cooling_until_s == {JOB: clock() + COOLING_S}


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
    assert known.cooling_until_s[JOB] > clock() + 2 * COOLING_S


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
