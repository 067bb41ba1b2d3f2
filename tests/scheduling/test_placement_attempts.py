"""A gang that found no seats is not chosen again, and gangs that would lose by a move stay where they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fairlead.scheduling.market.offers import Offers
from fairlead.scheduling.market.placement import SETTLE_S, immovable_gangs, without
from fairlead.scheduling.market.problem import Problem
from fairlead.scheduling.scaling import prior_curve
from fairlead.scheduling.seating_plan import SeatingPlan
from tests.scheduling.clusters import job, nodes, state

NOW_S = 1_000.0


def two_jobs(mandatory: list[int]) -> tuple[Problem, Offers]:
    """Two jobs with gangs of 1, 2 and 4 devices on each of two types."""
    kind, size = np.tile([0, 0, 0, 1, 1, 1], (2, 1)), np.tile([1, 2, 4, 1, 2, 4], (2, 1))
    utility, nobody = np.tile([1.0, 1.8, 3.0, 0.5, 0.9, 1.5], (2, 1)), np.full(2, -1)
    no_limit = np.full(1, np.inf)
    problem = Problem(utility, kind, size, np.full(2, 8.0), np.zeros(2, dtype=np.int64), no_limit, no_limit,
                      np.zeros(2), np.array(mandatory))  # fmt: skip
    return problem, Offers(kind, size, utility, nobody)


def test_neither_a_gang_without_seats_nor_a_larger_one_of_its_type_is_chosen_again() -> None:
    problem, offers = two_jobs([-1, -1])
    left = without(problem, offers, [(1, 0, 2)])
    assert left.utility[1].tolist() == [1.0, 0.0, 0.0, 0.5, 0.9, 1.5]
    assert left.utility[0].tolist() == problem.utility[0].tolist(), "other jobs keep theirs"
    assert problem.utility[1].tolist() == problem.utility[0].tolist(), "the problem itself does not change"


@pytest.mark.parametrize(("column", "size", "left"), [(0, 1, -1), (1, 2, -1), (0, 2, 0), (3, 1, 3), (-1, 1, -1)])
def test_a_job_need_not_have_a_gang_that_found_no_seats(column: int, size: int, left: int) -> None:
    problem, offers = two_jobs([-1, column])
    assert without(problem, offers, [(1, 0, size)]).mandatory.tolist() == [-1, left]


def immovable(**fields: Any) -> bool:
    running = job("gang", seats=("node-0",), since_s=NOW_S - 100.0, restart_cost_s=1.0, **fields)
    return "gang" in (immovable_gangs(state([running], now_s=NOW_S), [running]) or ())


def test_a_gang_moves_for_others_unless_it_would_lose_by_it() -> None:
    assert not immovable()
    assert immovable(starts_over=True)
    assert not immovable(remaining_samples=1_000.0, speeds={1: 10.0})
    assert immovable(remaining_samples=19.0, speeds={1: 10.0}), "it is done before a move pays back"
    assert immovable(remaining_samples=1_000.0, speeds={1: 10.0}, finish_by_s=NOW_S + 110.0), (
        "it just keeps its promise"
    )


@pytest.mark.parametrize(("ran_s", "cost_s", "moves"), [
    (SETTLE_S - 0.1, 0.1, False), (SETTLE_S, 0.1, True), (19.9, 2.0, False), (20.0, 2.0, True),
])  # fmt: skip
def test_a_gang_moves_only_once_it_has_run_ten_times_what_that_costs(ran_s: float, cost_s: float, moves: bool) -> None:
    running = job("gang", seats=("node-0",), since_s=NOW_S - ran_s, restart_cost_s=cost_s)
    found = immovable_gangs(state([running], now_s=NOW_S), [running])
    assert found == (frozenset() if moves else frozenset({"gang"}))


def test_where_devices_are_free_at_once_every_gang_may_move_and_a_waiting_job_is_no_gang() -> None:
    running, waiting = job("gang", seats=("node-0",), starts_over=True), job("waits", starts_over=True)
    now = state([running, waiting], now_s=NOW_S)
    assert immovable_gangs(replace(now, at_once=True), [running]) is None
    assert immovable_gangs(now, [running, waiting]) == {"gang"}


def test_places_within_a_residency_are_those_of_its_nodes_only() -> None:
    seating, bound = SeatingPlan(nodes(3, devices=2), []), job("bound", only=frozenset({"node-1"}))
    shape = seating.shape(bound).on("cpu")
    assert seating.places(shape).slots == {"node-1": 2}
    seating.sit(bound, ("node-1",))
    assert seating.places(shape).slots == {"node-1": 1}


def test_a_measured_speed_of_nothing_says_nothing_about_other_sizes() -> None:
    stuck, fresh = (job("j", speeds=speeds) for speeds in ({1: 10.0, 2: 0.0}, {1: 10.0}))
    assert prior_curve(stuck, 1, 4, ("cpu",)).speeds == prior_curve(fresh, 1, 4, ("cpu",)).speeds
