"""Who has hardly run is left alone, unless somebody has a right to its devices; who costs most to stop comes last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.market import Market, MarketConfig
from fairlead.scheduling.state import ClusterState, JobState, TenantState

from .test_market import after, states

NOW_S = 100_000.0
CURVE = SpeedCurve((1, 2), {"gpu": ((1.0, 1.9), (1.0, 1.9))})


def job(name: str, tenant: str = "t", **facts: Any) -> JobState:
    facts.setdefault("work_left", 4_000.0)
    return replace(JobState(name, tenant, NOW_S - 1.0, curve=CURVE, restart_cost_s=30.0), **facts)


def running(ran_s: float, count: int = 4, tenant: str = "t", **facts: Any) -> list[JobState]:
    """Long jobs, each on one device of the only node."""
    began_s = NOW_S - ran_s
    return [
        job(f"long{at}", tenant, seats=("n",), since_s=began_s, submitted_s=began_s, work_done=ran_s, **facts)
        for at in range(count)
    ]


def short(count: int = 24, tenant: str = "t", **facts: Any) -> list[JobState]:
    """So many that no long job decides when everything ends."""
    return [job(f"short{at:02d}", tenant, **{"work_left": 600.0, **facts}) for at in range(count)]


def left(jobs: list[JobState], *tenants: TenantState, config: MarketConfig | None = None) -> set[str]:
    """Who sits in the end, of these jobs on four devices."""
    state = ClusterState(NOW_S, [Node("n", {DEVICE: 4.0}, "gpu")], tenants, jobs, round_s=60.0, at_once=True)
    return set(after(state, Market(config or MarketConfig())(state)))


LONG = {f"long{at}" for at in range(4)}
SHORT = {f"short{at:02d}" for at in range(4)}


def test_gangs_that_have_just_begun_are_not_stopped_for_shorter_ones() -> None:
    assert left(running(1.0) + short()) == LONG


def test_after_a_few_times_its_restart_a_gang_gives_way_to_shorter_ones() -> None:
    assert left(running(149.0) + short()) == LONG
    assert left(running(151.0) + short()) == SHORT
    assert left(running(1.0) + short(), config=MarketConfig(min_run=0.0, floor_s=0.0)) == SHORT


def test_a_gang_of_which_a_change_costs_next_to_nothing_is_left_alone_for_half_a_minute() -> None:
    assert left(running(29.0, restart_cost_s=0.1) + short()) == LONG
    assert left(running(31.0, restart_cost_s=0.1) + short()) == SHORT


def test_who_would_lose_all_its_work_is_not_made_to_take_turns() -> None:
    assert left(running(50_000.0, starts_over=True) + short()) == LONG


def test_a_deadline_comes_before_who_has_just_begun() -> None:
    due = short(1, work_left=60.0, finish_by_s=NOW_S + 100.0)
    assert "short00" in left(running(1.0) + due)


def test_what_another_tenant_is_entitled_to_it_gets_from_who_has_just_begun() -> None:
    found = left(running(1.0) + short(tenant="u"), TenantState("t"), TenantState("u"))
    assert len([name for name in found if name.startswith("short")]) == 2


def test_what_is_guaranteed_is_given_back_by_who_has_just_begun() -> None:
    found = left(
        running(1.0) + short(3, tenant="u"), TenantState("t", weight=9.0), TenantState("u", guarantee={"gpu": 3.0})
    )
    assert len([name for name in found if name.startswith("short")]) == 3


def test_a_higher_priority_of_its_own_tenant_comes_before_who_has_just_begun() -> None:
    assert left(running(1.0) + short(priority=1)) == SHORT


def test_the_gang_that_is_cheapest_to_stop_is_stopped() -> None:
    for cheap in range(4):
        jobs = [replace(one, restart_cost_s=300.0) for one in running(20_000.0)]
        jobs[cheap] = replace(jobs[cheap], restart_cost_s=30.0)
        assert LONG - left([*jobs, *short(work_left=2_700.0)]) == {f"long{cheap}"}


@settings(max_examples=150, deadline=None)
@given(states(), st.data())
def test_nobody_is_stopped_or_made_smaller_before_it_has_run_for_its_time(state: ClusterState, data: Any) -> None:
    """One tenant without deadlines: nobody has a right to what another has."""
    jobs = []
    for one in state.jobs:
        since_s = state.now_s - data.draw(st.sampled_from([0.0, 1.0, 100.0, 400.0]))
        over = data.draw(st.booleans())
        jobs.append(replace(one, tenant="t", finish_by_s=None, since_s=since_s, starts_over=over, restart_cost_s=30.0))
    state = replace(state, jobs=jobs, tenants=[], at_once=True)
    sits, kinds = after(state, Market()(state)), {node.name: node.device_type for node in state.nodes}
    for one in jobs:
        if one.seats and (one.starts_over or state.now_s - one.since_s < MarketConfig().min_run * one.restart_cost_s):
            assert one.id in sits
            same = kinds[sits[one.id][0]] == kinds[one.seats[0]]
            assert not same or len(sits[one.id]) >= len(one.seats)


@pytest.mark.parametrize("others", [0, 3])
def test_it_makes_no_difference_who_else_is_left_alone(others: int) -> None:
    """Who has run for its time gives way, whether or not its neighbours may stay."""
    jobs = [*running(1.0)[:others], *running(500.0)[others:], *short()]
    assert {f"long{at}" for at in range(others)} < left(jobs)
    assert not {f"long{at}" for at in range(others, 4)} & left(jobs)
