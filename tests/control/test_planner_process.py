"""The planner's own process: what it answers, and what becomes of questions that it cannot answer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import psutil
import pytest

from fairlead.control.plans.gang_hardware import Machine, gang_hardware
from fairlead.control.plans.plan_questions import (
    ChooseQuestion,
    ChosenPlan,
    CurveQuestion,
    CurveTable,
    Model,
    ReviewQuestion,
)
from fairlead.control.plans.planner_process import PlannerFailed, PlannerProcess, ProcessSpec
from fairlead.control.plans.replanning import Review
from fairlead.planning.profiles import to_plain
from tests.control import made
from tests.control.test_gang_plans import TINY, nodes, running, trained
from tests.waiting import until

MODEL = Model(to_plain(TINY))


@pytest.fixture
def planner() -> Iterator[PlannerProcess]:
    planner = PlannerProcess()
    yield planner
    planner.close()


def which() -> ChooseQuestion:
    hardware = gang_hardware(nodes(2), {}, Machine())
    assert hardware is not None
    return ChooseQuestion(MODEL, hardware, "auto", 0.1)


def ask(planner: PlannerProcess, question: Any, kind: Any) -> Any:
    return planner.ask("vision", question, kind).result(30.0)


def test_its_answers_are_those_that_would_be_worked_out_here(planner: PlannerProcess) -> None:
    assert ask(planner, which(), ChosenPlan) == which().answer()
    curve = CurveQuestion(MODEL, made.job(max_workers=4), tuple(nodes(4)), Machine())
    assert ask(planner, curve, CurveTable | None) == curve.answer()
    review = ReviewQuestion(MODEL, trained(10_000, 10**7), running(), which().hardware, 20.0, True, 1.0)
    here, there = review.answer(), ask(planner, review, Review)
    assert here.better is not None and there.better is not None
    assert (there.plan, there.seen, there.better.plan) == (here.plan, here.seen, here.better.plan)


def test_a_model_that_makes_no_sense_is_an_answer_and_the_process_lives(planner: PlannerProcess) -> None:
    rotten = ChooseQuestion(Model({"layers": 5}), which().hardware, "auto", 0.1)
    with pytest.raises(PlannerFailed, match="InvalidSpec"):
        ask(planner, rotten, ChosenPlan)
    assert ask(planner, which(), ChosenPlan).plan["id"]


def test_a_question_that_takes_too_much_computing_ends_the_process_and_the_next_one_gets_another() -> None:
    planner = PlannerProcess(ProcessSpec(cpu_s=0.001))
    try:
        with pytest.raises(PlannerFailed, match="computing"):
            for _ in range(1000):  # a quick one may get through
                ask(planner, which(), ChosenPlan)
        with pytest.raises(PlannerFailed, match="computing"):
            for _ in range(1000):
                ask(planner, which(), ChosenPlan)
    finally:
        planner.close()


def test_a_question_that_takes_too_long_is_given_up() -> None:
    planner = PlannerProcess(ProcessSpec(wall_s=0.0))
    try:
        with pytest.raises(PlannerFailed, match="too long"):
            ask(planner, which(), ChosenPlan)
    finally:
        planner.close()


def test_tenants_are_served_in_turn_and_none_may_ask_without_end() -> None:
    planner = PlannerProcess(ProcessSpec(most_waiting=8))
    done: list[str] = []

    def asked_by(tenant: str) -> Future[Any]:
        answer = planner.ask(tenant, which(), ChosenPlan)
        answer.add_done_callback(lambda one: done.append(tenant) if one.exception() is None else None)
        return answer

    many = [asked_by("greedy") for _ in range(20)]
    before = len(done)
    one = asked_by("modest")
    one.result(30.0)
    for answer in many:
        answer.exception(30.0)
    assert sum(answer.exception() is not None for answer in many) > 0
    assert done.index("modest") <= before + 2, "it waits for no more than was begun"


def test_it_ends_with_its_owner() -> None:
    planner = PlannerProcess()
    ask(planner, which(), ChosenPlan)
    (mine,) = [
        child for child in psutil.Process().children() if "fairlead.control.plans.planner_process" in child.cmdline()
    ]
    del planner
    until(lambda: not mine.is_running(), what="the process ended")
