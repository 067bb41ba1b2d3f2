"""Rounds come to rest: while only the clock changes, gangs change a few times, and then only to take turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node, NodeState
from fairlead.scheduling import decide
from fairlead.scheduling.live_round import live_round
from fairlead.scheduling.market import MarketConfig
from fairlead.scheduling.market_targets import MIN_RUN_S
from fairlead.scheduling.state import ClusterState, Decision, Preempt, Start, TenantState

from .clusters import SlowBackend, apply, changes, clusters, few, job, nodes, rarely, state, tenants

STEADY = MarketConfig(repay_s=1e12)  # what a tenant is owed for a fraction of a device does not count
DEAR = {"restart_cost_s": 1e9}  # too dear to take turns
LONGEST_S = 2000.0  # longer than any time after which the policy treats a waiting job differently
ROUNDS = 400


def until_rest(round_after: Callable[[float], list[Decision]], step_s: float) -> list[Decision]:
    """Every change on the way to rest. The clock runs faster while nothing moves, and on past every deadline.

    A later deadline or a job that has waited too long may still set something off. So rest is not "nothing
    moved for some rounds" but "nothing moved for longer than the policy knows how to wait".
    """
    moved: list[Decision] = []
    quiet_s, wait_s = 0.0, 0.0
    for _ in range(ROUNDS):
        changed = round_after(wait_s)
        quiet_s += wait_s
        if changed:
            moved += changed
            quiet_s, wait_s = 0.0, step_s
        elif quiet_s > LONGEST_S:
            return moved
        else:
            wait_s = min(max(step_s, 1.5 * wait_s), 300.0)
    last = "; ".join(f"{type(change).__name__} {change.job}: {change.reason.text}" for change in moved[-4:])
    raise AssertionError(f"{len(moved)} changes in {ROUNDS} rounds, the last ones: {last}")


def changes_until_rest(now: ClusterState, step_s: float) -> list[Decision]:
    """The changes of a cluster in which decisions are carried out at once."""

    def round_after(wait_s: float) -> list[Decision]:
        nonlocal now
        now = replace(now, now_s=now.now_s + wait_s)
        round_ = live_round(now, STEADY)
        now = apply(now, round_)
        return changes(round_)

    return until_rest(round_after, step_s)


def promised_until_1030() -> ClusterState:
    """Until its promise is broken, job-3 is first in line of tenant c; job-2, of the same shape, waited far longer."""
    demand = {"cpu": 0.5}
    waiting = [
        job("job-0", "a"),
        job("job-1", "a"),
        job("job-2", "c", (3, 3), demand=demand),
        job("job-3", "c", (3, 3), demand=demand, start_by_s=1030.0, since_s=990.0),
        job("job-4", "b", (1, 2)),
    ]
    pool = [*nodes(4), Node("node-4", {"cpu": 1.0, "memory": 8e9, DEVICE: 2.0})]
    return ClusterState(1000.0, pool, [TenantState(name, 0.5) for name in "abc"], waiting)


@rarely
@given(clusters(), st.sampled_from([0.5, 10.0]))
@example(promised_until_1030(), 0.5)
def test_rounds_come_to_rest_when_only_the_clock_changes(before: ClusterState, step_s: float) -> None:
    changes_until_rest(replace(before, jobs=[replace(one, frozen=False, **DEAR) for one in before.jobs]), step_s)


@rarely
@given(clusters(max_jobs=10), st.integers(1, 4))
def test_a_slow_backend_is_never_asked_too_much_and_comes_to_rest(before: ClusterState, takes: int) -> None:
    alive = [node for node in before.nodes if node.state is not NodeState.LOST]
    jobs = [replace(one, frozen=False, broken=False, **DEAR) for one in before.jobs]
    backend = SlowBackend(replace(before, nodes=alive, jobs=jobs), takes, STEADY)
    until_rest(backend.round, 0.5)
    assert not backend.pending


@pytest.mark.parametrize("takes", [1, 2, 5, 80])
def test_no_more_victims_are_taken_while_the_first_ones_are_still_leaving(takes: int) -> None:
    running = [job(f"run-{i}", "a", seats=(f"node-{i}",), since_s=90.0) for i in range(4)]
    backend = SlowBackend(state([*running, job("new", "b")], tenants=tenants(a=3, b=1)), takes)
    made = [change for _ in range(20 + 2 * takes) for change in backend.round(0.5) if isinstance(change, Preempt)]
    assert [change.reason.facts["to"].job for change in made].count("new") == 1
    assert made[0].reason.facts["to"].job == "new" and len(made) <= 1 + (takes == 80), "a sibling has its turn later"
    assert {one.id for one in backend.now.jobs if one.seats} >= {"new"}


def test_a_tenant_that_has_had_nothing_for_long_is_first_with_whichever_of_its_jobs_is() -> None:
    before = promised_until_1030()
    moved = changes_until_rest(replace(before, jobs=[replace(one, **DEAR) for one in before.jobs]), 0.5)
    assert next(change.job for change in moved if isinstance(change, Start)) == "job-3"


def test_a_gang_whose_speed_falls_little_by_little_does_not_grow_back_to_where_it_was_slower() -> None:
    """Each size is nearly as fast as the one before, but four workers are clearly slower than one."""
    speeds = {1: 100.0, 2: 96.0, 3: 92.5, 4: 89.0}
    before = state([job("j", workers=(1, 4), seats=("node-0", "node-1", "node-2", "node-3"), speeds=speeds)])
    assert [change.reason.code for change in changes_until_rest(before, 1.0)] == ["slower"]


def test_nobody_shrinks_for_a_gang_that_could_not_use_the_device() -> None:
    """Tenant b is below its share, but what is short on the node is cpu, and a job that cannot shrink has it."""
    pool = [Node("big", {DEVICE: 4.0, "cpu": 2.0}), Node("small", {DEVICE: 1.0, "cpu": 1.0})]
    hog = job("hog", "a", seats=("big",), demand={"cpu": 2.0})
    wide = job("wide", "a", (1, 4), seats=("big", "big", "big"))
    narrow = job("narrow", "b", (1, 4), seats=("small",), demand={"cpu": 1.0})
    assert changes_until_rest(state([hog, wide, narrow], nodes=pool), 1.0) == []


def test_a_gang_grows_by_as_much_as_others_above_their_share_can_give() -> None:
    wide = job("wide", "a", (1, 6), seats=tuple(f"node-{i}" for i in range(6)))
    narrow = job("narrow", "b", (1, 6), seats=("node-6",))
    moved = changes_until_rest(state([wide, narrow], nodes=nodes(8)), 6.0)
    assert [(change.job, len(getattr(change, "seats", ()))) for change in moved][-1] == ("narrow", 4)


@rarely
@given(clusters(healthy=True, one_type=True, max_jobs=10))
def test_a_gang_runs_for_its_time_before_a_sibling_of_its_priority_has_its_turn(before: ClusterState) -> None:
    plain: dict[str, Any] = {"start_by_s": None, "priority": 0, "speeds": {}, "remaining_samples": None}
    plain["submitted_s"] = 990.0
    plain |= {"tenant": "a", "min_workers": 1, "max_workers": 1, "elastic": False, "demand": {}}
    alike = [replace(one, seats=one.seats[:1], **plain) for one in before.jobs]
    now = replace(before, jobs=alike, tenants=[TenantState("a")])
    for _ in range(60):
        round_ = decide(now)
        jobs = {one.id: one for one in now.jobs}
        for change in changes(round_):
            if not isinstance(change, Preempt) or "it has waited longest" in change.reason.text:
                continue  # whose turn has come does not wait for them
            if change.reason.facts["to"].tenant == jobs[change.job].tenant:
                assert now.now_s - jobs[change.job].since_s >= MIN_RUN_S
        now = apply(now, round_, wait_s=20.0)


def test_among_jobs_that_never_end_everybody_has_its_turn() -> None:
    now = state([job(f"j{i}", seats=("node-0",) if i == 0 else ()) for i in range(3)], nodes=nodes(1))
    ran = set()
    for _ in range(100):
        now = apply(now, decide(now), wait_s=10.0)
        ran |= {one.id for one in now.jobs if one.seats}
    assert ran == {"j0", "j1", "j2"}


def test_who_would_lose_all_its_work_is_not_made_to_take_turns() -> None:
    """A command starts over: what a restart costs it is all that it has done."""
    now = state([job("command", seats=("node-0",), starts_over=True), job("other")], nodes=nodes(1), now_s=9999.0)
    assert changes(decide(now)) == []


def one_waits_beside_two_rigid_gangs() -> ClusterState:
    """Tenant b is owed a device, and a uses six already: asked without a memory, too, that counts as its own."""
    pool = [
        Node("node-0", {"cpu": 1.0, DEVICE: 1.0}), Node("node-1", {"cpu": 1.0, DEVICE: 2.0}),
        Node("node-2", {"cpu": 1.0, DEVICE: 2.0}), Node("node-3", {"cpu": 1.0, DEVICE: 3.0}, "gpu"),
    ]  # fmt: skip
    jobs = [
        job("job-0", "b", (2, 2), demand={"cpu": 1.0}),
        job("job-1", "a", (3, 3), seats=("node-0", "node-1", "node-1")),
        job("job-2", "a", (1, 3), seats=("node-3", "node-3", "node-3"), device_type="gpu", elastic=False),
    ]
    return ClusterState(1000.0, pool, tenants(a=1.0, b=0.5, c=0.5), jobs)


@few
@given(clusters())
@example(one_waits_beside_two_rigid_gangs())
def test_at_one_moment_rounds_come_to_rest(before: ClusterState) -> None:
    """What was freed is given away, and then nothing changes: the same state gives no decisions twice."""
    now = replace(before, jobs=[replace(one, frozen=False) for one in before.jobs])
    for _ in range(2 * len(now.jobs) + 4):
        round_ = decide(now)
        if not changes(round_):
            again = decide(replace(now, memory=round_.memory))
            assert (again.decisions, again.memory) == (round_.decisions, round_.memory)
            return
        now = apply(now, round_)
    raise AssertionError(f"still changing: {[(type(c).__name__, c.job, c.reason.text) for c in changes(round_)]}")
