"""What the market promises: whole gangs that fit, the same answer in any order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node, NodeState
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.market import Market
from fairlead.scheduling.state import ClusterState, Hold, JobState, Preempt, Resize, Round, Start, TenantState

SIZES = (1, 2, 4, 8, 16)
TYPES = ("fast", "slow")


@st.composite
def states(draw: st.DrawFn) -> ClusterState:
    """A cluster of up to six nodes of two types, with up to twelve jobs, some of which sit somewhere already."""
    nodes = [
        Node(f"n{at}", {DEVICE: float(draw(st.sampled_from([1, 2, 4])))}, draw(st.sampled_from(TYPES)))
        for at in range(draw(st.integers(1, 6)))
    ]
    free = {node.name: node.devices for node in nodes}
    jobs = []
    for at in range(draw(st.integers(0, 12))):
        least = draw(st.sampled_from([1, 1, 2, 4]))
        most = draw(st.sampled_from([least, 2 * least, 4 * least]))
        power, ratio = draw(st.floats(0.5, 1.0)), draw(st.floats(0.1, 1.0))
        curve = SpeedCurve(SIZES, {
            "fast": (tuple(size**power for size in SIZES), tuple(0.8 * size**power for size in SIZES)),
            "slow": (tuple(ratio * size**power for size in SIZES), tuple(0.7 * ratio * size**power for size in SIZES)),
        })  # fmt: skip
        seats: tuple[str, ...] = ()
        node = draw(st.sampled_from(nodes))
        if draw(st.booleans()) and free[node.name] >= least:
            seats = (node.name,) * least
            free[node.name] -= least
        deadline = draw(st.one_of(st.none(), st.floats(1_000.0, 50_000.0)))
        jobs.append(
            JobState(
                f"j{at}", f"t{draw(st.integers(0, 2))}", draw(st.floats(0.0, 900.0)), least, most, seats=seats,
                elastic=most > least, curve=curve, finish_by_s=deadline,
                restart_cost_s=draw(st.sampled_from([0.0, 30.0])),
                work_left=draw(st.one_of(st.none(), st.floats(10.0, 1e5))), work_done=draw(st.floats(0.0, 1e4)),
                weight=draw(st.sampled_from([1.0, 5.0])),
            )
        )  # fmt: skip
    tenants = [TenantState(f"t{at}", 1.0 + at, draw(st.one_of(st.none(), st.integers(1, 8)))) for at in range(3)]
    return ClusterState(1_000.0, nodes, tenants, jobs, round_s=60.0)


def after(state: ClusterState, made: Round) -> dict[str, tuple[str, ...]]:
    """Where everybody sits when the round is carried out."""
    seats = {job.id: job.seats for job in state.jobs}
    for decision in made.decisions:
        seats[decision.job] = decision.seats if isinstance(decision, Start | Resize) else ()
    return {job: where for job, where in seats.items() if where}


@settings(max_examples=100, deadline=None)
@given(states())
def test_no_node_holds_more_than_it_has(state: ClusterState) -> None:
    used = Counter(name for where in after(state, Market()(state)).values() for name in where)
    room = {node.name: node.devices for node in state.nodes}
    assert all(count <= room[name] for name, count in used.items())


@settings(max_examples=100, deadline=None)
@given(states())
def test_gangs_are_whole_of_one_type_and_within_their_limits(state: ClusterState) -> None:
    types = {node.name: node.device_type for node in state.nodes}
    jobs = {job.id: job for job in state.jobs}
    for name, where in after(state, Market()(state)).items():
        assert jobs[name].min_workers <= len(where) <= jobs[name].max_workers
        assert len({types[seat] for seat in where}) == 1


@settings(max_examples=60, deadline=None)
@given(states())
def test_no_tenant_holds_more_than_its_quota(state: ClusterState) -> None:
    used: Counter[str] = Counter()
    tenant_of = {job.id: job.tenant for job in state.jobs}
    for name, where in after(state, Market()(state)).items():
        used[tenant_of[name]] += len(where)
    assert all(tenant.quota is None or used[tenant.name] <= tenant.quota for tenant in state.tenants)


@settings(max_examples=60, deadline=None)
@given(states(), st.randoms(use_true_random=False))
def test_the_order_of_what_it_is_told_does_not_matter(state: ClusterState, rng: np.random.Generator) -> None:
    jobs, nodes, tenants = list(state.jobs), list(state.nodes), list(state.tenants)
    for one in (jobs, nodes, tenants):
        rng.shuffle(one)
    shuffled = replace(state, jobs=jobs, nodes=nodes, tenants=tenants)
    assert after(state, Market()(state)) == after(shuffled, Market()(shuffled))


@settings(max_examples=60, deadline=None)
@given(states())
def test_everybody_who_waits_or_changes_is_told_why(state: ClusterState) -> None:
    made = Market()(state)
    named = [decision.job for decision in made.decisions]
    assert len(named) == len(set(named))
    assert all(decision.reason.code and decision.reason.text for decision in made.decisions)
    seated = after(state, made)
    waiting = {decision.job for decision in made.decisions if isinstance(decision, Hold | Preempt)}
    assert waiting == {job.id for job in state.jobs} - set(seated)


def line_of(jobs: int, work: float = 1_000.0) -> list[JobState]:
    curve = SpeedCurve((1,), {"fast": ((1.0,), (1.0,))})
    return [JobState(f"j{at}", "t", 0.0, curve=curve, work_left=work) for at in range(jobs)]


def test_whoever_waits_long_enough_outbids_a_stream_of_short_jobs() -> None:
    nodes = [Node("n", {DEVICE: 1.0}, "fast")]
    curve = SpeedCurve((1,), {"fast": ((1.0,), (1.0,))})
    long = JobState("long", "t", 0.0, curve=curve, work_left=10_000.0)
    for hour in range(1, 200):
        now_s = 3_600.0 * hour
        short = JobState(f"s{hour}", "t", now_s, curve=curve, work_left=100.0)
        made = Market()(ClusterState(now_s, nodes, [], [long, short], round_s=60.0))
        if "long" in after(ClusterState(now_s, nodes, [], [long, short]), made):
            return
    pytest.fail("the long job never got its turn")


def test_a_node_that_is_lost_is_not_used_and_its_gang_moves() -> None:
    nodes = [Node("a", {DEVICE: 1.0}, "fast", state=NodeState.LOST), Node("b", {DEVICE: 1.0}, "fast")]
    job = replace(line_of(1)[0], seats=("a",))
    state = ClusterState(10.0, nodes, [], [job], round_s=60.0)
    assert after(state, Market()(state)) == {"j0": ("b",)}


def test_a_tenant_gets_its_share_although_others_bid_more() -> None:
    nodes = [Node("n", {DEVICE: 4.0}, "fast")]
    rich = [replace(job, id=f"r{at}", tenant="r", weight=100.0) for at, job in enumerate(line_of(8))]
    poor = [replace(job, id=f"p{at}", tenant="p") for at, job in enumerate(line_of(8))]
    state = ClusterState(10.0, nodes, [TenantState("r"), TenantState("p")], rich + poor, round_s=60.0)
    assert Counter(name[0] for name in after(state, Market()(state))) == {"r": 2, "p": 2}


def test_a_deadline_that_needs_a_device_now_gets_it() -> None:
    nodes = [Node("n", {DEVICE: 1.0}, "fast")]
    short, due = line_of(2)
    short, due = replace(short, work_left=10.0), replace(due, finish_by_s=1_150.0)
    state = ClusterState(10.0, nodes, [], [short, due], round_s=60.0)
    assert list(after(state, Market()(state))) == ["j1"]
