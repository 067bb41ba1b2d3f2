"""What jobs are told where decisions are carried out at once: what stands in their way, in words that people read."""

from __future__ import annotations

import math

import pytest

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling import decide
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.market.blocked_jobs import blocked_reasons
from fairlead.scheduling.market.offers import Pool, offers
from fairlead.scheduling.phrases import duration_text
from fairlead.scheduling.queues import Tree
from fairlead.scheduling.state import Hold, JobState, Preempt, Reservation, Resize, SpentBudget, Start, TenantState
from tests.scheduling.clusters import by_job, job, state

CURVE = SpeedCurve((1, 2), {"g": ((1.0, 1.8), (1.0, 1.8))})


def pair(name: str, **fields: object) -> JobState:
    return job(name, workers=(2, 2), curve=CURVE, work_left=100.0, **fields)  # type: ignore[arg-type]


def at_once(jobs: list[JobState], *tenants: TenantState, nodes: int = 1):  # type: ignore[no-untyped-def]
    pool = [Node(f"n{at}", {DEVICE: 4.0}, "g") for at in range(nodes)]
    return by_job(decide(state(jobs, nodes=pool, tenants=list(tenants), at_once=True)))


@pytest.mark.parametrize(
    ("tenants", "said"),
    [
        ((TenantState("a", quota=1),), "needs 2 devices; tenant a uses 0 of its quota of 1"),
        ((TenantState("a", most={"g": 1.0}),), "needs 2 devices; tenant a uses 0 of the 1 of type g that it may have"),
        ((TenantState("a", parent="up"), TenantState("up", quota=1)), "tenant up, above a, uses 0 of its quota of 1"),
    ],
)
def test_who_is_held_back_by_a_limit_is_told_so_and_not_that_others_bid_more(
    tenants: tuple[TenantState, ...], said: str
) -> None:
    waiting = at_once([pair("j")], *tenants)["j"]
    assert isinstance(waiting, Hold) and waiting.reason.code == "quota" and said in waiting.reason.text
    stopped = at_once([pair("j", seats=("n0", "n0"))], *tenants)["j"]
    assert isinstance(stopped, Preempt) and stopped.reason.code == "quota" and said in stopped.reason.text


def test_who_waits_for_its_own_tenants_gangs_is_not_told_that_it_never_starts() -> None:
    sitting = pair("i", seats=("n0", "n0"), since_s=90.0)
    told = at_once([sitting, pair("j")], TenantState("a", quota=3))["j"].reason
    assert told.code == "quota-in-use" and "uses 2 of its quota of 3" in told.text and told.facts["bid"] > 0


def test_who_is_held_back_by_a_budget_that_is_used_up_is_told_so() -> None:
    poor = TenantState("a", spent=SpentBudget(1.0, "day", 86_400.0))
    assert at_once([pair("j")], poor)["j"].reason.code == "budget-spent"


def test_who_waits_for_what_is_kept_for_another_gang_is_told_for_whom() -> None:
    nodes = [Node("n0", {DEVICE: 4.0}, "g")]
    jobs, pool, tree = [pair("j")], Pool.of(nodes), Tree.of([TenantState("a")])
    told = blocked_reasons(jobs, {}, offers(jobs, pool), pool, tree, [Reservation("wide", 500.0, ("n0",))])
    assert told[0].code == "held-for-others" and "reserved for job wide" in told[0].text
    assert blocked_reasons(jobs, {}, offers(jobs, pool), pool, tree) == {}


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan])
def test_a_job_without_weight_starts_where_nobody_else_wants_the_devices(weight: float) -> None:
    decided = at_once([pair("j", weight=weight), pair("k")], TenantState("a"))
    assert isinstance(decided["j"], Start) and isinstance(decided["k"], Start)


def test_a_job_of_no_workers_at_all_harms_nobody() -> None:
    none = job("none", workers=(0, 0), curve=SpeedCurve((0,), {"g": ((1.0,), (1.0,))}), work_left=1.0)
    assert isinstance(at_once([none, pair("k")], TenantState("a"))["k"], Start)


def test_spans_are_told_without_exponents() -> None:
    said = [duration_text(seconds) for seconds in (0.0, 90.0, 7199.0, 86_400.0, 864_000.0, 5e12, 5e20, math.inf)]
    assert said == ["a moment", "1.5 minutes", "120 minutes", "24 hours", "10 days", "158,440 years",
                    "more than a million years", "more than a million years"]  # fmt: skip


def test_a_gang_that_moves_is_not_said_to_change_its_size() -> None:
    """Two single workers on two nodes of two make way for a pair that runs on one node only."""
    near = SpeedCurve((2,), {"g": ((1.0,), (0.0,))})
    single = SpeedCurve((1,), {"g": ((1.0,), (1.0,))})
    ones = [job(f"j{at}", curve=single, work_left=1e5, seats=(f"n{at}",), since_s=-1e5) for at in (0, 1)]
    wide = job("wide", workers=(2, 2), curve=near, work_left=1e3)
    nodes = [Node(f"n{at}", {DEVICE: 2.0}, "g") for at in (0, 1)]
    decided = by_job(decide(state([*ones, wide], nodes=nodes, tenants=[TenantState("a")], at_once=True)))
    moved = [one for one in decided.values() if isinstance(one, Resize)]
    assert moved and all(one.reason.text.startswith("moves its 1 worker to n") for one in moved)
