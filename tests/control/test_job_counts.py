"""The figures that every run reports, from jobs and ledger lines."""

from __future__ import annotations

import signal

import pytest

from fairlead import wire
from fairlead.control.accounting.ledger import CpuMeter, usage_lines
from fairlead.control.accounting.report import fairness, job_figures, platform_report
from fairlead.control.job_views import sla_met
from fairlead.control.reconcile.gang_state_machine import WorkerFact, time_of_loss_s
from fairlead.control.reconcile.worker_events import fact_after, measured_speed
from fairlead.control.records import JobPhase
from tests.control import made


def test_each_tenants_share_stands_beside_its_entitlement() -> None:
    tenants = [made.tenant("vision", 3.0), made.tenant("text", 1.0, 1)]
    ledger = [made.usage("vision", 3, 0.0, 10.0, cpu_s=20.0), made.usage("text", 1, 0.0, 10.0, cpu_s=5.0)]
    report = platform_report(tenants, [], ledger, {"cpu": 5.0, "device": 5.0}, 0.0, 10.0)
    assert [(t.share, t.entitlement) for t in report.tenants] == [(0.75, 0.75), (0.25, 0.25)]
    assert report.allocation == pytest.approx(0.8)
    assert report.utilisation == pytest.approx(0.5)
    assert report.fairness == pytest.approx(1.0)


def test_fairness_falls_when_one_tenant_gets_more_than_its_weight() -> None:
    tenants = [made.tenant("vision"), made.tenant("text", number=1)]
    ledger = [made.usage("vision", 3, 0.0, 10.0), made.usage("text", 1, 0.0, 10.0)]
    assert fairness(tenants, ledger) == pytest.approx(16 / 20)


def test_a_tenant_that_came_late_does_not_count_as_badly_treated() -> None:
    tenants = [made.tenant("vision"), made.tenant("text", number=1)]
    ledger = [made.usage("vision", 2, 0.0, 100.0), made.usage("text", 2, 90.0, 100.0)]
    assert fairness(tenants, ledger) == pytest.approx(1.0)


def test_an_empty_platform_has_a_report_too() -> None:
    report = platform_report([], [], [], {}, 0.0, 10.0)
    assert (report.utilisation, report.fairness, report.jobs) == (None, None, [])


def test_a_jobs_figures() -> None:
    done = made.job(
        phase=JobPhase.SUCCEEDED, started_s=110.0, finished_s=130.0, step=100, batch_size=64, recoveries=2,
        recovery_s=1.0, finish_by_s=140.0,
    )  # fmt: skip
    figures = job_figures(done, [made.usage("vision", 2, 110.0, 130.0, cpu_s=30.0)], 0.9, core_s=40.0, now_s=200.0)
    assert figures == {"TT": 20.0, "RU": 0.75, "TP": 320.0, "FI": 0.9, "FRT": 0.5, "SSR": 1.0, "device_s": 40.0}


@pytest.mark.parametrize(
    ("changes", "now_s", "met"),
    [
        ({}, 200.0, None),
        ({"finish_by_s": 150.0}, 140.0, None),
        ({"finish_by_s": 150.0}, 160.0, False),
        ({"finish_by_s": 150.0, "phase": JobPhase.SUCCEEDED, "finished_s": 149.0}, 160.0, True),
        ({"finish_by_s": 150.0, "phase": JobPhase.SUCCEEDED, "finished_s": 151.0}, 160.0, False),
        ({"finish_by_s": 150.0, "phase": JobPhase.FAILED}, 140.0, False),
        ({"finish_by_s": 150.0, "phase": JobPhase.CANCELLED}, 160.0, None),
        ({"start_by_s": 150.0, "started_s": 149.0}, 160.0, True),
        ({"start_by_s": 150.0}, 160.0, False),
    ],
)
def test_a_promise_is_kept_broken_or_open(changes: dict[str, object], now_s: float, met: bool | None) -> None:
    assert sla_met(made.job(**changes), now_s) is met


def test_the_ledger_has_a_line_per_node_from_where_it_stopped() -> None:
    running = made.generation(("w0", "node-0"), ("w1", "node-0"), ("w2", "node-1"), metered_s=150.0)
    lines = usage_lines(made.job(), running, {}, 160.0, {"node-0": 4.0})
    assert [(line.node, line.devices, line.from_s, line.to_s, line.cpu_s) for line in lines] == [
        ("node-0", 2, 150.0, 160.0, 4.0),
        ("node-1", 1, 150.0, 160.0, 0.0),
    ]
    assert usage_lines(made.job(), running, {}, 150.0, {}) == []


def telemetry(**cpu_s: float) -> wire.Telemetry:
    return wire.Telemetry(0.5, 0, [wire.WorkerUsage("mlp-abc234", worker, used, 0) for worker, used in cpu_s.items()])


def test_cpu_time_is_metered_once() -> None:
    meter, running = CpuMeter(), made.generation(("w0", "node-0"), ("w1", "node-1"))
    meter.observe(telemetry(w0=2.0, w1=3.0))
    assert meter.take_usage(running) == {"node-0": 2.0, "node-1": 3.0}
    assert meter.take_usage(running) == {"node-0": 0.0, "node-1": 0.0}
    meter.observe(telemetry(w0=2.5))
    assert meter.take_usage(running) == {"node-0": 0.5, "node-1": 0.0}


def test_of_an_adopted_worker_only_what_follows_is_metered() -> None:
    meter, running = CpuMeter(), made.generation(("w0", "node-0"))
    meter.adopt("mlp-abc234", "w0")
    meter.observe(telemetry(w0=50.0))
    meter.observe(telemetry(w0=51.0))
    assert meter.take_usage(running) == {"node-0": 1.0}


def test_a_speed_is_believed_once_the_generation_has_run_for_a_while() -> None:
    young = made.generation(("w0", "a"), ("w1", "b"), first_step=11, running_s=100.0)
    job = made.job(batch_size=32)
    assert measured_speed(job, young, 20, 101.0) == {}
    assert measured_speed(job, young, 30, 110.0) == {2: 20 * 32 / 10.0}


def test_a_short_worker_that_nobody_looked_at_while_it_lived_has_used_what_it_used() -> None:
    meter, generation = CpuMeter(), made.generation(("w0", "node-0"), ("w1", "node-1"))
    meter.observe_total("mlp-abc234", "w0", 3.5)
    meter.observe(wire.Telemetry(0.5, 0, [wire.WorkerUsage("mlp-abc234", "w1", 1.0, 0, 0)]))
    meter.observe_total("mlp-abc234", "w1", 4.0)
    assert meter.take_usage(generation) == {"node-0": 3.5, "node-1": 4.0}
    assert meter.take_usage(generation) == {"node-0": 0.0, "node-1": 0.0}, "nothing is counted twice"


def test_what_an_adopted_worker_used_before_is_not_counted_again_at_its_end() -> None:
    meter = CpuMeter()
    meter.adopt("mlp-abc234", "w0")
    meter.observe_total("mlp-abc234", "w0", 3.5)
    assert meter.take_usage(made.generation(("w0", "node-0"))) == {"node-0": 0.0}


def test_a_generation_broke_when_a_node_first_saw_it_not_when_the_leader_came_to_look() -> None:
    joined = WorkerFact("node-0", "joined", generation=1)
    killed = fact_after(joined, wire.Exited(None, int(signal.SIGKILL)), 100.0)
    noticed = fact_after(joined, wire.Broken(1, 7, "a peer is gone"), 100.2)
    facts = {"w0": killed, "w1": noticed}
    assert time_of_loss_s(("w0", "w1"), facts, 90.0, 104.0) == 100.0
    assert time_of_loss_s(("w1",), facts, 90.0, 104.0) == 100.2
    assert time_of_loss_s(("w1",), facts, 90.0, 99.0) == 99.0, "no clock makes it later than now"
    assert time_of_loss_s(("w2",), facts, 90.0, 104.0) == 104.0, "of one that nobody knows any more"
    again = fact_after(noticed, wire.Joined(2, 7))
    assert time_of_loss_s(("w1",), {"w1": again}, 90.0, 120.0) == 120.0, "what was lost before is another loss"


def test_what_a_worker_said_of_a_generation_before_there_was_one_is_no_sign_of_its_loss() -> None:
    lied = fact_after(WorkerFact("node-0", "joined", generation=1), wire.Broken(2, 7, "a peer is gone"), 50.0)
    assert time_of_loss_s(("w0",), {"w0": lied}, 82.0, 82.1) == 82.1
    died = fact_after(WorkerFact("node-0", "joined", generation=1), wire.Exited(None, int(signal.SIGKILL)), 81.0)
    assert time_of_loss_s(("w0",), {"w0": died}, 82.0, 82.1) == 81.0, "its node saw it end, and that was told late"
