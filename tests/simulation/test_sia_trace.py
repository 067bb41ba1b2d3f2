"""Sia's jobs behave as its study measured them: on each type of GPU at its own speed, never on two types at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.errors import NotFound
from fairlead.scheduling.curves import FAR, NEAR
from fairlead.simulation.engine import Settings
from fairlead.simulation.runs import run
from fairlead.simulation.trace_formats import sia
from fairlead.simulation.trace_reader import detect, read_trace
from tests.simulation.builders import TRACES, needs_traces, profile, step_s


def workload(folder: Path, *rows: str, application: str = "app") -> Path:
    """A workload beside profiles of one made-up application: steps on dgx-ext take half as long as on aws."""
    made = profile(folder / "profiles" / application)
    for kind, faster in (("aws", 1.0), ("dgx-ext", 2.0)):
        for name in ("placements", "scalability"):
            head, *lines = (made / f"{name}.csv").read_text().splitlines()
            cells = [line.split(",") for line in lines]
            at = head.split(",").index("step_time")
            text = [",".join([*row[:at], str(float(row[at]) / faster), *row[at + 1 :]]) for row in cells]
            more = (
                ["8,8,0.035,0.01", "8,16,0.043,0.01", "8,32,0.059,0.01"] if name == "placements" and faster > 1 else []
            )
            (made / f"{name}-{kind}.csv").write_text("\n".join([head, *text, *more]))
    for name in ("placements", "scalability"):
        (made / f"{name}.csv").unlink()
    (folder / "workloads").mkdir()
    path = folder / "workloads" / "w.csv"
    path.write_text("\n".join(["name,time,application,num_replicas,batch_size", *rows]))
    return path


def test_a_job_runs_on_each_type_at_its_own_speed_times_what_the_real_cluster_was_slower(tmp_path: Path) -> None:
    (job,) = sia.read(workload(tmp_path, "a,60,app,4,64")).jobs
    assert job.asked_model is not None
    curve = job.asked_model.curve(0.0)
    gain = (4.0 + 1.0) / (4.0 / 4.0 + 1.0)
    assert curve.speed("aws", 4, NEAR) == pytest.approx(gain / step_s(1, 4, 16) / 1.2)
    assert curve.speed("dgx-ext", 4, NEAR) == pytest.approx(2 * gain / step_s(1, 4, 16) / 1.2)
    assert job.asked_model.rate(0.0, "dgx-ext", (4,)) == curve.speed("dgx-ext", 4, NEAR)
    assert job.asked_model.rate(0.0, "v100", (4,)) == 0.0
    assert job.exclusive_s == pytest.approx(
        sum(100.0 / job.asked_model.rate(at, "dgx-ext", (4,)) for at in (0, 100, 200))
    )


def test_a_node_of_eight_is_one_node_where_nodes_have_eight(tmp_path: Path) -> None:
    (job,) = sia.read(workload(tmp_path, "a,60,app,8,128")).jobs
    assert job.asked_model is not None
    curve = job.asked_model.curve(0.0)
    assert curve.speed("aws", 8, NEAR) == 0.0 < curve.speed("aws", 8, FAR)
    assert curve.speed("dgx-ext", 8, NEAR) == pytest.approx(job.asked_model.rate(0.0, "dgx-ext", (8,)))
    assert curve.speed("dgx-ext", 8, NEAR) > curve.speed("dgx-ext", 8, FAR) > 0.0


@pytest.mark.parametrize(("application", "restart_s", "widest"), [("ncf", 15.0, 1), ("imagenet", 250.0, 32)])
def test_applications_differ_in_what_a_change_costs_and_how_wide_they_get(
    tmp_path: Path, application: str, restart_s: float, widest: int
) -> None:
    (job,) = sia.read(workload(tmp_path, f"n,0,{application},1,16", application=application)).jobs
    assert (job.restart_cost_s, job.max_workers) == (restart_s, widest)


def test_its_workloads_are_told_from_those_of_pollux_by_where_the_profiles_lie(tmp_path: Path) -> None:
    path = workload(tmp_path / "sia", "a,0,app,1,16")
    assert detect(path) == "sia"
    lonely = tmp_path / "elsewhere.csv"
    lonely.write_text(path.read_text())
    assert detect(lonely) == "pollux"
    read = read_trace(lonely, "sia", tmp_path / "sia" / "profiles")
    assert read.jobs[0].model.curve(0.0).speeds.keys() == {"aws", "dgx-ext"}


def test_a_missing_profile_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = workload(tmp_path, "a,0,other,1,16")
    with pytest.raises(NotFound, match="no profile of other") as caught:
        sia.read(path)
    assert "placements-aws.csv" in (caught.value.fix or "")


@needs_traces
def test_philly_1_is_done_sooner_than_under_the_published_schedulers() -> None:
    """Sia: 0.542 h on average, makespan 15.53 h; Gavel: 1.671 h."""
    trace = read_trace(TRACES / "sia/workloads/philly-1.csv")
    assert {node.device_type: 0 for node in trace.nodes}.keys() == {"aws", "dgx-ext", "rtx"}
    figures = run(trace, "fairlead", settings=Settings(declared=False)).figures()
    assert figures["jobs"] == 160
    assert figures["avg_jct_s"] <= 0.50 * 3600
    assert figures["makespan_s"] <= 15.53 * 3600
