"""Shares hold within minutes where changes cost little: by turns, in whole gangs, and nobody waits for long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.market import Market, MarketConfig
from fairlead.scheduling.market.offers import Offers, Pool
from fairlead.scheduling.market.rotation import rotate_budgets
from fairlead.scheduling.market.tenants import Account, Shares, compute_shares, fill_buckets, turn_length_s
from fairlead.scheduling.queues import Tree
from fairlead.scheduling.state import ClusterState, JobState, Preempt, Resize, Start, TenantState

from .problems import problem_of
from .test_market import states

STEP_S = 5.0
TURN_S = MarketConfig().quick_turn_s  # where a change costs a second


def job(name: str, tenant: str, gang: int = 1, **facts: Any) -> JobState:
    """A gang of this size, far from its end; a change costs it a second."""
    curve = SpeedCurve((gang,), {"cpu": ((float(gang),), (float(gang),))})
    return replace(JobState(name, tenant, 0.0, gang, gang, curve=curve, work_left=1e5), **facts)


@dataclass
class Played:
    """What tenants had of some minutes, in device seconds, and the longest time for which each held nothing."""

    had: dict[str, float] = field(default_factory=dict)
    nothing_s: dict[str, float] = field(default_factory=dict)
    sizes: list[dict[str, int]] = field(default_factory=list)  # devices by tenant, at each step
    changes: int = 0


def played(
    tenants: Mapping[str, float], jobs: Sequence[JobState], devices: int, seconds: float, step_s: float = STEP_S
) -> Played:
    """The market asked every few seconds, on nodes of one device, while nobody comes or goes."""
    nodes = [Node(f"n{at}", {DEVICE: 1.0}) for at in range(devices)]
    named, memory, found = [TenantState(name, weight) for name, weight in tenants.items()], {}, Played()
    found.had, found.nothing_s, nothing_s = (dict.fromkeys(tenants, 0.0) for _ in range(3))
    for now_s in np.arange(0.0, seconds, step_s).tolist():
        made = Market()(ClusterState(now_s, nodes, named, jobs, memory=memory, round_s=step_s, at_once=True))
        memory = dict(made.memory)
        sits = {one.job: one.seats for one in made.decisions if isinstance(one, Start | Resize)}
        sits |= {one.job: () for one in made.decisions if isinstance(one, Preempt)}
        found.changes += len(sits)
        jobs = [replace(one, seats=sits[one.id], since_s=now_s) if one.id in sits else one for one in jobs]
        has = {name: sum(len(one.seats) for one in jobs if one.tenant == name) for name in tenants}
        found.sizes.append(has)
        for name, many in has.items():
            found.had[name] += many * step_s
            nothing_s[name] = 0.0 if many else nothing_s[name] + step_s
            found.nothing_s[name] = max(found.nothing_s[name], nothing_s[name])
    return found


SIX = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 1.0, "e": 2.0, "f": 3.0}


@pytest.mark.parametrize(("gang", "seconds"), [(1, 120.0), (2, 240.0)])
def test_an_entitlement_of_two_thirds_and_one_of_two_devices_give_one_to_three_within_minutes(
    gang: int, seconds: float
) -> None:
    jobs = [job(f"{name}{at}", name, gang) for name in SIX for at in range(6)]
    found = played(SIX, jobs, 8, seconds)
    for small, large in (("a", "c"), ("d", "f")):
        assert found.had[large] / found.had[small] == pytest.approx(3.0, rel=0.15)
    assert found.changes <= 30, "turns of a minute, not of a round"


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=6), st.lists(st.integers(1, 4), min_size=6, max_size=6))
def test_nobody_with_waiting_work_holds_nothing_for_longer_than_gang_times_turn_over_entitlement(
    weights: list[int], gangs: list[int]
) -> None:
    tenants = {f"t{at}": float(weight) for at, weight in enumerate(weights)}
    jobs = [job(f"{name}-{at}", name, gang) for name, gang in zip(tenants, gangs, strict=False)
            for at in range(min(8, 8 // gang + 1))]  # fmt: skip
    found = played(tenants, jobs, 8, 600.0)
    for (name, weight), gang in zip(tenants.items(), gangs, strict=False):
        entitled = 8 * weight / sum(weights)
        assert found.nothing_s[name] <= gang * TURN_S / min(entitled, gang) + 4 * STEP_S


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(1, 3), min_size=2, max_size=6))
def test_shares_of_single_devices_are_even_over_ten_minutes(weights: list[int]) -> None:
    tenants = {f"t{at}": float(weight) for at, weight in enumerate(weights)}
    found = played(tenants, [job(f"{name}-{at}", name) for name in tenants for at in range(8)], 8, 600.0)
    for name, weight in tenants.items():
        assert found.had[name] == pytest.approx(8 * 600.0 * weight / sum(weights), rel=0.12)


def test_a_gang_larger_than_its_tenants_share_has_bounded_turns() -> None:
    tenants = {"a": 2.0, "b": 1.0, "c": 1.0}
    jobs = [job("big", "b", 4), *(job(f"a{at}", "a") for at in range(5)), *(job(f"c{at}", "c") for at in range(5))]
    found = played(tenants, jobs, 4, 720.0)
    assert found.had["b"] == pytest.approx(720.0, rel=0.15)
    assert found.had["a"] == pytest.approx(1440.0, rel=0.15)
    assert max(found.nothing_s["a"], found.nothing_s["c"]) <= TURN_S
    assert found.nothing_s["b"] <= 4 * TURN_S


def test_a_gang_that_is_not_its_tenants_only_work_has_its_turns_too() -> None:
    tenants = {"a": 1.0, "b": 1.0}
    jobs = [job("big", "a", 4, work_left=1e3), *(job(f"a{at}", "a") for at in range(5)),
            *(job(f"b{at}", "b") for at in range(5))]  # fmt: skip
    found = played(tenants, jobs, 4, 480.0)
    assert any(sizes["a"] == 4 for sizes in found.sizes)
    assert found.had["b"] == pytest.approx(960.0, rel=0.15)


def test_what_starts_over_has_one_uninterrupted_turn_and_repays_it_before_it_has_another() -> None:
    nodes = tuple(f"n{at}" for at in range(4))
    command = job("command", "b", 4, seats=nodes, work_left=None, starts_over=True)
    others = [job(f"{name}{at}", name) for name in "ac" for at in range(5)]
    found = played({"a": 2.0, "b": 1.0, "c": 1.0}, [command, *others], 4, 4_800.0, step_s=30.0)
    ran = [sizes["b"] for sizes in found.sizes]
    assert set(ran) <= {0, 4}, "all of it or nothing"
    began, ended = ran.index(4), ran.index(0, ran.index(4))
    assert ended - began >= 15 * TURN_S / 30.0
    again = ran.index(4, ended)
    assert again - ended >= 3 * (ended - began) - 2, "three devices beyond its share, repaid by the one that it has"


def test_what_commands_were_lent_goes_back_after_a_turn_and_what_is_their_tenants_own_is_left_alone() -> None:
    sitting = [job(f"b{at}", "b", seats=(f"n{at}",), work_left=None, starts_over=True) for at in range(4)]
    waiting = [job(f"a{at}", "a", work_left=None, starts_over=True) for at in range(3)]
    found = played({"a": 1.0, "b": 1.0}, [*sitting, *waiting], 4, 600.0)
    sizes = [each["b"] for each in found.sizes]
    assert sizes[0] == 4 and sizes.index(2) * STEP_S <= 2 * TURN_S, "a turn, and no other before it"
    assert set(sizes[sizes.index(2) :]) == {2} and found.changes == 4, "two are stopped, two begin, and that is all"


def test_a_command_that_says_how_long_it_takes_runs_to_its_end() -> None:
    command = job("command", "b", 4, work_left=4 * 900.0, starts_over=True)
    found = played({"a": 1.0, "b": 1.0}, [command, *(job(f"a{at}", "a") for at in range(5))], 4, 900.0)
    ran = [sizes["b"] for sizes in found.sizes]
    assert ran[ran.index(4) :] == [4] * (len(ran) - ran.index(4))


# ---------------------------------------------------------------- the parts of it


def test_a_turn_is_as_long_as_changes_are_dear() -> None:
    def turn_s(*costs_s: float, waiting_s: float = 1.0) -> float:
        jobs = [job(f"j{at}", "a", seats=("n",), restart_cost_s=cost_s) for at, cost_s in enumerate(costs_s)]
        return turn_length_s([*jobs, job("waits", "a", restart_cost_s=waiting_s)], MarketConfig())

    assert turn_s(30.0) == turn_s(500.0) == MarketConfig().turn_s
    assert turn_s(0.01) == turn_s(2.0) == turn_s(0.01, 1.0, 30.0) == TURN_S
    assert TURN_S < turn_s(3.0) < turn_s(29.9) < MarketConfig().turn_s
    assert turn_s(waiting_s=30.0) == MarketConfig().turn_s
    assert turn_length_s([], MarketConfig()) == MarketConfig().turn_s


def test_a_bucket_fills_at_what_was_due_and_empties_by_what_was_used() -> None:
    tree = Tree.of([TenantState("a"), TenantState("b")], {})
    before = {"a": Account(entitled=2.0, used=3.0), "b": Account(entitled=2.0, used=1.0, bucket=5.0)}
    caps, floors = {"a": 60.0, "b": 60.0}, {"a": -60.0, "b": -60.0}

    def buckets(seconds: float) -> list[float]:
        found = fill_buckets(before, {"accounts": before, "at_s": 0.0}, tree, floors, caps, seconds)
        return [found[name].bucket for name in "ab"]

    assert buckets(10.0) == [-10.0, 15.0]
    assert buckets(1e6) == [-60.0, 60.0]


def test_what_nobody_used_is_saved_up_by_nobody() -> None:
    tree = Tree.of([TenantState("a"), TenantState("b")], {})
    before = {"a": Account(entitled=2.0, used=1.0), "b": Account(entitled=2.0, used=1.0)}
    found = fill_buckets(
        before, {"accounts": before, "at_s": 0.0}, tree, {"a": -9.0, "b": -9.0}, {"a": 9.0, "b": 9.0}, 100.0
    )
    assert found["a"].bucket == found["b"].bucket == 0.0


def test_a_debt_below_the_floor_is_neither_forgiven_nor_made_larger() -> None:
    tree = Tree.of([TenantState("a"), TenantState("b")], {})
    before = {"a": Account(entitled=1.0, used=2.0, bucket=-500.0), "b": Account(entitled=2.0, used=1.0)}
    floors, caps = {"a": -60.0, "b": -60.0}, {"a": 60.0, "b": 60.0}
    found = fill_buckets(before, {"accounts": before, "at_s": 0.0}, tree, floors, caps, 10.0)
    assert found["a"].bucket == -500.0


def parts_of(rng: np.random.Generator, tenants: int, devices: float) -> Shares:
    """Shares of some tenants who have anything, and have saved up or overdrawn up to four devices for a turn."""
    named = [TenantState(f"t{at}") for at in range(tenants)]
    nodes = [Node("n", {DEVICE: devices})]
    shares = compute_shares(named, [job("j", "t0")], Pool.of(nodes), 0.0, {}, MarketConfig())
    claim = rng.dirichlet(np.ones(tenants)) * devices
    accounts = {name: Account(bucket=float(rng.uniform(-240, 240))) for name in shares.names}
    entitled = dict(zip(shares.names, claim.tolist(), strict=True))
    has = rng.integers(0, 12, tenants).astype(np.float64)
    return replace(shares, claim=claim, entitled=entitled, has=has, accounts=accounts)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4))
def test_budgets_are_whole_devices_that_can_all_be_had_at_once_and_pressed_jobs_are_within_them(
    seed: int, tenants: int
) -> None:
    rng = np.random.default_rng(seed)
    problem = problem_of(rng, tenants)
    devices = float(problem.capacity.sum())
    shares = parts_of(rng, tenants, devices)
    may = np.maximum(0.0, shares.claim + shares.behind(MarketConfig()))
    nobody = np.full(problem.jobs, -1, dtype=np.int64)
    offers = Offers(problem.kind, problem.size, problem.utility, nobody)
    wanted = replace(problem, budget=may)
    found = rotate_budgets(wanted, shares, devices, offers)
    assert found.budget.sum() <= devices + 1e-6
    assert (found.budget == np.floor(found.budget)).all()
    assert (found.budget <= problem.ceiling + 1e-6).all()
    pressed = rng.permutation(problem.jobs)[:3].tolist()
    obliged = rotate_budgets(wanted, shares, devices, offers, pressed)
    must = np.nonzero(obliged.mandatory >= 0)[0]
    assert set(must.tolist()) <= set(pressed)
    used = np.bincount(problem.group[must], problem.size[must, obliged.mandatory[must]], tenants)
    assert (used <= obliged.budget + 1e-6).all(), "within the budget of its own tenant"


# ---------------------------------------------------------------- beside the market's other rules


@settings(max_examples=40, deadline=None)
@given(states(), st.floats(-1e5, 1e5))
def test_where_changes_are_dear_buckets_decide_nothing(state: ClusterState, bucket: float) -> None:
    """Traces of gangs that lose half a minute are decided as they were."""
    jobs = [replace(one, restart_cost_s=30.0) for one in state.jobs]

    def decided(saved: float) -> Any:
        accounts = {one.tenant: Account(bucket=saved * (at + 1)) for at, one in enumerate(jobs)}
        memory = {"accounts": accounts, "at_s": state.now_s}
        return Market()(replace(state, jobs=jobs, memory=memory, at_once=True)).decisions

    assert decided(bucket) == decided(0.0)


def held(jobs: Sequence[JobState], tenants: Sequence[TenantState], devices: int, **facts: Any) -> set[str]:
    """Who has devices after one round among those who wait."""
    nodes = [Node(f"n{at}", {DEVICE: 1.0}) for at in range(devices)]
    state = ClusterState(0.0, nodes, tenants, jobs, round_s=STEP_S, at_once=True, **facts)
    return {one.job for one in Market()(state).decisions if isinstance(one, Start)}


def test_a_deadline_comes_first_on_its_own_tenants_share_and_takes_nothing_of_anothers() -> None:
    """Its plan would have it begin much later, and its siblings bid more."""
    due = [job(f"a-due{at}", "a", work_left=300.0, finish_by_s=2_000.0) for at in range(3)]
    short = [job(f"{name}{at}", name, work_left=20.0) for name in "ab" for at in range(6)]
    found = held([*due, *short], [TenantState("a"), TenantState("b")], 4)
    assert found == {"a-due0", "a-due1", "b0", "b1"}


def test_the_first_deadline_comes_first() -> None:
    due = [job(f"a-due{at}", "a", work_left=300.0, finish_by_s=2_000.0 - at) for at in range(3)]
    assert {"a-due1", "a-due2"} <= held([*due, *(job(f"b{at}", "b") for at in range(4))], [], 4)


def test_in_rounds_of_seconds_jobs_of_seconds_are_told_apart() -> None:
    jobs = [job(f"j{at}", "a", work_left=left_s) for at, left_s in enumerate((50.0, 10.0, 30.0))]
    assert held(jobs, [], 1) == {"j1"}
