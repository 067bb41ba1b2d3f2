"""Tenants over time: shares and deadlines in the same run, what was denied is repaid, and it is said so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.market import Market, MarketConfig
from fairlead.scheduling.market.fairness_over_time import fit_budgets, in_whole_devices, judge_fairness
from fairlead.scheduling.market.tenants import Account
from fairlead.scheduling.state import ClusterState, JobState, Reason, Round, Start, TenantState
from fairlead.simulation.engine import Settings, simulate
from fairlead.simulation.generated_workloads import many_days, multi_tenant, one_failure
from fairlead.simulation.trace import Trace, TraceJob
from fairlead.simulation.trace_formats.plain import ScaledJob
from fairlead.simulation.trace_formats.recorded import RecordedJob

NODES = (Node("n0", {DEVICE: 4.0}, "gpu"),)


def job(name: str, tenant: str, *, gang: int = 1, work: float = 1e6, curve: SpeedCurve | None = None) -> JobState:
    alike = SpeedCurve((gang,), {"gpu": ((1.0,), (1.0,))})
    return JobState(name, tenant, 0.0, gang, gang, curve=curve or alike, work_left=work)


def started(made: Round) -> set[str]:
    return {decision.job for decision in made.decisions if isinstance(decision, Start)}


def test_some_hours_of_three_tenants_with_a_failure_are_fair_and_on_time() -> None:
    trace = multi_tenant(3, seed=5, hours=4.0)
    figures = simulate(trace, trace.nodes, Market(), Settings(outages=one_failure(5, hours=4.0))).figures()
    assert (figures["jain"] or 0.0) >= 0.95
    assert (figures["deadlines_met"] or 0.0) >= 0.99


def test_who_was_denied_its_share_yesterday_gets_more_than_it_today() -> None:
    jobs = [job(f"{tenant}{at}", tenant) for tenant in ("hog", "meek") for at in range(4)]
    owed = Account(owed=4 * 3_600.0, due_s=8 * 3_600.0, had_s=4 * 3_600.0)
    had = Account(owed=-4 * 3_600.0, due_s=8 * 3_600.0, had_s=8 * 3_600.0)
    memory = {"accounts": {"meek": owed, "hog": had}, "at_s": 0.0}
    state = ClusterState(0.0, NODES, (), jobs, memory, round_s=300.0)
    assert sum(name.startswith("meek") for name in started(Market()(state))) == 3
    assert sum(name.startswith("meek") for name in started(Market()(replace(state, memory={})))) == 2


def test_a_low_index_is_corrected_and_the_round_says_what_was_done() -> None:
    accounts = {"hog": Account(due_s=9e4, had_s=9e4), "meek": Account(owed=8e4, due_s=9e4, had_s=1e4)}
    state = ClusterState(0.0, NODES, (), [job("a", "hog"), job("b", "meek")], {"accounts": accounts}, round_s=60.0)
    fairness = Market()(state).memory["fairness"]
    assert fairness["corrects"]
    assert fairness["index"] < fairness["threshold"] == MarketConfig().fair
    assert fairness["behind"] == {"meek": pytest.approx(1 / 9)}
    assert "meek had 11% of what was due" in fairness["text"]
    assert not judge_fairness({name: Account(due_s=9e4, had_s=9e4) for name in "ab"}, MarketConfig())["corrects"]


def test_devices_that_are_worth_half_to_a_job_count_half_of_what_its_tenant_had() -> None:
    nodes = (Node("f", {DEVICE: 1.0}, "fast"), Node("s", {DEVICE: 1.0}, "slow"))
    curve = SpeedCurve((1,), {"fast": ((2.0,), (2.0,)), "slow": ((1.0,), (1.0,))})
    jobs = [job("a", "t0", curve=curve), job("b", "t1", curve=curve)]
    made = Market()(ClusterState(0.0, nodes, (), jobs, round_s=60.0))
    kept = made.memory["accounts"]
    assert sorted(account.useful for account in kept.values()) == [0.5, 1.0]
    assert [account.used for account in kept.values()] == [1.0, 1.0]


def test_what_tenants_are_served_is_useful_work_where_devices_differ() -> None:
    """Both have one device all the time, but to one of them it is worth a tenth of the other's."""
    nodes = (Node("f", {DEVICE: 1.0}, "fast"), Node("s", {DEVICE: 1.0}, "slow"))
    curve = SpeedCurve((1,), {"fast": ((1.0,), (1.0,)), "slow": ((0.1,), (0.1,))})
    jobs = [TraceJob(name, 0.0, ScaledJob(work, curve), 1, 1, name) for name, work in (("a", 1_000.0), ("b", 100.0))]
    trace = Trace("two", "csv", jobs, 100.0, 0.0)
    outcome = simulate(trace, nodes, seated({"a": ("f",), "b": ("s",)}))
    assert outcome.windows[0].served == pytest.approx({"a": 1_000.0, "b": 100.0})
    assert outcome.jain() < 0.7


def seated(where: dict[str, tuple[str, ...]]) -> Callable[[ClusterState], Round]:
    """A policy that gives everybody just this."""
    return lambda state: Round(tuple(Start(job.id, where[job.id], Reason("so", "")) for job in state.jobs), {})


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 50.0), st.integers(0, 50)), min_size=1, max_size=12))
def test_budgets_in_whole_devices_are_within_one_of_the_share_and_no_more_in_sum(rows: list[tuple[float, int]]) -> None:
    budget, used = np.array([row[0] for row in rows]), np.array([float(row[1]) for row in rows])
    whole = in_whole_devices(budget, used, float(budget.sum()))
    assert (np.abs(whole - budget) < 1.0 + 1e-6).all()
    assert whole.sum() <= budget.sum() + 1e-5
    assert (whole == np.round(whole)).all()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 20.0), st.floats(-30.0, 30.0)), min_size=1, max_size=12))
def test_repaying_never_promises_more_devices_than_there_are(rows: list[tuple[float, float]]) -> None:
    entitled = np.array([row[0] for row in rows])
    budget = np.maximum(0.0, entitled + np.array([row[1] for row in rows]))
    gives = MarketConfig().gives
    cut = fit_budgets(budget, entitled, float(entitled.sum()), gives)
    assert cut.sum() <= entitled.sum() + 1e-6
    assert (cut >= np.minimum(budget - gives * entitled, (1 - gives) * entitled) - 1e-9).all()


def test_what_is_owed_though_nobody_had_it_is_repaid_by_all_but_only_with_a_small_part_of_their_shares() -> None:
    shares = np.array([100.0, 100.0, 25.0])
    for owed, cut in ((4.5, [98.0, 98.0, 29.0]), (90.0, [97.0, 97.0, 31.0])):
        budget = shares + np.array([0.0, 0.0, owed])
        assert fit_budgets(budget, shares, 225.0, 0.03).tolist() == pytest.approx(cut)


def test_a_gang_within_its_tenants_share_is_not_put_off_for_others_that_would_be_rounded_up() -> None:
    nodes = (Node("n0", {DEVICE: 8.0}, "gpu"),)
    many = [job(f"m{at}", f"m{at}", gang=2, work=600.0) for at in range(4)]
    tenants = [TenantState("big", 4.0), *(TenantState(f"m{at}", 1.0) for at in range(4))]
    state = ClusterState(0.0, nodes, tenants, [*many, job("big", "big", gang=4)], round_s=60.0)
    assert "big" in started(Market()(state))


def test_gangs_are_rounded_up_of_which_budgets_cover_most_whoever_bids_more() -> None:
    nodes = (Node("n0", {DEVICE: 8.0}, "gpu"),)
    tenants = [TenantState("a", 3.0), TenantState("b", 2.0), TenantState("c", 3.0)]
    jobs = [job("a", "a", gang=4), job("b", "b", gang=4, work=60.0), job("c", "c", gang=4)]
    assert started(Market()(ClusterState(0.0, nodes, tenants, jobs, round_s=60.0))) == {"a", "c"}


def test_gangs_larger_than_their_tenants_share_can_be_left_aside() -> None:
    jobs = [TraceJob(name, 0.0, RecordedJob(3_600.0, gang), gang, gang, tenant=tenant, exclusive_s=3_600.0)
            for name, tenant, gang in (("big", "a", 4), ("small", "b", 1), ("also", "b", 1))]  # fmt: skip
    trace = Trace("t", "made", tuple(jobs), 300.0, 0.0, NODES, window_s=3_600.0)
    first = simulate(trace, trace.nodes, Market()).windows[0]
    assert first.due["a"] > 0
    assert "a" not in first.ratios(large=False)
    assert first.ratios(large=False)["b"] == first.ratios()["b"]


def test_days_follow_each_other_with_jobs_of_their_own() -> None:
    trace = many_days(2, tenants=2)
    assert len({one.id for one in trace.jobs}) == len(trace.jobs)
    assert sum(one.arrival_s >= 86_400.0 for one in trace.jobs) == len(multi_tenant(2, 38).jobs)


def test_a_job_that_is_done_before_the_round_is_over_was_useful_only_so_long() -> None:
    """Nor did its tenant want more, unless another of its jobs waits for the device; then all share the loss."""
    alone = ClusterState(0.0, NODES, (), [job("a", "short", work=100.0), job("b", "long")], round_s=300.0)
    kept = Market()(alone).memory["accounts"]["short"]
    assert (kept.used, kept.useful, kept.entitled) == (1.0, pytest.approx(1 / 3), pytest.approx(1 / 3))
    works = {"short": 100.0, "long": 1e6}
    many = [job(f"{tenant}{at}", tenant, work=work) for tenant, work in works.items() for at in range(4)]
    kept = Market()(replace(alone, jobs=many)).memory["accounts"]["short"]
    assert (kept.used, kept.useful, kept.entitled) == (2.0, pytest.approx(2 / 3), pytest.approx(2 * (2 + 2 / 3) / 4))
    unknown = [replace(one, work_left=None) for one in many]
    assert Market()(replace(alone, jobs=unknown)).memory["accounts"]["short"].useful == 2.0
    assert Market()(replace(alone, jobs=many, round_s=None)).memory["accounts"]["short"].useful == 2.0


def test_time_that_a_restart_takes_is_not_useful_to_a_tenant_but_a_first_start_is_part_of_the_job() -> None:
    again = replace(job("a", "t0"), work_done=10.0, restart_cost_s=30.0)
    goes_on = replace(again, id="b", tenant="t1", seats=("n0",))
    fresh = replace(job("c", "t2"), restart_cost_s=30.0)
    kept = Market()(ClusterState(0.0, NODES, (), [again, goes_on, fresh], round_s=300.0)).memory["accounts"]
    assert [kept[name].useful for name in ("t0", "t1", "t2")] == [pytest.approx(0.9), 1.0, 1.0]


def test_a_tenant_of_short_jobs_is_served_like_one_of_long_jobs_though_rounds_are_longer_than_its_jobs() -> None:
    jobs = [
        TraceJob(f"{tenant}{at}", 0.0, RecordedJob(length_s, 1), 1, 1, tenant=tenant, exclusive_s=length_s)
        for tenant, length_s, many in (("short", 250.0, 700), ("long", 43_200.0, 16)) for at in range(many)
    ]  # fmt: skip
    nodes = tuple(Node(f"n{at}", {DEVICE: 8.0}, "gpu") for at in range(2))
    trace = Trace("t", "made", tuple(jobs), 300.0, 30.0, nodes, window_s=10_800.0)
    second = simulate(trace, trace.nodes, Market(MarketConfig(repay_s=1_800.0))).windows[1].ratios()
    assert abs(second["short"] - second["long"]) < 0.05
    assert min(second.values()) > 0.85
