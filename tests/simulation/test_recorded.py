"""Traces that only know how long jobs ran: Tiresias's small one and Philly's large one."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.errors import InvalidSpec
from fairlead.simulation.engine import Settings, simulate
from fairlead.simulation.trace_formats import philly, tiresias
from fairlead.simulation.trace_formats.recorded import RecordedJob, constant
from fairlead.simulation.trace_reader import read_trace
from fairlead.simulation.yardsticks.tiresias import Tiresias, for_trace
from tests.simulation.builders import TRACES, needs_traces


@needs_traces
def test_tiresias_on_its_own_jobs_gives_the_published_figures() -> None:
    trace = tiresias.read(TRACES / "tiresias/60_job.csv")
    figures = simulate(trace, trace.nodes, for_trace(trace)).figures()
    assert figures["avg_jct_s"] == pytest.approx(190.7, abs=0.05)
    assert figures["makespan_s"] == 3271
    assert figures["restarts_per_job"] == 0


@needs_traces
def test_all_of_philly_is_read_in_order_with_its_tenants() -> None:
    trace = philly.read(TRACES / "pollux/traces/philly.csv")
    assert len(trace.jobs) == 82_247
    assert len(trace.tenants) == 15
    assert sum(node.devices for node in trace.nodes) == 416
    assert trace.jobs[0].arrival_s == 0.0
    assert all(a.arrival_s <= b.arrival_s for a, b in zip(trace.jobs, trace.jobs[1:], strict=False))
    weights = {tenant.name: tenant.weight for tenant in trace.tenants}
    assert (weights["6214e9"], weights["ed69ec"], weights["925e2b"]) == (64.0, 8.0, 32.0)
    assert len({id(job.model.curve(0.0)) for job in trace.jobs}) == 10  # one shape per gang size


def test_a_first_start_is_part_of_what_was_recorded_and_a_second_is_not() -> None:
    course = RecordedJob(100.0, 2).begin()
    assert course.run(40.0, "gpu", (2,), 30.0).service_s == 40.0
    assert course.run(40.0, "gpu", (2,), 30.0).service_s == 10.0
    assert course.done == 50.0


def test_a_gang_runs_whole_or_not_at_all() -> None:
    job = RecordedJob(100.0, 4)
    assert job.rate(0.0, "v100", (2, 2)) == 1.0
    assert job.rate(0.0, "v100", (3,)) == 0.0
    assert job.curve(0.0) is constant(4)


def test_another_column_of_philly_may_say_whose_a_job_is(tmp_path: Path) -> None:
    path = _philly(tmp_path)
    assert {job.tenant for job in read_trace(path, tenant_column="cluster").jobs} == {"x", "y", "z"}
    assert {job.tenant for job in read_trace(path, tenant_column="num_gpus").jobs} == {"1", "2"}
    with pytest.raises(InvalidSpec, match="there is no column team"):
        read_trace(path, tenant_column="team")


def _philly(folder: Path) -> Path:
    path = folder / "a" / "b" / "philly.csv"
    path.parent.mkdir(parents=True)
    rows = [
        "2017-10-09 07:01:55,60.0,1,60.0,x",
        "2017-10-09 07:00:55,120.0,2,240.0,y",
        "2017-10-10 07:00:55,1.0,1,1.0,z",
    ]
    path.write_text("\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *rows]))
    return path


def test_without_sizes_of_virtual_clusters_tenants_are_equal(tmp_path: Path) -> None:
    trace = philly.read(_philly(tmp_path))
    assert [(job.arrival_s, job.tenant) for job in trace.jobs] == [(0.0, "y"), (60.0, "x"), (86_400.0, "z")]
    assert [tenant.weight for tenant in trace.tenants] == [1.0, 1.0, 1.0]


def test_whoever_is_not_listed_weighs_as_much_as_the_mean_of_the_others(tmp_path: Path) -> None:
    path = _philly(tmp_path)
    (tmp_path / "helios").mkdir()
    (tmp_path / "helios" / "philly_vc.csv").write_text("vc,node num\nx,10\ny,30\n")
    assert [tenant.weight for tenant in philly.read(path).tenants] == [10.0, 30.0, 20.0]


def test_philly_runs_under_a_policy_with_its_tenants_in_sight(tmp_path: Path) -> None:
    trace = philly.read(_philly(tmp_path))
    outcome = simulate(trace, trace.nodes, Tiresias(), Settings())
    assert {job.tenant for job in outcome.jobs} == {"x", "y", "z"}
    assert [job.finished_s for job in outcome.jobs] == [120.0, 360.0, 86_401.0]
