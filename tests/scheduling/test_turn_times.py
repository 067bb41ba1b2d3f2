"""Who waits is told whose turn it is and when it ends, and what was told comes true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.live_plan import live_plan
from fairlead.scheduling.live_round import live_round
from fairlead.scheduling.market import Market
from fairlead.scheduling.state import ClusterState, JobState, Preempt, Resize, Start, TenantState
from fairlead.scheduling.turn_times import Turn, TurnTimes

from .test_rotation import TURN_S, job

STEP_S = 5.0
WEIGHTS = {"a": 2.0, "b": 1.0, "c": 1.0}
NODES = tuple(f"n{at}" for at in range(4))


def states(jobs: Sequence[JobState], seconds: float) -> list[ClusterState]:
    """The market asked every few seconds, on four nodes of one device, and carried out at once."""
    nodes, named = [Node(name, {DEVICE: 1.0}) for name in NODES], [TenantState(*one) for one in WEIGHTS.items()]
    state, found = ClusterState(0.0, nodes, named, tuple(jobs), round_s=STEP_S, at_once=True), []
    while state.now_s < seconds:
        found.append(state)
        made = Market()(state)
        sits = {one.job: one.seats for one in made.decisions if isinstance(one, Start | Resize)}
        sits |= {one.job: () for one in made.decisions if isinstance(one, Preempt)}
        after = [replace(one, seats=sits[one.id], since_s=state.now_s) if one.id in sits else one for one in state.jobs]
        state = replace(state, now_s=state.now_s + STEP_S, jobs=tuple(after), memory=made.memory)
    return found


def sits(state: ClusterState, tenant: str) -> int:
    return sum(len(one.seats) for one in state.jobs if one.tenant == tenant)


def told(state: ClusterState, name: str) -> Turn:
    turn = TurnTimes(live_plan(state)).of(next(one for one in state.jobs if one.id == name))
    assert turn is not None
    return turn


@pytest.fixture(scope="module")
def crowded() -> list[ClusterState]:
    """A gang of four whose tenant is entitled to one device, among single trainings of two other tenants."""
    single = [job(f"{name}{at}", name) for name in "ac" for at in range(5)]
    return states([job("big", "b", 4), *single], 480.0)


def test_the_end_of_anothers_turn_is_when_it_gives_its_devices_back(crowded: list[ClusterState]) -> None:
    begins = [at for at in range(1, len(crowded)) if sits(crowded[at], "b") == 4 and not sits(crowded[at - 1], "b")]
    seen = 0
    for at in begins:
        ends = next((one.now_s for one in crowded[at:] if not sits(one, "b")), None)
        said = told(crowded[at + 1], "a4").ends_s
        if ends is not None:
            assert said == pytest.approx(ends, abs=2.5 * STEP_S)
            seen += 1
    assert seen >= 2


def test_its_own_turn_begins_about_when_it_was_told(crowded: list[ClusterState]) -> None:
    ended = [at for at in range(1, len(crowded)) if not sits(crowded[at], "b") and sits(crowded[at - 1], "b")]
    seen = 0
    for at in ended:
        begins = next((one.now_s for one in crowded[at:] if sits(one, "b") == 4), None)
        said = told(crowded[at + 1], "big").begins_s
        if begins is not None:
            assert said is not None and said - 2.5 * STEP_S <= begins <= said + TURN_S
            seen += 1
    assert seen >= 1


def test_a_command_has_one_long_turn_and_its_end_is_told() -> None:
    command = job("command", "b", 4, seats=NODES, work_left=None, starts_over=True)
    found = states([command, *(job(f"{name}{at}", name) for name in "ac" for at in range(5))], 1_200.0)
    ends = next(one.now_s for one in found if not sits(one, "b"))
    assert told(found[4], "a0").ends_s == pytest.approx(ends, abs=2.5 * STEP_S)


def test_why_names_the_turn_and_its_end_in_words() -> None:
    command = job("command", "b", 4, seats=NODES, work_left=None, starts_over=True)
    state = states([command, *(job(f"{name}{at}", name) for name in "ac" for at in range(5))], 60.0)[8]
    said = live_round(replace(state, at_once=False)).reasons["a0"].reason
    assert said is not None and said.facts["turn_ends_s"] > state.now_s
    assert "another tenant holds 3 devices more than its share until about 00:" in said.text
    assert "the next turn of tenant a has begun" in said.text and " b " not in said.text


def test_one_tenant_alone_is_told_of_no_other() -> None:
    alone = states([job("big", "a", 4, seats=NODES), job("waits", "a", 4)], 20.0)[2]
    assert told(alone, "waits") == Turn(None, None)


def test_within_a_tenant_the_turn_of_who_waited_longest_is_told() -> None:
    jobs = [job("big", "a", 4, seats=NODES), job("waits", "a", 4), job("after", "a", 4, submitted_s=10.0)]
    state = replace(states(jobs, 20.0)[2], at_once=False, now_s=100.0)

    def said(name: str, **changes: object) -> str:
        reason = live_round(replace(state, **changes)).reasons[name].reason  # type: ignore[arg-type]
        assert reason is not None
        return reason.text

    assert "it waits longest of its tenant, so it comes first from 00:05:00 UTC on" in said("waits")
    assert "longest" not in said("after")
    turned = {**state.memory, "turned": {"a": [50.0, "big"]}}
    for name in ("waits", "after"):
        assert "job big of tenant a, which had waited longest, comes first until 00:02:50 UTC" in said(
            name, memory=turned
        )
