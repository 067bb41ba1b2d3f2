"""Classes, the resource score and priority: inert where nobody says anything, and nobody starves by them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.bid_score import MOST_BEHIND, MOST_STEPS, bid_factor, bid_factors, resource_score
from fairlead.scheduling.classes import (
    Bottleneck,
    DeviceShare,
    Purpose,
    Signature,
    bottleneck,
    lost_to_exchange,
    observed_signature,
    purpose,
    signature,
)
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.forecast import ForecastRun
from fairlead.scheduling.market import Market, MarketConfig
from fairlead.scheduling.state import ClusterState, JobState, Start, TenantState

NODES = [Node("n", {DEVICE: 4.0, "cpu": 8.0, "memory": 16e9}, "fast")]
ONE = SpeedCurve((1,), {"fast": ((1.0,), (1.0,))})
GOOD = SpeedCurve((1, 2, 4), {"fast": ((1.0, 2.0, 4.0), (0.0, 1.9, 3.8))})
POOR = SpeedCurve((1, 2, 4), {"fast": ((1.0, 1.9, 3.5), (0.0, 0.8, 1.2))})


def job(name: str, priority: int = 0, *, tenant: str = "t", work: float = 1_000.0, **fields: object) -> JobState:
    made = JobState(name, tenant, 0.0, priority=priority, curve=ONE, work_left=work)
    return replace(made, **fields)  # type: ignore[arg-type]


def test_a_job_is_training_unless_it_says_otherwise() -> None:
    assert purpose(job("a")) is Purpose.TRAINING
    assert purpose(job("a", facts={"class": "inference"})) is Purpose.INFERENCE
    assert purpose(job("a", facts={"class": "nonsense"})) is Purpose.TRAINING


def test_what_a_job_is_bound_by_follows_from_its_curve_and_its_demand() -> None:
    share = DeviceShare.of(NODES)
    assert (share.memory, share.cpu) == (4e9, 2.0)
    assert bottleneck(signature(job("a"), share)) is Bottleneck.COMPUTE
    assert bottleneck(signature(job("a", demand={"memory": 8e9}), share)) is Bottleneck.MEMORY
    assert bottleneck(signature(job("a", demand={"memory": 8e9, "cpu": 6.0}), share)) is Bottleneck.COMPUTE
    assert bottleneck(signature(job("a", facts={"used_memory": 6e9}), share)) is Bottleneck.MEMORY
    assert bottleneck(signature(job("a", curve=GOOD), share)) is Bottleneck.COMPUTE
    assert bottleneck(signature(job("a", curve=POOR), share)) is Bottleneck.NETWORK
    live = job("a", curve=None, speeds={1: 100.0, 4: 180.0})
    assert signature(live, share).network == pytest.approx(1 - 45 / 100)
    assert bottleneck(signature(live, share)) is Bottleneck.NETWORK
    assert lost_to_exchange(POOR) == pytest.approx(1 - 1.2 / 3.5)


def test_what_was_seen_counts_against_a_job_only_where_it_is_more_than_it_may_take() -> None:
    share, seen = DeviceShare.of(NODES), {"used_memory": 1e9, "used_cpu": 0.5}
    idle = job("a", facts=seen)
    assert signature(idle, share) == Signature()
    assert observed_signature(idle, share) == Signature(0.25, 0.25)
    assert bid_factors([idle, job("b", facts={"used_memory": 8e9})], NODES, MarketConfig())[1] < 1.0


def test_the_resource_score_is_the_weighted_sum_of_the_requirement() -> None:
    config = MarketConfig(alpha=2.0, beta=3.0, gamma=5.0)
    assert resource_score(Signature(0.5, 0.25, 0.1), config) == pytest.approx(2 * 0.5 + 3 * 0.25 + 5 * 0.1)


def test_where_nobody_says_anything_nothing_changes() -> None:
    jobs = [job("a"), job("b", curve=POOR), job("c", facts={"kind": "batch"})]
    assert bid_factors(jobs, NODES, MarketConfig()).tolist() == [1.0, 1.0, 1.0]


def test_all_alike_is_the_same_as_nobody_saying_anything() -> None:
    jobs = [job(f"j{at}", 7, facts={"class": "batch"}) for at in range(3)]
    assert bid_factors(jobs, NODES, MarketConfig()).tolist() == [1.0, 1.0, 1.0]


def test_who_takes_more_than_its_share_bids_less_for_a_device() -> None:
    light, usual, heavy = bid_factors(
        [job("a", demand={"memory": 1e9}), job("b"), job("c", demand={"memory": 12e9})], NODES, MarketConfig()
    )
    assert light > usual == 1.0 > heavy
    assert bid_factors([job("a", curve=POOR), job("b")], NODES, MarketConfig(gamma=1.0))[0] < 1.0


def test_priority_counts_among_the_jobs_of_a_tenant_only() -> None:
    jobs = [job("a", 5), job("b", 0), job("c", 0, tenant="u"), job("d", -3, tenant="u")]
    found = bid_factors(jobs, NODES, MarketConfig())
    assert found.tolist() == pytest.approx([1.0, 1.25**-5, 1.0, 1.25**-3])
    assert bid_factor(job("a", 1000), MarketConfig()) == bid_factor(job("a", MOST_STEPS), MarketConfig())


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(-12, 12), st.floats(50.0, 900.0)), max_size=3), st.data())
def test_a_higher_priority_never_lets_a_job_of_the_same_length_finish_later(
    others: list[tuple[int, float]], data: st.DataObject
) -> None:
    """One device, jobs that arrive together: the twin with the higher priority is done no later than the other."""
    low = data.draw(st.integers(-MOST_STEPS, MOST_STEPS - 1))
    high = data.draw(st.integers(low + 1, MOST_STEPS))
    work = data.draw(st.floats(50.0, 900.0))
    jobs = [job(f"j{at}", priority, work=length) for at, (priority, length) in enumerate(others)]
    jobs += [job("low", low, work=work), job("high", high, work=work)]
    nodes = [Node("n", {DEVICE: 1.0}, "fast")]
    game = ForecastRun.of(ClusterState(0.0, nodes, [], jobs, round_s=60.0))
    while {"low", "high"} <= game.jobs.keys():
        game.apply(Market()(game.seen()))
        game.advance(60.0)
    assert game.finish_s["high"] <= game.finish_s.get("low", np.inf)


def test_a_low_priority_waits_for_a_bounded_time_under_a_stream_of_high_ones() -> None:
    """Bids grow with waiting without end and priority counts at most twenty steps: its turn comes."""
    nodes = [Node("n", {DEVICE: 1.0}, "fast")]
    low = job("low", -1000, work=1_000.0)
    bound_s = 1_000.0 * 1.25 ** (2 * MOST_STEPS)  # stretch beyond what priority can make up for
    for now_s in np.arange(600.0, 2 * bound_s, 600.0).tolist():
        high = job(f"h{now_s:.0f}", 1000, work=600.0, submitted_s=now_s)
        made = Market()(ClusterState(now_s, nodes, [], [low, high], round_s=60.0))
        if any(one.job == "low" and getattr(one, "seats", ()) for one in made.decisions):
            return
    pytest.fail("the low one never got its turn")


def test_a_stage_that_others_wait_for_comes_before_a_shorter_one_that_nobody_does() -> None:
    fit, judge = job("fit", work=1_500.0, facts={"behind": 1}), job("judge", work=1_000.0)
    nodes = [Node("n", {DEVICE: 1.0}, "fast")]
    made = Market()(ClusterState(0.0, nodes, [TenantState("t")], [fit, judge], at_once=True))
    assert [one.job for one in made.decisions if isinstance(one, Start)] == ["fit"]
    far = job("far", facts={"behind": 1_000})
    assert bid_factor(far, MarketConfig()) == (1 + MOST_BEHIND) * bid_factor(judge, MarketConfig())
