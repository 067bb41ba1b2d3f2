"""Whatever state a platform is in, also just after its start, everybody who asks is answered: nothing raises."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node, NodeState
from fairlead.scheduling import decide, dry_run
from fairlead.scheduling.admission import admission
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.forecast import forecast
from fairlead.scheduling.live_round import live_round
from fairlead.scheduling.state import ClusterState, JobState, SpentBudget, TenantState

from .clusters import apply, few

NOW_S = 1_000.0
CURVES = (
    None,
    SpeedCurve((1, 2, 4), {"gpu": ((1.0, 1.9, 3.5), (0.0, 1.8, 3.0))}),
    SpeedCurve((1,), {"tpu": ((1.0,), (1.0,))}),  # a type that nobody has
    SpeedCurve((2, 4), {"gpu": ((0.0, 0.0), (0.0, 0.0)), "cpu": ((0.0, 0.0), (0.0, 0.0))}),  # it runs nowhere
    SpeedCurve((), {}),
)
MEMORIES: tuple[dict[str, Any], ...] = (
    {},
    {"accounts": {}, "at_s": 0.0, "finished": {}, "seen": {}},
    {"at_s": 5_000.0, "wake_s": 0.0},  # of a clock that went back
    {"promised": {"job-0": {"victims": ["gone"], "since_s": 990.0}}, "turned_s": {"gone": 1.0}, "moving": ["gone"]},
)


@st.composite
def odd_nodes(draw: st.DrawFn) -> list[Node]:
    """None, some that sleep, are cordoned, drained, lost, of another version, or have no device."""
    return [
        Node(
            f"node-{at}",
            {"cpu": draw(st.sampled_from([0.0, 2.0])), "memory": 4e9, DEVICE: float(draw(st.integers(0, 4)))},
            draw(st.sampled_from(["cpu", "gpu"])),
            state=draw(st.sampled_from([NodeState.READY, *NodeState])),
            speed=draw(st.sampled_from([1.0, 0.0, 0.3])),
            asleep=draw(st.booleans()),
            outdated=draw(st.booleans()),
        )
        for at in range(draw(st.integers(0, 3)))
    ]


@st.composite
def odd_tenants(draw: st.DrawFn) -> list[TenantState]:
    """Just created, without weight, without quota or with none left, below each other or below nobody known."""
    names = ["a", "b", "c"]
    return [
        TenantState(
            name,
            draw(st.sampled_from([1.0, 0.0, 1e-9, 1e9])),
            draw(st.sampled_from([None, 0, 2])),
            spent=draw(st.sampled_from([None, None, SpentBudget(1.0, "day", 900.0), SpentBudget(1.0, "day", 9_000.0)])),
            parent=draw(st.sampled_from([None, "a", "b", name, "gone"])),
            guarantee=draw(st.sampled_from([{}, {"gpu": 2.0}, {"tpu": 4.0, "cpu": 0.0}])),
            most=draw(st.sampled_from([{}, {"gpu": 0.0}, {"tpu": 1.0}])),
        )
        for name in names[: draw(st.integers(0, 3))]
    ]


@st.composite
def odd_jobs(draw: st.DrawFn, name: str, nodes: list[Node]) -> JobState:
    low = draw(st.integers(1, 3))
    high = low + draw(st.sampled_from([0, 0, 3, 500]))
    seats = [node.name for node in nodes] + ["gone"]
    fate = draw(st.sampled_from(["waits", "waits", "sits", "settles", "broken"]))
    return JobState(
        name, draw(st.sampled_from(["a", "b", "nobody"])), draw(st.sampled_from([0.0, NOW_S, NOW_S + 50.0])), low, high,
        demand=draw(st.sampled_from([{}, {"cpu": 1.0}, {"memory": 1e15}, {"licence": 1.0}])),
        device_type=draw(st.sampled_from([None, "gpu", "tpu"])),
        start_by_s=draw(st.sampled_from([None, 0.0, NOW_S, 1_030.0])),
        finish_by_s=draw(st.sampled_from([None, 0.0, NOW_S, 1_000.1, 5_000.0, 1e12])),
        seats=() if fate == "waits" else tuple(draw(st.lists(st.sampled_from(seats), max_size=3))),
        frozen=fate == "settles", broken=fate == "broken", elastic=draw(st.booleans()),
        curve=draw(st.sampled_from(CURVES)), work_left=draw(st.sampled_from([None, 0.0, 100.0, 1e15])),
        work_done=draw(st.sampled_from([0.0, 10.0])), remaining_samples=draw(st.sampled_from([None, 0.0, 1e6])),
        speeds=draw(st.sampled_from([{}, {1: 0.0}, {2: 10.0}])), person=draw(st.sampled_from(["", "ada", "eve"])),
        restart_cost_s=draw(st.sampled_from([0.0, 1.0, 1e6])), priority=draw(st.sampled_from([0, -99, 99])),
        facts=draw(st.sampled_from([{}, {"takes_s": 0.0}, {"takes_s": 60.0}, {"class": "inference"}])),
        only=draw(st.sampled_from([frozenset(), frozenset({"zone-1"})])),
    )  # fmt: skip


@st.composite
def odd_states(draw: st.DrawFn) -> ClusterState:
    nodes = draw(odd_nodes())
    jobs = [draw(odd_jobs(f"job-{at}", nodes)) for at in range(draw(st.integers(0, 4)))]
    return ClusterState(
        NOW_S, nodes, draw(odd_tenants()), jobs, memory=draw(st.sampled_from(MEMORIES)),
        round_s=draw(st.sampled_from([None, 60.0])), sleep_after_s=draw(st.sampled_from([None, 0.0, 60.0])),
    )  # fmt: skip


def placeable(state: ClusterState) -> bool:
    """Whether nobody sits on more than there is: what a platform never reports."""
    there = {node.name: node.devices for node in state.nodes if node.state is not NodeState.LOST}
    for job in state.jobs:
        for seat in job.seats:
            there[seat] = there.get(seat, 9) - 1
    return all(left >= 0 for left in there.values())


@few
@given(odd_states(), st.data(), st.booleans(), st.booleans())
def test_a_submission_is_answered_whatever_the_state(
    state: ClusterState, data: st.DataObject, strict: bool, ahead: bool
) -> None:
    asked = data.draw(odd_jobs("asked", []))
    answer = admission(state, replace(asked, seats=()), decide, strict=strict, look_ahead=ahead)
    assert answer.why.text and answer.admitted in ((True, False) if strict else (True,))
    moments = (answer.expected_start_s, answer.expected_finish_s, answer.earliest_deadline_s)
    assert all(moment is None or isfinite(moment) for moment in moments)  # or no JSON could say it


@pytest.mark.parametrize("work", [1e15, 1e300])
def test_work_that_nobody_will_live_to_see_done_has_an_answer(work: float) -> None:
    curve = SpeedCurve((1,), {"gpu": ((1.0,), (1.0,))})
    asked = JobState("asked", "a", NOW_S, curve=curve, work_left=work, finish_by_s=NOW_S + 60.0)
    state = ClusterState(NOW_S, [Node("node", {DEVICE: 1.0}, "gpu")], [TenantState("a")], [])
    answer = admission(state, asked, decide)
    assert answer.kept is False and "cannot be kept" in answer.why.text


@few
@given(odd_states())
def test_every_state_has_a_round_a_forecast_and_words_for_everybody(state: ClusterState) -> None:
    if not placeable(state):
        return
    for at_once in (False, True):
        here = replace(state, at_once=at_once)
        made = decide(here)
        decide(apply(here, made, wait_s=1.0))
        forecast(here, decide, first=made)
    reasons = live_round(state).reasons
    for job in state.jobs:
        reasons.get(job.id)
        dry_run(state, replace(job, id="asked", seats=(), frozen=False, broken=False))
