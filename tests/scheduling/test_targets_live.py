"""Live, gangs come to what the market would give them: at the cost of siblings that it would not run, and no others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling import decide
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.live_plan import live_plan
from fairlead.scheduling.market_targets import MIN_RUN_S
from fairlead.scheduling.scaling import deadline_is_tight
from fairlead.scheduling.state import ClusterState, JobState, Preempt, Resize, TenantState

from .clusters import apply, by_job, changes, clusters, few, job, nodes, state

EACH = {1: 10.0, 2: 20.0, 3: 30.0, 4: 40.0}


def late(seats: tuple[str, ...], **fields: Any) -> JobState:
    """At 1,000 s it has 300 s for what one worker does in 1,000: four make it, three do not."""
    return job("late", "a", (1, 4), seats=seats, speeds=EACH, remaining_samples=10_000.0, finish_by_s=1300.0, **fields)


def siblings(count: int, **fields: Any) -> list[JobState]:
    return [job(f"other-{i}", "a", seats=(f"node-{i}",), **fields) for i in range(1, count + 1)]


def alone(jobs: list[JobState]) -> ClusterState:
    return state(jobs, now_s=1000.0, tenants=[TenantState("a")])


def test_siblings_that_the_market_would_not_run_stop_so_that_a_gang_keeps_its_deadline() -> None:
    before = alone([late(("node-0",)), *siblings(3)])
    first = decide(before)
    stopped = {change.job for change in changes(first) if isinstance(change, Preempt)}
    assert stopped == {"other-1", "other-2", "other-3"}
    grown = by_job(decide(apply(before, first))).get("late")
    assert isinstance(grown, Resize) and len(grown.seats) == 4


def test_a_command_is_not_stopped_for_anothers_growth() -> None:
    assert changes(decide(alone([late(("node-0",)), *siblings(3, starts_over=True)]))) == []


def test_a_job_that_the_market_would_not_run_takes_nothing_from_a_gang_that_needs_all_it_has() -> None:
    running = late(tuple(node.name for node in nodes(4)))
    assert changes(decide(alone([running, job("new", "a", submitted_s=999.0)]))) == []


@pytest.mark.parametrize(
    ("finish_by_s", "presses"), [(None, False), (1200.0, False), (1300.0, True), (1800.0, True), (1850.0, False)]
)
def test_a_deadline_presses_while_a_gang_keeps_it_with_little_to_spare(
    finish_by_s: float | None, presses: bool
) -> None:
    """Four workers need 250 s."""
    assert deadline_is_tight(replace(late(()), finish_by_s=finish_by_s), 4, 1000.0) is presses


@few
@given(clusters(healthy=True))
def test_a_gang_that_grows_stops_only_siblings_that_have_run_for_their_time(before: ClusterState) -> None:
    now = replace(before, jobs=[replace(one, start_by_s=None, priority=0) for one in before.jobs])
    meant, jobs = live_plan(now).targets.seats, {one.id: one for one in now.jobs}
    for change in changes(decide(now)):
        taker = jobs.get(change.reason.facts.get("to", ""))
        if isinstance(change, Preempt) and taker is not None and taker.seats:
            victim = jobs[change.job]
            assert victim.tenant == taker.tenant and not victim.starts_over
            assert now.now_s - victim.since_s >= MIN_RUN_S and len(taker.seats) < len(meant[taker.id])


def two_types() -> list[Node]:
    return [Node("fast", {DEVICE: 1.0}, "v100"), Node("slow", {DEVICE: 1.0}, "k80")]


def known(name: str, seat: str, on_fast: float, on_slow: float, **fields: Any) -> JobState:
    """A job of 3,600 s of work on its slow type, with a curve that knows both types; it sits there since long ago."""
    speeds = {"v100": ((on_fast,), (on_fast,)), "k80": ((on_slow,), (on_slow,))}
    fields.setdefault("since_s", 0.0)
    return job(name, "a", seats=(seat,), curve=SpeedCurve((1,), speeds), work_left=3600.0 * on_slow, **fields)


def test_two_gangs_swap_their_types_of_device_where_one_gains_much_and_the_other_loses_little() -> None:
    now = replace(alone([known("gains", "slow", 8.0, 1.0), known("indifferent", "fast", 1.05, 1.0)]), nodes=two_types())
    for _ in range(4):
        now = apply(now, decide(now))
    assert {one.id: one.seats for one in now.jobs} == {"gains": ("fast",), "indifferent": ("slow",)}
    assert changes(decide(now)) == []


def test_nobody_swaps_with_a_gang_that_has_just_begun() -> None:
    young = known("indifferent", "fast", 1.05, 1.0, since_s=990.0)
    assert changes(decide(replace(alone([known("gains", "slow", 8.0, 1.0), young]), nodes=two_types()))) == []
