"""What becomes of a cluster over many rounds, on a virtual clock and with a backend that takes its time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.scheduling import decide
from fairlead.scheduling.seating_plan import SeatingPlan, Shape
from fairlead.scheduling.state import ClusterState, Start, TenantState

from .clusters import apply, by_job, clusters, job, nodes, overfull, rarely, state, tenants, used_by_tenant


def rounds(now: ClusterState, count: int, wait_s: float = 6.0) -> ClusterState:
    for _ in range(count):
        now = apply(now, decide(now), wait_s=wait_s)
        assert overfull(now) == []
    return now


@rarely
@given(
    weights=st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0]), min_size=2, max_size=4),
    size=st.integers(1, 4),
    more=st.integers(0, 5),
    early=st.integers(0, 3),
    elastic=st.booleans(),
)
def test_a_tenant_with_enough_demand_reaches_its_entitlement(
    weights: list[float], size: int, more: int, early: int, elastic: bool
) -> None:
    """One tenant has filled the cluster before the others come; reclaiming gives each its share.

    Restarts are too dear for siblings to take turns: between two of them a device is free for a moment.
    """
    pool = nodes(size, devices=2)
    teams = [TenantState(f"t{i}", weight) for i, weight in enumerate(weights)]
    workers = (1, 4) if elastic else (1, 1)
    dear: dict[str, Any] = {"workers": workers, "restart_cost_s": 1e9}
    first = [job(f"first-{i}", f"t{early % len(weights)}", **dear) for i in range(2 * size)]
    now = rounds(state(first, nodes=pool, tenants=teams), 5)
    late = [job(f"{t.name}-{i}", t.name, submitted_s=now.now_s, **dear) for t in teams for i in range(2 * size + more)]
    now = rounds(replace(now, jobs=[*now.jobs, *late]), 8 * size + 10)
    entitled, used = decide(now).entitlements, used_by_tenant(now)
    for team in teams:
        assert used[team.name] >= int(entitled[team.name] + 1e-9), (entitled, used)


@rarely
@given(clusters(healthy=True, max_jobs=10))
def test_every_job_that_can_run_starts_once_running_jobs_end(before: ClusterState) -> None:
    now = replace(before, tenants=[replace(t, quota=None) for t in before.tenants])
    seating = SeatingPlan(now.nodes, ())
    feasible = {one.id for one in now.jobs if seating.most(Shape.of(one)) >= one.min_workers}
    started = {one.id for one in now.jobs if one.seats}
    for _ in range(120):
        round_ = decide(now)
        started |= {d.job for d in round_.decisions if isinstance(d, Start)}
        if feasible <= started:
            return
        now = apply(now, round_, wait_s=10.0)
        oldest = min((one for one in now.jobs if one.seats), key=lambda one: (one.since_s, one.id), default=None)
        now = replace(now, jobs=[one for one in now.jobs if one is not oldest])
    raise AssertionError(f"never started: {sorted(feasible - started)}")


@pytest.mark.parametrize("tenant", ["a", "b"])
def test_a_big_gang_is_not_starved_by_an_endless_stream_of_small_jobs(tenant: str) -> None:
    big = job("big", tenant, (4, 4))
    now = state([big], tenants=tenants(a=1, b=3), now_s=0.0)
    now = replace(now, jobs=[job(f"small-{i}", "a", seats=(f"node-{i}",)) for i in range(4)] + [big])
    for step in range(400):
        gone = {one.id for one in now.jobs if one.seats and now.now_s - one.since_s >= 20 + 7 * (int(one.id[-1]) % 3)}
        stream = [job(f"small-{step}-{i}", "a", submitted_s=now.now_s) for i in range(2)]
        now = replace(now, jobs=[one for one in now.jobs if one.id not in gone] + stream)
        round_ = decide(now)
        if isinstance(by_job(round_)["big"], Start):
            assert now.now_s <= 400
            return
        now = apply(now, round_, wait_s=5.0)
    raise AssertionError("the big gang never started")


def test_a_tiny_tenant_is_not_starved_by_a_heavy_one_with_endless_jobs() -> None:
    now = state([], nodes=nodes(1), tenants=tenants(heavy=100, tiny=1), now_s=0.0)
    now = replace(now, jobs=[job("tiny", "tiny")] + [job(f"heavy-{i:03}", "heavy") for i in range(300)])
    for _ in range(60):
        round_ = decide(now)
        if isinstance(by_job(round_)["tiny"], Start):
            return
        now = apply(now, round_, wait_s=60.0)
        heavy = TenantState("heavy", 100.0, attained_device_s=now.now_s)
        now = replace(now, jobs=[one for one in now.jobs if not one.seats], tenants=[heavy, TenantState("tiny")])
    raise AssertionError("the tiny tenant never ran")
