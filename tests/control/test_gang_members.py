"""Which members of a gang take part, have finished, or are lost: from what is known of each worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead.control.reconcile.gang_state_machine import (
    GangView,
    WorkerFact,
    _has_finished,
    _is_whole,
    _joined_generations,
    _phase_in,
    _release_departed,
    _runs_alone,
    _succeed,
)
from fairlead.control.records import JobPhase
from tests.control import made

GENERATION = made.generation(("w0", "n0"), ("w1", "n1"))


def fact(phase: str = "joined", generation: int = 1, **more: Any) -> WorkerFact:
    return WorkerFact("n0", phase, generation, **more)


def view(workers: dict[str, WorkerFact], **job: Any) -> GangView:
    return GangView(made.job(**job), (GENERATION,), workers, frozenset(), 500.0, frozenset({"n0", "n1"}))


@pytest.mark.parametrize(
    ("second", "whole"),
    [
        (fact(), True), (fact("left"), True), (fact("ready"), False), (fact("broken"), False), (None, False),
        (fact(generation=2), False), (fact(exited=True), False),
    ],
)  # fmt: skip
def test_a_generation_is_whole_while_all_that_work_take_part_or_have_just_left(
    second: WorkerFact | None, whole: bool
) -> None:
    seen = view({"w0": fact()} | ({} if second is None else {"w1": second}))
    assert _is_whole(seen, GENERATION) is whole
    rests = replace(GENERATION, plan={"workers_used": 1})
    assert _is_whole(seen, rests), "who rests need not take part"


def test_generations_in_which_somebody_trains_are_those_of_the_living_that_joined() -> None:
    workers = {"a": fact(), "b": fact(generation=2), "c": fact("left", 3), "d": fact(generation=4, exited=True)}
    assert _joined_generations(view(workers)) == {1, 2}


@pytest.mark.parametrize(
    ("known", "phase"),
    [
        (None, "gone"), (fact("ready"), "ready"), (fact("ready", 2), "elsewhere"), (fact(exited=True), "gone"),
        (fact("finished", exited=True), "finished"),
    ],
)  # fmt: skip
def test_a_workers_phase_is_that_in_the_generation_that_is_asked_about(known: WorkerFact | None, phase: str) -> None:
    assert _phase_in(view({} if known is None else {"w0": known}), "w0", 1) == phase


@pytest.mark.parametrize(
    ("training", "facts", "nobody"),
    [
        (True, {"stage": {"trains": False}}, True), (True, {"stage": {"trains": True}}, False), (True, {}, False),
        (True, {"stage": {}}, False), (False, {"stage": {"trains": False}}, False),
    ],
)  # fmt: skip
def test_a_stage_that_is_a_plain_function_meets_nobody(training: bool, facts: dict[str, Any], nobody: bool) -> None:
    assert _runs_alone(made.job(training=training, facts=facts)) is nobody


@pytest.mark.parametrize(
    ("first", "second", "training", "done"),
    [
        ("finished", "joined", True, True),
        ("joined", "finished", True, False),
        ("finished", "joined", False, False),
        ("finished", "finished", False, True),
    ],
)
def test_rank_0_speaks_for_a_training_and_everybody_for_a_command(
    first: str, second: str, training: bool, done: bool
) -> None:
    seen = view({"w0": fact(first), "w1": fact(second)}, training=training)
    assert _has_finished(seen, GENERATION) is done
    assert not _has_finished(view({"w1": fact("finished")}, training=training), GENERATION)


def test_a_job_ended_when_the_last_of_its_workers_said_so() -> None:
    over = view(
        {"w0": fact("finished", exited=True, finished_s=7.0), "w1": fact("finished", exited=True, finished_s=9.0)}
    )
    found = _succeed(over, GENERATION)
    assert type(found).__name__ == "Conclude" and found.at_s == 9.0
    alive = view({"w0": fact("finished", finished_s=7.0), "w1": fact("joined")})
    stop = _succeed(alive, GENERATION)
    assert type(stop).__name__ == "BeginStop" and stop.at_s == 7.0 and stop.then is JobPhase.SUCCEEDED  # type: ignore[union-attr]
    assert _succeed(view({}), GENERATION).at_s == 500.0


def test_who_is_not_of_the_newest_generation_gives_its_device_back_unless_it_still_trains() -> None:
    workers = {"w0": fact(), "w1": fact(), "old": fact(generation=0), "b": fact(generation=0)}
    found = _release_departed(view(workers), GENERATION)
    assert found is not None and found.workers == ("b", "old")  # type: ignore[union-attr]
    assert _release_departed(view({"w0": fact()}), GENERATION) is None
    ended = made.generation(("old", "n0"), number=0)
    trains = replace(view(workers), ended=ended)
    found = _release_departed(trains, GENERATION)
    assert found is not None and found.workers == ("b",)  # type: ignore[union-attr]
