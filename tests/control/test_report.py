"""The figures of the report, from the usage ledger."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fairlead.control.accounting.report import fairness, job_figures, job_report, platform_report, shares_over_time
from fairlead.control.records import JobPhase, Usage
from tests.control import made


def used(tenant: str, devices: int, from_s: float, to_s: float) -> Usage:
    return Usage(f"{tenant}-job", tenant, "ann", 1, "node-0", "cpu", devices, 1.0, from_s, to_s)


def test_shares_over_time_never_show_more_devices_than_there_were() -> None:
    moves = [used("vision", 4, 0.0, 50.3), used("text", 4, 50.3, 50.4), used("vision", 4, 50.4, 100.0)]
    points = shares_over_time(moves, points=10)
    assert [sum(point["devices"].values()) for point in points] == pytest.approx([4.0] * 10)
    assert points[5]["devices"]["text"] == pytest.approx(0.04)


def test_shares_over_time_add_up_to_the_ledger() -> None:
    lines = [used("vision", 2, 0.0, 7.0), used("text", 1, 3.5, 10.0)]
    points = shares_over_time(lines, points=4)
    step_s = points[1]["time_s"] - points[0]["time_s"]
    for tenant, device_s in (("vision", 14.0), ("text", 6.5)):
        assert sum(point["devices"].get(tenant, 0.0) for point in points) * step_s == pytest.approx(device_s)


def test_the_report_of_a_job_is_what_it_waited_took_and_lost() -> None:
    done = made.job(
        phase=JobPhase.SUCCEEDED, submitted_s=100.0, started_s=130.0, finished_s=190.0, samples_per_s=7.0,
        recoveries=2, recovery_s=3.0, result={"metrics": {"loss": 0.5}, "left_out": 4},
    )  # fmt: skip
    told = job_report(done)
    assert (told.job, told.tenant, told.state) == (done.id, "vision", "succeeded")
    assert (told.wait_s, told.jct_s, told.samples_per_s) == (30.0, 90.0, 7.0)
    assert (told.recoveries, told.recovery_s, told.metrics, told.metrics_left_out) == (2, 1.5, {"loss": 0.5}, 4)
    fresh = job_report(made.job(phase=JobPhase.QUEUED))
    assert (fresh.wait_s, fresh.jct_s, fresh.samples_per_s, fresh.recovery_s) == (None, None, None, None)
    assert (fresh.metrics, fresh.metrics_left_out) == ({}, 0)


def lines() -> list[Usage]:
    """Two tenants on a machine of four devices and eight cores; the second one came late."""
    return [
        replace(used("vision", 2, 100.0, 200.0), cpu_s=150.0), replace(used("text", 2, 150.0, 200.0), cpu_s=50.0),
        replace(used("text", 1, 200.0, 250.0), cpu_s=10.0),
    ]  # fmt: skip


JOBS = [
    made.job(
        id="a", phase=JobPhase.SUCCEEDED, submitted_s=100.0, started_s=110.0, finished_s=200.0, step=50, batch_size=30,
        recoveries=1, recovery_s=4.0, finish_by_s=250.0,
    ),
    made.job(
        id="b", phase=JobPhase.FAILED, submitted_s=100.0, started_s=130.0, finished_s=160.0, recoveries=3,
        recovery_s=4.0, finish_by_s=300.0,
    ),
    made.job(id="c", phase=JobPhase.RUNNING, submitted_s=150.0, finish_by_s=900.0),
    made.job(id="d", tenant="text", phase=JobPhase.SUCCEEDED, submitted_s=100.0, started_s=140.0, finished_s=180.0),
]  # fmt: skip


def test_the_platforms_figures_follow_from_jobs_and_ledger() -> None:
    tenants = [made.tenant("vision", 3.0), made.tenant("text", 1.0), made.tenant("idle", 1.0)]
    told = platform_report(tenants, JOBS, lines(), {"device": 4.0, "cpu": 8.0}, 50.0, 260.0)
    assert (told.since_s, told.until_s, told.training_time_s) == (100.0, 250.0, 150.0)
    assert told.utilisation == pytest.approx(210.0 / (8.0 * 150.0))
    assert told.allocation == pytest.approx((200.0 + 100.0 + 50.0) / (4.0 * 150.0))
    assert told.throughput_per_s == pytest.approx(1500 / 150.0) and told.recovery_s == pytest.approx(8.0 / 4)
    assert told.sla_satisfaction == pytest.approx(0.5), "one kept, one failed, one still open, one without a promise"
    assert [each.job for each in told.jobs] == ["a", "b", "c", "d"] and len(told.shares) == 200
    vision, text, idle = told.tenants
    assert (vision.entitlement, text.entitlement) == (0.6, 0.2)
    assert vision.share == pytest.approx(200.0 / 350.0) and text.share == pytest.approx(150.0 / 350.0)
    assert (vision.device_s, text.device_s, idle.device_s, idle.share) == (200.0, 150.0, 0.0, 0.0)
    assert (vision.jobs, vision.finished, text.jobs, text.finished, idle.jobs) == (3, 2, 1, 1, 0)
    assert (vision.mean_wait_s, vision.mean_jct_s) == (20.0, 100.0) and (text.mean_wait_s, text.mean_jct_s) == (
        40.0,
        80.0,
    )
    assert (idle.mean_wait_s, idle.mean_jct_s, idle.sla_satisfaction) == (None, None, None)
    assert (vision.sla_satisfaction, text.sla_satisfaction) == (0.5, None)


def test_a_platform_that_has_done_nothing_has_no_figures() -> None:
    told = platform_report([made.tenant("vision")], [], [], {}, 50.0, 260.0)
    assert (told.since_s, told.until_s, told.training_time_s) == (50.0, 50.0, None)
    assert (told.utilisation, told.allocation, told.throughput_per_s, told.fairness) == (None,) * 4
    assert (told.recovery_s, told.sla_satisfaction, told.shares) == (None, None, [])
    assert platform_report([], [], [], {}, 0.0, 0.0).tenants == []


def test_fairness_is_by_weight_and_by_the_time_that_a_tenant_had_work() -> None:
    tenants = [made.tenant("vision", 2.0), made.tenant("text", 1.0)]
    fair = [used("vision", 2, 0.0, 100.0), used("text", 1, 80.0, 100.0)]
    assert fairness(tenants, fair) == pytest.approx(1.0), "who came late is not badly treated"
    unfair = [used("vision", 2, 0.0, 100.0), used("text", 3, 50.0, 100.0)]
    assert fairness(tenants, unfair) == pytest.approx((1.0 + 3.0) ** 2 / (2 * (1.0 + 9.0)))
    pause = [used("vision", 2, 0.0, 100.0), used("text", 1, 0.0, 10.0), used("text", 1, 90.0, 100.0)]
    assert fairness(tenants, pause) == pytest.approx((1.0 + 0.2) ** 2 / (2 * (1.0 + 0.04)))
    assert fairness(tenants, [used("gone", 1, 0.0, 1.0), used("text", 1, 5.0, 5.0)]) is None


@pytest.mark.parametrize("kept", [True, False])
def test_the_figures_of_one_job_are_its_own(kept: bool) -> None:
    finish_by_s = 190.0 if kept else 189.0
    done = made.job(
        phase=JobPhase.SUCCEEDED, started_s=130.0, finished_s=190.0, step=12, batch_size=10, recoveries=2,
        recovery_s=3.0, finish_by_s=finish_by_s,
    )  # fmt: skip
    found = job_figures(done, lines()[:2], 0.9, 400.0, 300.0)
    assert found == {
        "TT": 60.0, "RU": 0.5, "TP": 2.0, "FI": 0.9, "FRT": 1.5, "SSR": float(kept), "device_s": 300.0,
    }  # fmt: skip
    fresh = job_figures(made.job(), [], None, 0.0, 300.0)
    assert fresh == {"TT": None, "RU": None, "TP": None, "FI": None, "FRT": None, "SSR": None, "device_s": 0.0}
    assert job_figures(replace(done, batch_size=0), [], None, 0.0, 300.0)["TP"] is None
