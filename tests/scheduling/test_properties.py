"""What holds of every round on any cluster: random ones, a few in the suite, thousands with FAIRLEAD_EXAMPLES=5000."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.market import Market, MarketConfig
from fairlead.scheduling.market.estimates import History
from fairlead.scheduling.market.offers import Ints, Pool
from fairlead.scheduling.market.policy import Outcome, run_market
from fairlead.scheduling.market.tenants import compute_shares
from fairlead.scheduling.state import ClusterState, JobState, Resize, Round, Start, TenantState

EXAMPLES = int(os.environ.get("FAIRLEAD_EXAMPLES", "0"))
SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
TYPES = {"fast": 1.0, "middle": 0.5, "slow": 0.2}
ROUND_S = 60.0
seeds = st.integers(0, 2**32 - 1)


def cluster_of(rng: np.random.Generator, tenants: int = 3) -> ClusterState:
    """Up to eight nodes of up to three types, up to 25 jobs, some of which sit already, some with deadlines."""
    kinds = list(TYPES)[: int(rng.integers(1, 4))]
    nodes = [Node(f"n{at}", {DEVICE: float(rng.choice([1, 2, 4, 8]))}, str(rng.choice(kinds)))
             for at in range(int(rng.integers(1, 9)))]  # fmt: skip
    free = {node.name: node.devices for node in nodes}
    jobs = []
    for at in range(int(rng.integers(0, 26))):
        job = _job(at, rng, tenants)
        node = nodes[int(rng.integers(len(nodes)))]
        if rng.random() < 0.5 and free[node.name] >= job.min_workers:
            free[node.name] -= job.min_workers
            job = replace(job, seats=(node.name,) * job.min_workers)
        jobs.append(job)
    quotas = [int(rng.integers(1, 12)) if rng.random() < 0.4 else None for _ in range(tenants)]
    states = [TenantState(f"t{at}", float(rng.choice([1.0, 2.0, 5.0])), quota) for at, quota in enumerate(quotas)]
    return ClusterState(1_000.0, nodes, states, jobs, round_s=ROUND_S, at_once=True)


def _job(at: int, rng: np.random.Generator, tenants: int) -> JobState:
    least = int(rng.choice([1, 1, 2, 3, 4]))
    most = least * int(rng.choice([1, 2, 4]))
    power = rng.uniform(0.5, 1.0)
    return JobState(
        f"j{at}", f"t{rng.integers(tenants)}", float(rng.uniform(0.0, 900.0)), least, most, elastic=most > least,
        curve=curve_of(rng.lognormal() * np.array(SIZES) ** power, rng.uniform(0.5, 1.5)),
        finish_by_s=float(rng.uniform(1_000.0, 20_000.0)) if rng.random() < 0.2 else None,
        restart_cost_s=float(rng.choice([0.0, 10.0, 30.0])), work_done=float(rng.choice([0.0, 500.0])),
        work_left=float(rng.lognormal(6.0, 1.5)) if rng.random() < 0.8 else None, weight=float(rng.choice([1.0, 4.0])),
    )  # fmt: skip


def curve_of(speeds: np.ndarray, taste: float = 1.0) -> SpeedCurve:
    return SpeedCurve(SIZES, {kind: (tuple((speeds * factor**taste).tolist()),) * 2 for kind, factor in TYPES.items()})


def after(state: ClusterState, made: Round) -> dict[str, tuple[str, ...]]:
    """Where everybody sits when the round is carried out."""
    seats = {job.id: job.seats for job in state.jobs}
    seats |= {one.job: one.seats if isinstance(one, Start | Resize) else () for one in made.decisions}
    return {job: where for job, where in seats.items() if where}


@settings(max_examples=EXAMPLES or 80, deadline=None)
@given(seeds)
def test_gangs_are_whole_of_one_type_and_no_node_or_quota_is_exceeded(seed: int) -> None:
    state = cluster_of(np.random.default_rng(seed))
    types, jobs = {node.name: node.device_type for node in state.nodes}, {job.id: job for job in state.jobs}
    seats = after(state, Market()(state))
    for name, where in seats.items():
        assert jobs[name].min_workers <= len(where) <= jobs[name].max_workers
        assert len({types[seat] for seat in where}) == 1
    on_node = Counter(seat for where in seats.values() for seat in where)
    assert all(on_node[node.name] <= node.devices for node in state.nodes)
    by_tenant = Counter(jobs[name].tenant for name, where in seats.items() for _ in where)
    assert all(tenant.quota is None or by_tenant[tenant.name] <= tenant.quota for tenant in state.tenants)


@settings(max_examples=EXAMPLES or 60, deadline=None)
@given(seeds)
def test_the_order_of_jobs_nodes_and_tenants_does_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    state = cluster_of(rng)
    jobs, nodes, tenants = ([part[at] for at in rng.permutation(len(part))] for part in
                            (state.jobs, state.nodes, state.tenants))  # fmt: skip
    shuffled = replace(state, jobs=jobs, nodes=nodes, tenants=tenants)
    assert after(state, Market()(state)) == after(shuffled, Market()(shuffled))


def outcome(state: ClusterState) -> tuple[Outcome, Pool]:
    jobs = sorted(state.jobs, key=lambda job: (job.submitted_s, job.id))
    pool, config = Pool.of(state.nodes), MarketConfig()
    history = History.of(state.memory).updated(jobs)
    shares = compute_shares(state.tenants, jobs, pool, state.now_s, state.memory, config)
    return run_market(state, jobs, pool, history, shares, config), pool


def same_gangs(one: Outcome, its_pool: Pool, other: Outcome, pool: Pool) -> Ints:
    """The gangs that one outcome gives, as columns of the other's menus."""
    column = np.full(len(one.jobs), -1, dtype=np.int64)
    for job in np.nonzero(one.chosen.column >= 0)[0].tolist():
        kind, size, _ = (table[job] for table in one.choices.at(np.maximum(one.chosen.column, 0)))
        there = other.choices.kind[job] == pool.types.index(its_pool.types[int(kind)])
        column[job] = int((there & (other.choices.size[job] == size) & (other.choices.speed[job] > 0)).argmax())
    return column


@settings(max_examples=EXAMPLES or 60, deadline=None)
@given(seeds)
def test_a_further_device_lowers_useful_work_by_no_more_than_two_percent(seed: int) -> None:
    """Useful work as the market counts it: what gangs do, weighted with what it is worth; at the same bids.

    Of one tenant, with deadlines: among several a further device also changes who is entitled to what.
    """
    rng = np.random.default_rng(seed)
    state = replace(cluster_of(rng, tenants=1), tenants=[TenantState("t0")])
    new = Node("new", {DEVICE: 1.0}, state.nodes[int(rng.integers(len(state.nodes)))].device_type)
    before, pool = outcome(state)
    more, larger_pool = outcome(replace(state, nodes=[*state.nodes, new]))
    kept = more.problem.worth(same_gangs(before, pool, more, larger_pool))
    assert more.chosen.utility >= 0.98 * kept - 1e-9


def test_a_device_that_completes_what_a_tenant_is_entitled_to_ends_a_loan_even_if_less_is_done() -> None:
    """Why the bound above cannot hold of several tenants: here entitlement leaves no other choice.

    Half of seven devices is less than the gang of four, so all are lent; half of eight is the gang, which does less.
    """
    linear = np.array(SIZES, dtype=float)
    gang = JobState("gang", "a", 0.0, 4, 4, curve=curve_of(linear / 4), work_left=1e3, restart_cost_s=30.0)
    others = [JobState(f"other{at}", "b", 0.0, 1, 8, elastic=True, curve=curve_of(linear), work_left=1e5,
                       restart_cost_s=30.0) for at in range(4)]  # fmt: skip

    def devices_of_each(devices: int) -> dict[str, int]:
        nodes, tenants = [Node("n", {DEVICE: float(devices)}, "fast")], [TenantState("a"), TenantState("b")]
        state = ClusterState(1_000.0, nodes, tenants, [gang, *others], round_s=ROUND_S, at_once=True)
        held = {name: len(where) for name, where in after(state, Market()(state)).items()}
        return {"a": held.pop("gang", 0), "b": sum(held.values())}

    assert devices_of_each(7) == {"a": 0, "b": 7}
    assert devices_of_each(8) == {"a": 4, "b": 4}


@settings(max_examples=EXAMPLES or 24, deadline=None)
@given(seeds, st.integers(1, 4), st.booleans())
def test_a_job_that_fits_starts_as_soon_as_the_work_of_the_others_allows(seed: int, tenants: int, tree: bool) -> None:
    """The bound of docs/scheduling.md: while it waits, all but less than its gang's devices are busy.

    Whoever they belong to: tenants side by side, or all below the first.
    """
    rng = np.random.default_rng(seed)
    state = cluster_of(rng, tenants)
    teams = [TenantState(f"t{at}", float(rng.choice([1.0, 2.0, 5.0])), parent="t0" if tree and at else None)
             for at in range(tenants)]  # fmt: skip
    jobs = {job.id: replace(job, seats=(), finish_by_s=None, work_left=float(rng.uniform(50.0, 600.0)), work_done=0.0)
            for job in state.jobs[:12]}  # fmt: skip
    capacity = Counter(dict.fromkeys(TYPES, 0))
    for node in state.nodes:
        capacity[node.device_type] += node.devices
    jobs = {name: job for name, job in jobs.items() if job.min_workers <= max(capacity.values())}
    costs = {name: device_seconds(job, capacity) for name, job in jobs.items()}
    started_s = played(replace(state, now_s=0.0, tenants=teams), jobs)
    for name, job in jobs.items():
        others = sum(costs.values()) - costs[name]
        busy = max(devices - job.min_workers + 1 for devices in capacity.values())
        assert started_s[name] - job.submitted_s <= others / busy + 2 * ROUND_S


def device_seconds(job: JobState, capacity: Counter[str]) -> float:
    """What a job can keep busy at most: on its least efficient gang, restarted every round, and till its last ends."""
    assert job.curve is not None and job.work_left is not None
    worst = max(size / job.curve.speed(kind, size) for kind, devices in capacity.items() for size in SIZES
                if job.min_workers <= size <= min(job.max_workers, devices))  # fmt: skip
    return job.work_left * worst / (1 - job.restart_cost_s / ROUND_S) + ROUND_S * job.max_workers


def played(state: ClusterState, jobs: dict[str, JobState]) -> dict[str, float]:
    """Rounds until all are done; when each began to run."""
    types, left = {node.name: node.device_type for node in state.nodes}, dict(jobs)
    started_s: dict[str, float] = {}
    while left:
        assert state.now_s < 1e6, f"{sorted(left)} are never done"
        here = [job for job in left.values() if job.submitted_s <= state.now_s]
        state = replace(state, jobs=here)
        made = Market()(state)
        seats = after(state, made)
        for job in here:
            where = seats.get(job.id, ())
            lost_s = 0.0 if where == job.seats else job.restart_cost_s
            curve, work = job.curve, job.work_left
            assert curve is not None and work is not None
            if where:
                started_s.setdefault(job.id, state.now_s)
                work -= curve.speed(types[where[0]], len(where)) * (ROUND_S - lost_s)
            left[job.id] = replace(job, seats=where, work_left=work, work_done=jobs[job.id].work_left - work)
            if work <= 0:
                del left[job.id]
        state = replace(state, now_s=state.now_s + ROUND_S, memory=made.memory)
    return started_s
