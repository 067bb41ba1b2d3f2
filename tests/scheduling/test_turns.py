"""Whole gangs in turns: everybody has its share over time, whatever the size of its gangs, and budgets fit together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.market import Market, MarketConfig
from fairlead.scheduling.market.offers import Pool
from fairlead.scheduling.market.tenants import Account, Shares, compute_shares
from fairlead.scheduling.market.turns import budgets_in_whole_gangs
from fairlead.scheduling.state import ClusterState, JobState, Start, TenantState
from fairlead.simulation.engine import simulate
from fairlead.simulation.trace import Trace, TraceJob
from fairlead.simulation.trace_formats.recorded import RecordedJob

from .problems import problem_of

NODES = tuple(Node(f"n{at}", {DEVICE: 8.0}, "gpu") for at in range(4))


def rigid(name: str, tenant: str, gang: int, **facts: object) -> JobState:
    curve = SpeedCurve((gang,), {"gpu": ((1.0,), (1.0,))})
    slow = {"restart_cost_s": 30.0, **facts}  # turns take half an hour where a change costs half a minute
    return replace(JobState(name, tenant, 0.0, gang, gang, curve=curve, work_left=1e6), **slow)


def started(state: ClusterState) -> set[str]:
    return {decision.job for decision in Market()(state).decisions if isinstance(decision, Start)}


@pytest.mark.parametrize("wide", [9.0, 12.0])
def test_a_tenant_of_wide_gangs_has_its_share_over_time_though_it_is_no_whole_number_of_them(wide: float) -> None:
    """Others could use its fraction all the time, and nobody has single devices to give."""
    hours_s = {"wide": 6 * 3_600.0, "some": 3 * 3_600.0, "many": 5_400.0}
    jobs = [
        TraceJob(f"{tenant}{at}", 0.0, RecordedJob(hours_s[tenant], gang), gang, gang, tenant=tenant)
        for tenant, gang, count in (("wide", 8, 6), ("some", 4, 22), ("many", 2, 80)) for at in range(count)
    ]  # fmt: skip
    rest = (32.0 - wide) / 2
    tenants = (TenantState("wide", wide), TenantState("some", rest), TenantState("many", rest))
    trace = Trace("t", "made", tuple(jobs), 600.0, 30.0, NODES, tenants=tenants, window_s=43_200.0)
    first = simulate(trace, trace.nodes, Market(waits=False)).windows[0]
    assert first.due["wide"] == pytest.approx(wide * 43_200.0, rel=0.05)
    assert min(first.ratios().values()) >= 0.92  # half a day, on few devices: a turn is much of both


def test_a_gang_has_its_turn_once_its_tenant_is_owed_it_and_others_make_room() -> None:
    tenants = [TenantState("wide", 9.0), TenantState("many", 23.0)]
    jobs = [*(rigid(f"wide{at}", "wide", 8) for at in range(3)), *(rigid(f"many{at}", "many", 1) for at in range(32))]
    state = ClusterState(0.0, NODES, tenants, jobs, round_s=300.0)
    owed = {"accounts": {"wide": Account(owed=5 * 3_600.0), "many": Account(owed=-5 * 3_600.0)}, "at_s": 0.0}
    assert sum(name.startswith("wide") for name in started(state)) == 1
    assert sum(name.startswith("wide") for name in started(replace(state, memory=owed))) == 2


def parts_of(rng: np.random.Generator, tenants: int, devices: float) -> Shares:
    """Shares of some tenants who have and are owed anything."""
    named = [TenantState(f"t{at}") for at in range(tenants)]
    shares = compute_shares(named, [], Pool.of(NODES), 0.0, {}, MarketConfig())
    claim = rng.dirichlet(np.ones(tenants)) * devices
    accounts = {name: Account(owed=float(rng.normal() * 3e4)) for name in shares.names}
    return replace(shares, claim=claim, has=rng.integers(0, 12, tenants).astype(np.float64), accounts=accounts)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4))
def test_budgets_fit_together_and_none_is_more_than_a_gang_beyond_what_its_tenant_may_have(
    seed: int, tenants: int
) -> None:
    rng = np.random.default_rng(seed)
    problem = problem_of(rng, tenants)
    devices = float(problem.capacity.sum())
    shares = parts_of(rng, tenants, devices)
    owed = np.array([shares.accounts[name].owed for name in shares.names])
    may = np.maximum(0.0, shares.claim + owed / MarketConfig().repay_s)
    budget = budgets_in_whole_gangs(replace(problem, budget=may), shares, devices, MarketConfig())
    assert budget.sum() <= devices + 1e-6
    assert (budget >= 0).all()
    assert (budget < may + problem.size.max() + 1e-6).all()
