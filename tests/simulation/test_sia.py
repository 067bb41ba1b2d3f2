"""Sia as a yardstick: its integer program finds the optimum, and its gangs sit on whole nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.state import ClusterState, Decision, JobState, Resize, Start
from fairlead.simulation.engine import Settings, simulate
from fairlead.simulation.generated_workloads import multi_tenant
from fairlead.simulation.yardsticks.packing import packed
from fairlead.simulation.yardsticks.sia import History, Sia, configurations, quiet
from fairlead.simulation.yardsticks.type_requests import TypeRequest, capacities

SIZES = (1, 2, 3, 4, 8)


def curve(alpha: float, fast: float = 1.0) -> SpeedCurve:
    near = tuple(size**alpha if size <= 4 else 0.0 for size in SIZES)
    far = tuple(0.9 * size**alpha if size > 1 else 0.0 for size in SIZES)
    return SpeedCurve(SIZES, {"t4": (near, far), "a100": (tuple(fast * v for v in near), tuple(fast * v for v in far))})


def nodes(t4: int = 3, a100: int = 0) -> list[Node]:
    kinds = [("t4", at) for at in range(t4)] + [("a100", at) for at in range(a100)]
    return [Node(f"{kind}-{at}", {DEVICE: 4.0}, kind) for kind, at in kinds]


def job(name: str, alpha: float = 0.9, *, fast: float = 1.0, seats: tuple[str, ...] = (), most: int = 8) -> JobState:
    return JobState(name, "all", 0.0, 1, most, curve=curve(alpha, fast), seats=seats, restart_cost_s=30.0)


def taken(decisions: tuple[Decision, ...]) -> dict[str, tuple[str, ...]]:
    return {one.job: one.seats for one in decisions if isinstance(one, Start | Resize)}


def test_a_job_starts_small_and_at_most_doubles() -> None:
    memory: dict[str, object] = {}
    seats: tuple[str, ...] = ()
    sizes = []
    for at in range(4):
        state = ClusterState(100.0 * at, nodes(), (), [job("a", seats=seats)], memory)
        decided = Sia()(state)
        seats, memory = taken(decided.decisions).get("a", seats), dict(decided.memory)
        sizes.append(len(seats))
    assert sizes == [1, 2, 4, 8]


def test_a_gang_that_restarts_is_left_alone_until_it_has_run() -> None:
    past = {"a": History(wish=TypeRequest("t4", 1), begun=True)}
    for since_s, size in ((71.0, 1), (70.0, 2)):  # its restart takes 30 s
        sits = replace(job("a", seats=("t4-0",)), since_s=since_s)
        state = ClusterState(100.0, nodes(), (), [sits], {"history": past})
        assert len(taken(Sia()(state).decisions).get("a", ("t4-0",))) == size


def test_the_type_on_which_a_job_gains_the_most_is_given_to_it() -> None:
    state = ClusterState(0.0, nodes(1, 1), (), [job("slow", fast=1.0), job("fast", fast=5.0)], {})
    wide = {name: History(widest=4) for name in ("slow", "fast")}
    seats = taken(Sia()(ClusterState(0.0, state.nodes, (), state.jobs, {"history": wide})).decisions)
    assert set(seats["fast"]) == {"a100-0"}
    assert set(seats["slow"]) == {"t4-0"}


def test_gangs_are_powers_of_two_within_a_node_and_whole_nodes_beyond() -> None:
    state = ClusterState(0.0, nodes(2), (), [], {})
    found = [wish.size for wish, _ in configurations(state, job("a"), capacities(state.nodes))]
    assert found == [1, 2, 4, 8]


def test_a_rigid_gang_of_another_size_is_taken_as_it_is() -> None:
    state = ClusterState(0.0, nodes(2), (), [], {})
    rigid = JobState("a", "all", 0.0, 3, 3, curve=curve(0.9))
    assert [wish for wish, _ in configurations(state, rigid, capacities(state.nodes))] == [TypeRequest("t4", 3)]


@given(alphas=st.lists(st.floats(0.2, 1.0), min_size=1, max_size=4), devices=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_no_other_choice_of_gangs_scores_better(alphas: list[float], devices: int) -> None:
    policy = Sia()
    jobs = [job(str(at), alpha) for at, alpha in enumerate(alphas)]
    state = ClusterState(1000.0, nodes(devices), (), jobs, {})
    types = capacities(state.nodes)
    choices = [policy._choices(state, one, History(widest=4), types) for one in jobs]
    chosen = policy._solve(jobs, choices, types)
    costs = [dict(options) for options in choices]

    def score(picked: list[TypeRequest | None]) -> float:
        return sum(policy.left_out if wish is None else cost[wish] for wish, cost in zip(picked, costs, strict=True))

    best = min(
        score(list(picked))
        for picked in product(*([None, *cost] for cost in costs))
        if sum(wish.size for wish in picked if wish is not None) <= 4 * devices
    )
    assert score([chosen.get(one.id) for one in jobs]) <= best * (1 + 2e-4) + 1e-9


def test_small_gangs_move_for_one_that_fills_nodes() -> None:
    jobs = [job(str(at), seats=(f"t4-{at}",)) for at in range(3)] + [job("wide")]
    wishes = {str(at): TypeRequest("t4", 1) for at in range(3)} | {"wide": TypeRequest("t4", 8)}
    seats = packed(ClusterState(0.0, nodes(3), (), jobs, {}), wishes)
    assert sorted(Counter(seats["wide"]).values()) == [4, 4]
    assert all(count <= 4 for count in Counter(name for held in seats.values() for name in held).values())
    stayed = [one.id for one in jobs if one.seats and seats[one.id] == one.seats]
    assert len(stayed) == 1


def test_who_keeps_its_size_keeps_its_seats() -> None:
    jobs = [job("a", seats=("t4-2", "t4-2")), job("b")]
    seats = packed(ClusterState(0.0, nodes(3), (), jobs, {}), {"a": TypeRequest("t4", 2), "b": TypeRequest("t4", 2)})
    assert seats["a"] == ("t4-2", "t4-2")
    assert seats["b"] == ("t4-2", "t4-2")  # as tight as it can


def test_what_the_solver_prints_does_not_reach_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    import os

    print("before", flush=True)
    with quiet():
        os.write(1, b"noise\n")
    print("after", flush=True)
    assert capfd.readouterr().out == "before\nafter\n"


def test_a_whole_run_ends_with_all_jobs_done() -> None:
    trace = multi_tenant(2, seed=3, hours=2.0, load=0.8)
    outcome = simulate(trace, trace.nodes, Sia(), Settings(declared=False))
    assert len(outcome.jobs) == len(trace.jobs)
