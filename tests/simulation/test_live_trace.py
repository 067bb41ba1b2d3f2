"""The live state played forward is the live state: budgets, sleep, what is owed, people, commands that start over."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fairlead.cluster import DEVICE, Node
from fairlead.control.service.whatif import _state_view
from fairlead.scheduling.job_speed import expected_work_left
from fairlead.scheduling.market.tenants import Account
from fairlead.scheduling.state import ClusterState, JobState, SpentBudget, TenantState
from fairlead.simulation.engine import Settings, Simulation
from fairlead.simulation.live_trace import read_state, trace_of
from fairlead.simulation.outcome import Outcome
from fairlead.simulation.policies import entry
from fairlead.simulation.runs import run

NOW_S = 100_000.0


def command(name: str, takes_s: float, **fields: object) -> JobState:
    """A job that keeps no snapshot, and says how long it takes."""
    made = JobState(name, "t", NOW_S - 60_000.0, facts={"takes_s": takes_s}, starts_over=True, since_s=NOW_S)
    return replace(made, **fields)  # type: ignore[arg-type]


def cluster(*jobs: JobState, devices: int = 1, **fields: object) -> ClusterState:
    made = ClusterState(NOW_S, [Node("n", {DEVICE: float(devices)}, "v100")], [TenantState("t")], jobs)
    return replace(made, **fields)  # type: ignore[arg-type]


def played(state: ClusterState, policy: str = "fairlead") -> Outcome:
    left = dict(zip((job.id for job in state.jobs), expected_work_left(state, state.jobs), strict=True))
    return run(trace_of(state, left), policy)


def finished(outcome: Outcome) -> dict[str, float]:
    return {job.id: job.finished_s - NOW_S for job in outcome.jobs}


def test_a_command_that_is_nearly_done_is_not_stopped_for_shorter_ones_in_the_played_future() -> None:
    old = command("old", 20_000.0, seats=("n",), since_s=NOW_S - 15_000.0)
    young = [command(f"young-{at}", 100.0, submitted_s=NOW_S) for at in range(5)]
    outcome = played(cluster(old, *young))
    assert finished(outcome)["old"] == pytest.approx(5_000.0, abs=2.0)
    assert [job.restarts for job in outcome.jobs] == [0] * 6


def test_a_command_that_is_stopped_begins_anew() -> None:
    old = command("old", 600.0, seats=("n",), since_s=NOW_S - 500.0)
    trace = trace_of(cluster(old), dict(zip(["old"], expected_work_left(cluster(old), [old]), strict=True)))
    going = Simulation(trace, trace.nodes, entry("fifo").make(trace, 0), Settings())
    going._resume_running_jobs()
    job = going.active["old"]
    assert job.course.work_left() == pytest.approx(100.0)
    job.leave(NOW_S)
    assert job.course.work_left() == pytest.approx(600.0)


def test_nothing_starts_before_a_spent_budget_begins_anew() -> None:
    spent = [TenantState("t", spent=SpentBudget(1.0, "month", NOW_S + 2e6)), TenantState("u")]
    state = cluster(command("j", 100.0), command("other", 100.0, tenant="u"), devices=2, tenants=spent)
    done = finished(played(state))
    assert done["other"] == pytest.approx(100.0, abs=61.0)
    assert 2e6 < done["j"] <= 2e6 + 200.0


def test_who_is_seated_on_a_node_that_sleeps_waits_until_it_is_awake() -> None:
    node = Node("n", {DEVICE: 1.0}, "v100", asleep=True, wake_s=300.0)
    state = cluster(command("j", 100.0), nodes=[node], sleep_after_s=600.0)
    assert finished(played(state))["j"] == pytest.approx(401.0, abs=2.0)
    assert finished(played(replace(state, nodes=[replace(node, asleep=False)])))["j"] == pytest.approx(101.0, abs=2.0)


def test_who_handed_a_job_in_and_when_it_should_start_is_seen_by_the_policy() -> None:
    jobs = [command("j", 100.0, person="ann", start_by_s=NOW_S + 60.0)]
    trace = trace_of(cluster(*jobs), {"j": 100.0})
    going = Simulation(trace, trace.nodes, entry("fifo").make(trace, 0), Settings())
    going._admit()
    (seen,) = going.state().jobs
    assert (seen.person, seen.start_by_s, seen.starts_over) == ("ann", NOW_S + 60.0, True)


def test_what_tenants_are_owed_is_told_and_played_on() -> None:
    """Two tenants with long jobs on one device: who is owed it has it first."""
    tenants = [TenantState("t"), TenantState("u")]
    jobs = [command(name, 4_000.0, tenant=name, starts_over=False) for name in ("t", "u")]
    for owed in ("t", "u"):
        accounts = {name: Account(owed=3e4 if name == owed else -3e4, due_s=1e5, had_s=1e5) for name in ("t", "u")}
        state = cluster(*jobs, tenants=tenants, memory={"accounts": accounts, "at_s": NOW_S, "seen": {}})
        told = _state_view(state)
        again = read_state(json.loads(json.dumps(told.state)))
        assert again.memory == {"accounts": accounts, "at_s": NOW_S}
        assert list(again.jobs) == list(state.jobs)
        outcome = run(trace_of(again, told.left), "fairlead")
        assert min(outcome.jobs, key=lambda job: job.started_s).id == owed
