"""The settled state: seats that somebody is leaving are given away once, and what was given is kept until it is had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fairlead.cluster import NodeState
from fairlead.scheduling.decide import decide
from fairlead.scheduling.market.tenants import Account
from fairlead.scheduling.repair import plan_repairs
from fairlead.scheduling.settled_state import COMMITTED_S, SettledState, settled_state
from fairlead.scheduling.situation import Situation
from fairlead.scheduling.state import ClusterState, JobState, Preempt, Resize, Start

from .clusters import by_job, job, nodes, state


def settled(now: ClusterState) -> SettledState:
    situation = Situation.of(now)
    return settled_state(situation, plan_repairs(situation))


def given(seats: tuple[str, ...], since_s: float = 95.0) -> dict[str, Any]:
    return {"wanted": {"new": [list(seats), since_s]}}


def leaving(seat: str, **fields: Any) -> JobState:
    return job("old", seats=(seat,), frozen=True, leaving=(seat,), **fields)


def test_seats_that_a_gang_is_leaving_are_not_its_own_any_more_but_not_free_either() -> None:
    now = state([leaving("node-0"), job("new")], nodes=nodes(1), memory=given(("node-0",)))
    found = settled(now)
    assert found.seats == {"new": ("node-0",), "old": ()} and found.fixed == {"old"}
    assert by_job(decide(now))["new"].reason.code == "making-room"


def test_the_market_sees_a_gang_on_the_seats_that_it_was_given() -> None:
    found = settled(state([leaving("node-0"), job("new")], memory=given(("node-0",))))
    assert found.bidders["new"].seats == ("node-0",)


@pytest.mark.parametrize(("left", "free"), [("node-0", "node-1"), ("node-1", "node-0")])
def test_a_device_that_is_free_is_taken_before_one_that_somebody_is_still_leaving(left: str, free: str) -> None:
    found = by_job(decide(state([leaving(left), job("new")], nodes=nodes(2))))["new"]
    assert isinstance(found, Start) and found.seats == (free,)


def test_what_was_given_is_kept_while_others_leave_it_and_for_half_a_minute_after_that() -> None:
    old = given(("node-0",), 100.0 - COMMITTED_S - 1.0)
    assert settled(state([leaving("node-0"), job("new")], memory=old)).committed["new"].since_s == 100.0
    assert settled(state([job("new")], memory=old)).committed == {}
    assert "new" in settled(state([job("new")], memory=given(("node-0",)))).committed


def test_what_was_given_is_forgotten_where_it_cannot_be_had_any_more() -> None:
    taken = job("sits", seats=("node-0",))
    assert settled(state([taken, job("new")], memory=given(("node-0",)))).committed == {}
    away = [replace(one, state=NodeState.CORDONED) for one in nodes(1)]
    assert settled(state([job("new")], nodes=away, memory=given(("node-0",)))).committed == {}
    assert settled(state([job("new", seats=("node-0",))], memory=given(("node-0",)))).committed == {}


def test_a_gang_that_came_up_with_some_of_its_seats_is_given_the_others_once_they_are_free() -> None:
    small = job("new", workers=(1, 2), seats=("node-0",), frozen=True)
    both = state([small, leaving("node-1")], nodes=nodes(2), memory=given(("node-0", "node-1")))
    assert settled(both).seats["new"] == ("node-0", "node-1")
    later = replace(both, jobs=[replace(small, frozen=False)], memory=decide(both).memory, now_s=101.0)
    assert by_job(decide(later))["new"].seats == ("node-0", "node-1")  # type: ignore[union-attr]


def test_a_gang_that_lost_its_node_goes_on_before_others_that_have_waited_longer() -> None:
    waiting = [job(f"w{at}", submitted_s=-500.0, since_s=-500.0) for at in range(5)]
    lost = job("lost", submitted_s=50.0, since_s=99.0, interrupted_s=99.0, priority=-5)
    found = by_job(decide(state([*waiting, lost], nodes=nodes(2))))
    assert isinstance(found["lost"], Start) and found["lost"].reason.code == "interrupted"


def test_a_gang_that_was_mended_is_not_stopped_right_away_for_anothers_turn() -> None:
    hurt = job("hurt", workers=(2, 2), seats=("node-0",), broken=True)
    now = state([hurt, *(job(f"b{at}", "b") for at in range(4))], nodes=nodes(2))
    first = decide(now)
    mended = replace(hurt, seats=("node-0", "node-1"), broken=False, since_s=100.0)
    after = replace(now, now_s=101.0, jobs=[mended, *now.jobs[1:]], memory=first.memory)
    assert "hurt" not in by_job(decide(after))


def test_a_gang_that_was_started_anew_after_a_loss_is_not_stopped_right_away_for_anothers_turn() -> None:
    lost = job("lost", interrupted_s=99.0)
    now = state([lost, *(job(f"b{at}", "b") for at in range(4))], nodes=nodes(1))
    first = decide(now)
    again = replace(lost, seats=("node-0",), interrupted_s=None, since_s=100.0)
    owed = {"accounts": {"a": Account(bucket=-100.0), "b": Account(bucket=100.0)}, "at_s": 101.0}
    after = replace(now, now_s=101.0, jobs=[again, *now.jobs[1:]])
    assert "lost" in by_job(decide(replace(after, memory=owed))), "it would be"
    assert "lost" not in by_job(decide(replace(after, memory={**first.memory, **owed})))


def test_survivors_wait_while_room_is_made_for_those_who_are_missing() -> None:
    hurt = job("hurt", workers=(2, 2), seats=("node-0",), broken=True)
    now = state([hurt, job("other", seats=("node-1",))], nodes=nodes(2))
    found = by_job(decide(now))
    assert "hurt" not in found and isinstance(found["other"], Preempt)
    left = replace(now, now_s=100.5, jobs=[hurt, job("other")], memory=decide(now).memory)
    mended = by_job(decide(left))["hurt"]
    assert isinstance(mended, Resize) and mended.seats == ("node-0", "node-1")


def test_survivors_do_not_wait_for_more_than_their_tenant_may_claim() -> None:
    hurt = job("hurt", workers=(3, 3), seats=("node-0", "node-1"), broken=True)
    others = [job(f"b{at}", "b", seats=(f"node-{at}",)) for at in (2, 3)]
    assert isinstance(by_job(decide(state([hurt, *others], nodes=nodes(4))))["hurt"], Preempt)


def test_survivors_go_back_to_the_queue_where_no_room_can_be_made() -> None:
    hurt = job("hurt", workers=(2, 2), seats=("node-0",), broken=True)
    promised = job("first", seats=("node-1",), broken=True, workers=(2, 2), submitted_s=-1.0)
    found = by_job(decide(state([hurt, promised], nodes=nodes(2))))
    assert sorted(type(one).__name__ for one in found.values()) == ["Preempt"]
