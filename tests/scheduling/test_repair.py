"""A gang that lost workers is mended only with devices that it runs on and may have."""

from __future__ import annotations

from dataclasses import replace

from fairlead.cluster import DEVICE, Node, NodeState
from fairlead.scheduling import decide
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.state import JobState, Preempt, Resize, Start, TenantState
from tests.scheduling.clusters import by_job, job, state

BOTH = SpeedCurve((1, 2), {"fast": ((1.0, 1.8), (1.0, 1.8)), "slow": ((0.5, 0.9), (0.5, 0.9))})
FAST_ONLY = SpeedCurve((1, 2), {"fast": ((1.0, 1.8), (1.0, 1.8))})
LIMITED = TenantState("a", most={"fast": 1.0})


def pool(name: str, kind: str, devices: float = 4.0, condition: NodeState = NodeState.READY) -> Node:
    return Node(name, {DEVICE: devices}, kind, state=condition)


def hurt(curve: SpeedCurve, seats: tuple[str, ...] = ("gone", "gone")) -> JobState:
    return job("j", workers=(2, 2), curve=curve, work_left=1e6, seats=seats)


GONE = pool("gone", "slow", 2.0, NodeState.LOST)


def test_a_gang_is_not_mended_beyond_its_tenants_most_of_a_type() -> None:
    decided = by_job(decide(state([hurt(BOTH)], nodes=[GONE, pool("f", "fast")], tenants=[LIMITED])))
    assert isinstance(decided["j"], Preempt) and decided["j"].reason.code == "worker-lost"


def test_a_gang_that_lost_all_is_mended_on_the_next_type_that_it_may_have() -> None:
    nodes = [GONE, pool("f", "fast"), pool("s", "slow")]
    decided = by_job(decide(state([hurt(BOTH)], nodes=nodes, tenants=[LIMITED])))
    assert isinstance(decided["j"], Resize) and decided["j"].seats == ("s", "s")


def test_a_gang_is_mended_only_on_types_that_its_curve_knows() -> None:
    """The slow ones come first by name and by speed, and it does not run on them."""
    nodes = [GONE, replace(pool("s", "slow"), speed=2.0), pool("f", "fast")]
    decided = by_job(decide(state([hurt(FAST_ONLY)], nodes=nodes)))
    assert isinstance(decided["j"], Resize) and decided["j"].seats == ("f", "f")
    assert isinstance(by_job(decide(state([hurt(FAST_ONLY)], nodes=nodes[:2])))["j"], Preempt)


def test_devices_that_are_guaranteed_to_one_who_waits_mend_nobody_elses_gang() -> None:
    four = SpeedCurve((4,), {"fast": ((3.0,), (3.0,))})
    waiting = job("k", "b", (4, 4), curve=four, work_left=1e6)
    owners = [TenantState("a"), TenantState("b", guarantee={"fast": 4.0})]
    now = state([hurt(BOTH), waiting], nodes=[GONE, pool("f", "fast")], tenants=owners)
    decided = by_job(decide(now))
    assert isinstance(decided["j"], Preempt) and isinstance(decided["k"], Start)
    assert isinstance(by_job(decide(replace(now, jobs=[hurt(BOTH)])))["j"], Resize), "nobody waits for them"


def test_a_gang_is_mended_within_its_own_guarantee() -> None:
    owners = [TenantState("a", guarantee={"fast": 2.0}), TenantState("b", guarantee={"fast": 2.0})]
    waiting = job("k", "b", (2, 2), curve=BOTH, work_left=1e6)
    now = state([hurt(BOTH), waiting], nodes=[GONE, pool("f", "fast", 3.0)], tenants=owners)
    assert isinstance(by_job(decide(now))["j"], Resize)


def test_a_gang_leaves_a_drained_node_only_for_types_that_it_runs_on_and_may_have() -> None:
    draining = pool("leaving", "slow", 2.0, NodeState.DRAINING)
    moving = hurt(BOTH, ("leaving", "leaving"))
    held_back = state([moving], nodes=[draining, pool("f", "fast")], tenants=[LIMITED])
    assert isinstance(by_job(decide(held_back))["j"], Preempt)
    unknown = state([hurt(FAST_ONLY, ("leaving", "leaving"))],
                    nodes=[replace(draining, device_type="fast"), pool("s", "slow")])  # fmt: skip
    assert isinstance(by_job(decide(unknown))["j"], Preempt)
    free = by_job(decide(replace(held_back, tenants=[TenantState("a")])))["j"]
    assert isinstance(free, Resize) and free.seats == ("f", "f")
