"""The simulator itself: what takes how long, what a restart costs, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.cluster import DEVICE, Node, NodeState
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.state import ClusterState, Hold, Preempt, Reason, Round, Start, TenantState
from fairlead.simulation.engine import Settings, SimulationError, simulate
from fairlead.simulation.failures import Failure, PlannedFailures, RandomFailures
from fairlead.simulation.outcome import percentile
from fairlead.simulation.runs import run
from fairlead.simulation.trace import Clock, Trace, TraceJob

BECAUSE = Reason("test", "because")


@dataclass(frozen=True, slots=True)
class Phases:
    """One unit a second, and from a certain amount of work on, another rate."""

    work: float
    gang: int = 1
    from_work: float = math.inf
    then: float = 1.0

    def rate(self, done: float, device_type: str, spread: Sequence[int]) -> float:
        return 1.0 if done < self.from_work else self.then

    def changes_at(self, done: float) -> float:
        return self.from_work if done < self.from_work else math.inf

    def curve(self, done: float) -> SpeedCurve:
        return SpeedCurve((self.gang,), {"gpu": ((1.0,), (1.0,))})

    def declared_work_left(self, done: float) -> float:
        return self.work - done


def a_job(name: str, arrival_s: float, work: float, gang: int = 1, **more: Any) -> TraceJob:
    return TraceJob(name, arrival_s, Phases(work, gang), gang, gang, exclusive_s=work, **more)


def a_trace(*jobs: TraceJob, clock: Clock = Clock.EVENTS, round_s: float = 60.0, restart_s: float = 0.0) -> Trace:
    return Trace("made", "made", jobs, round_s, restart_s, nodes(1, 2), clock=clock)


def nodes(count: int, devices: int) -> tuple[Node, ...]:
    return tuple(Node(f"n{at}", {DEVICE: float(devices)}, "gpu", topology=("r0", f"n{at}")) for at in range(count))


def first_fit(state: ClusterState) -> Round:
    free = [node.name for node in state.nodes if node.schedulable for _ in range(node.devices)]
    for job in state.jobs:
        for name in job.seats:
            free.remove(name)
    starts = []
    for job in state.jobs:
        if not job.seats and job.min_workers <= len(free):
            starts.append(Start(job.id, tuple(free[: job.min_workers]), BECAUSE))
            del free[: job.min_workers]
    return Round(tuple(starts), {})


def finish(trace: Trace, policy: Any = first_fit, **how: Any) -> dict[str, float]:
    outcome = simulate(trace, trace.nodes, policy, Settings(**how))
    return {job.id: job.finished_s for job in outcome.jobs}


def test_with_events_a_job_starts_when_it_comes_and_its_successor_when_it_ends() -> None:
    done = finish(a_trace(a_job("a", 5.0, 100.0, 2), a_job("b", 7.5, 10.0, 2)))
    assert done == {"a": pytest.approx(105.0), "b": pytest.approx(115.0)}


def test_in_rounds_a_job_waits_for_the_next_one_but_ends_when_it_is_done() -> None:
    done = finish(a_trace(a_job("a", 0.0, 90.0, 2), a_job("b", 7.5, 10.0, 2), clock=Clock.ROUNDS))
    assert done == {"a": pytest.approx(90.0), "b": pytest.approx(130.0)}


def test_a_round_may_end_with_its_last_gang() -> None:
    done = finish(a_trace(a_job("a", 0.0, 90.0, 2), a_job("b", 7.5, 10.0, 2), clock=Clock.LAST))
    assert done == {"a": pytest.approx(90.0), "b": pytest.approx(100.0)}


def test_work_is_counted_exactly_over_the_phases_of_a_job() -> None:
    job = TraceJob("a", 0.0, Phases(100.0, 1, 30.0, 7.0), 1, 1)
    for clock in (Clock.EVENTS, Clock.ROUNDS, Clock.LAST):
        assert finish(a_trace(job, clock=clock, round_s=17.0)) == {"a": pytest.approx(40.0)}


def test_a_start_and_a_move_cost_a_restart_and_staying_costs_nothing() -> None:
    trace = replace(a_trace(a_job("a", 0.0, 100.0), restart_s=20.0, clock=Clock.ROUNDS), nodes=nodes(2, 1))
    assert finish(trace) == {"a": pytest.approx(120.0)}

    def restless(state: ClusterState) -> Round:
        job = state.jobs[0]
        return Round((Start(job.id, ("n1",) if job.seats == ("n0",) else ("n0",), BECAUSE),), {})

    assert finish(trace, restless) == {"a": pytest.approx(160.0)}  # 40 of every 60 seconds, twice, and then 20


def test_who_is_preempted_begins_again_where_it_was() -> None:
    trace = a_trace(a_job("a", 0.0, 100.0, 2), a_job("b", 10.0, 30.0, 2), restart_s=5.0)

    def newest(state: ClusterState) -> Round:
        job = max(state.jobs, key=lambda job: job.submitted_s)
        others = [Preempt(other.id, BECAUSE) for other in state.jobs if other.seats and other is not job]
        return Round((*others, *([] if job.seats else [Start(job.id, ("n0", "n0"), BECAUSE)])), {})

    outcome = simulate(trace, trace.nodes, newest)
    done = {job.id: job for job in outcome.jobs}
    assert done["b"].finished_s == pytest.approx(45.0)
    assert done["a"].finished_s == pytest.approx(45.0 + 5.0 + 95.0)
    assert done["a"].restarts == 1
    assert outcome.figures()["utilisation"] == pytest.approx(2 * 130.0 / (2 * 145.0))


def test_a_policy_that_gives_a_device_twice_is_stopped() -> None:
    def generous(state: ClusterState) -> Round:
        return Round(tuple(Start(job.id, ("n0", "n0"), BECAUSE) for job in state.jobs), {})

    with pytest.raises(SimulationError, match="not free"):
        finish(a_trace(a_job("a", 0.0, 10.0, 2), a_job("b", 0.0, 10.0, 2)), generous)


def test_a_gang_is_whole_or_absent() -> None:
    def stingy(state: ClusterState) -> Round:
        return Round(tuple(Start(job.id, ("n0",), BECAUSE) for job in state.jobs), {})

    with pytest.raises(SimulationError, match="1 workers; it asked for 2 to 2"):
        finish(a_trace(a_job("a", 0.0, 10.0, 2)), stingy)


def test_a_policy_that_starts_nothing_is_found_out() -> None:
    with pytest.raises(SimulationError, match="for ever"):
        finish(a_trace(a_job("a", 0.0, 10.0)), lambda state: Round((), {}))


def test_a_declined_job_goes_and_counts_as_late() -> None:
    def choosy(state: ClusterState) -> Round:
        refused = [Hold(job.id, Reason("declined", "no")) for job in state.jobs if job.id == "b"]
        kept = first_fit(replace(state, jobs=[job for job in state.jobs if job.id != "b"]))
        return Round((*refused, *kept.decisions), {})

    trace = a_trace(a_job("a", 0.0, 10.0, deadline_s=20.0), a_job("b", 0.0, 10.0, deadline_s=20.0))
    outcome = simulate(trace, trace.nodes, choosy)
    assert [job.id for job in outcome.jobs] == ["a"]
    assert outcome.figures()["deadlines_met"] == 0.5


def test_a_policy_sees_work_left_only_if_it_is_declared() -> None:
    seen: list[tuple[float | None, float | None]] = []

    def looking(state: ClusterState) -> Round:
        seen.append((state.jobs[0].work_left, state.jobs[0].exclusive_s))
        return first_fit(state)

    finish(a_trace(a_job("a", 0.0, 100.0)), looking, declared=True)
    finish(a_trace(a_job("a", 0.0, 100.0)), looking, declared=False)
    assert seen[0] == (100.0, 100.0)
    assert seen[-1] == (None, None)


class OneFailure:
    snapshot_s = 10.0

    def __init__(self) -> None:
        self._left = [Failure(20.0, 50.0, ("n0",))]

    def until(self, now_s: float, nodes: Sequence[Node]) -> list[Failure]:
        return [self._left.pop()] if self._left and self._left[0].at_s <= now_s else []


def test_a_failure_throws_a_gang_back_to_its_snapshot_and_its_node_is_gone_for_a_while() -> None:
    states: list[NodeState] = []

    def watching(state: ClusterState) -> Round:
        states.append(state.nodes[0].state)
        return first_fit(state)

    trace = a_trace(a_job("a", 0.0, 100.0), clock=Clock.ROUNDS, round_s=24.0)
    done = finish(trace, watching, outages=OneFailure())
    # 24 s run, 4 of them lost; the node is back for the round at 72 s; 80 s are left.
    assert done == {"a": pytest.approx(152.0)}
    assert NodeState.LOST in states


def test_of_a_flat_pool_one_device_fails_and_only_a_gang_too_many_is_stopped() -> None:
    pool = Node("gpu", {DEVICE: 2.0}, "gpu")
    made = a_trace(a_job("a", 0.0, 100.0), a_job("b", 0.0, 100.0), clock=Clock.ROUNDS, round_s=24.0)
    trace = replace(made, nodes=(pool,))
    planned = PlannedFailures([Failure(20.0, 70.0, ("gpu",))], snapshot_s=1.0)
    assert finish(trace, outages=planned) == {"a": pytest.approx(100.0), "b": pytest.approx(72.0 + 76.0)}


def test_failures_come_from_a_seed_and_take_racks_along_sometimes() -> None:
    machines = nodes(8, 1)

    def happened(seed: int) -> list[Failure]:
        outages = RandomFailures(1.0, seed)
        outages.until(0.0, machines)
        return outages.until(200 * 3600.0, machines)

    assert happened(1) == happened(1) != happened(2)
    sizes = [len(failure.nodes) for failure in happened(1)]
    assert set(sizes) == {1, 8}
    assert len(sizes) == pytest.approx(8 * 200 / 1.5, rel=0.2)  # an hour until it fails, half an hour until it is back


def test_tenants_are_served_over_due() -> None:
    jobs = [a_job(f"{tenant}{at}", 0.0, 600.0, 1, tenant=tenant) for tenant in "ab" for at in range(2)]
    trace = a_trace(*jobs)
    outcome = simulate(trace, trace.nodes, first_fit, Settings(tenants=[TenantState("a", 3.0), TenantState("b", 1.0)]))
    [window] = outcome.windows
    # First come first served gives the devices to tenant a, then to b; due were 1.5 and 0.5 while both wanted some.
    assert window.served == {"a": pytest.approx(1200.0), "b": pytest.approx(1200.0)}
    assert window.due["a"] == pytest.approx(900.0)
    assert window.due["b"] == pytest.approx(300.0 + 1200.0)


@pytest.mark.parametrize("policy", ["fifo", "srtf", "las", "drf", "gavel-maxmin", "gavel-ftf", "gavel-makespan"])
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_every_policy_finishes_every_job_and_no_device_time_is_lost(policy: str, data: st.DataObject) -> None:
    jobs = [
        a_job(f"j{at}", data.draw(st.floats(0, 500)), data.draw(st.floats(1, 900)), data.draw(st.integers(1, 4)))
        for at in range(data.draw(st.integers(1, 7)))
    ]
    trace = replace(a_trace(*jobs, clock=Clock.ROUNDS), nodes=nodes(2, 2))
    outcome = run(trace, policy)
    assert len(outcome.jobs) == len(jobs)
    served = sum(job.device_s for job in outcome.jobs)
    assert served == pytest.approx(sum(job.exclusive_s * job.min_workers for job in jobs))
    for job in outcome.jobs:
        assert job.jct_s >= job.exclusive_s * (1 - 1e-9)


def test_percentiles_lie_between_neighbours() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([5.0], 99) == 5.0
    assert percentile([], 50) == 0.0
