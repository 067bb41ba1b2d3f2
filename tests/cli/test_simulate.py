"""``fairlead simulate``: one JSON object that scripts can rely on, a table for people, plots, and mistakes told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.cli.errors import execute
from fairlead.cli.main import app

FIGURES = {
    "makespan_s", "avg_jct_s", "p50_jct_s", "p99_jct_s", "worst_rho", "unfair_fraction", "utilisation", "deadlines_met",
    "jain", "restarts_per_job", "energy_kwh", "decide_cpu_s_mean", "decide_cpu_s_p99", "jobs",
}  # fmt: skip
JOBS = """id,arrival_s,duration_s,devices,tenant,deadline_s
a,0,600,4,red,700
b,10,300,4,blue,
c,20,60,2,blue,100
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return path


def simulate(*words: object) -> int:
    return execute(app, ["simulate", *map(str, words)])


def test_json_has_the_promised_figures_of_every_policy(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(trace, "--cluster", "2x4xt4", "--policy", "fifo,srtf", "--restart-cost", 0, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    assert list(figures) == ["fifo", "srtf"]
    assert all(set(values) == FIGURES for values in figures.values())
    assert figures["fifo"]["jobs"] == 3
    assert figures["fifo"]["makespan_s"] == pytest.approx(600.0)
    assert figures["fifo"]["deadlines_met"] == 0.5


def test_people_see_a_table(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(trace, "--cluster", "4xt4", "--policy", "fifo,las") == 0
    said = capsys.readouterr().out
    assert "jobs.csv: 3 jobs (csv) on 4 devices" in said
    assert "POLICY" in said
    assert "las" in said


def test_more_devices_help(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate(trace, "--cluster", "4xt4", "--policy", "fifo", "--json") == 0
    before = json.loads(capsys.readouterr().out)["fifo"]
    assert simulate(trace, "--cluster", "4xt4", "--what-if", "add:8xt4", "--policy", "fifo", "--json") == 0
    assert json.loads(capsys.readouterr().out)["fifo"]["avg_jct_s"] < before["avg_jct_s"]


def test_the_same_seed_gives_the_same_figures(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def figures(seed: int) -> dict[str, float]:
        words = ("--cluster", "3x4xt4", "--policy", "fifo", "--failures", 0.1, "--seed", seed, "--json")
        assert simulate(trace, *words) == 0
        found: dict[str, float] = json.loads(capsys.readouterr().out)["fifo"]
        return {name: value for name, value in found.items() if "cpu" not in name}

    assert figures(1) == figures(1)


def test_plots_and_figures_are_written(trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report"
    assert simulate(trace, "--cluster", "8xt4", "--policy", "fifo", "--out", out) == 0
    names = {"jct-cdf.png", "utilisation.png", "shares-fifo.png", "gantt-fifo.png", "figures.json"}
    assert {path.name for path in out.iterdir()} == names
    assert set(json.loads((out / "figures.json").read_text())["fifo"]) == FIGURES


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cluster", "8xt4", "--policy", "magic"], "--policy: there is no policy 'magic'"),
        (["--cluster", "lots"], "--cluster: 'lots' is not a cluster"),
        (["--policy", "fifo"], "--cluster: "),
        (["--cluster", "8xt4", "--knowledge", "all"], "--knowledge: "),
        (["--cluster", "8xt4", "--round", "0"], "--round: 0 is not more than 0"),
        (["--cluster", "8xt4", "--what-if", "remove:1"], "--what-if: "),
        (["--cluster", "8xt4", "--tenants", "none.csv"], "--tenants: file none.csv does not exist"),
        (["--cluster", "8xt4", "--tenants", "nosuch"], "--tenants: there is no column nosuch"),
        (["--cluster", "8xt4", "--format", "gavel", "--policy", "fifo"], "jobs.csv"),
        (["--cluster", "2xt4", "--policy", "fifo"], "job a needs 4 devices"),
    ],
)
def test_mistakes_are_told_in_words(
    trace: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert simulate(trace, *words) not in (0, 1)
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told


@pytest.mark.parametrize("form", ["csv", "sacct"])
def test_jobs_of_which_no_types_are_known_run_on_whatever_the_cluster_has(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Alone on the cluster they take just as long as they are said to."""
    path = tmp_path / "jobs"
    path.write_text({
        "csv": "arrival_s,duration_s,devices\n0,100,1\n0,100,2\n",
        "sacct": "JobID|User|Account|Submit|ElapsedRaw|AllocTRES|State\n1|u|a|2026-01-01T00:00:00|100|gres/gpu=1|X\n"
                 "2|u|a|2026-01-01T00:00:00|100|gres/gpu=2|X\n",
    }[form])  # fmt: skip
    for policy in ("fairlead", "fifo", "sia"):
        assert simulate(path, "--format", form, "--cluster", "2x4xa6000", "--policy", policy, "--json") == 0
        figures = json.loads(capsys.readouterr().out)[policy]
        assert (figures["jobs"], figures["unfair_fraction"], figures["worst_rho"]) == (2, 0.0, pytest.approx(1.0))


def test_nodes_may_sleep_and_neighbours_may_disturb(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace.write_text("id,arrival_s,duration_s,devices,class\na,0,20000,2,loud\nb,0,20000,2,calm\n")
    words = (trace, "--cluster", "4x4xv100", "--policy", "fairlead", "--json")
    assert simulate(*words) == 0
    before = json.loads(capsys.readouterr().out)["fairlead"]
    assert simulate(*words, "--sleep-after", 600) == 0
    assert json.loads(capsys.readouterr().out)["fairlead"]["energy_kwh"] < before["energy_kwh"]
    table = tmp_path / "table.csv"
    table.write_text("class,beside,slowdown\ncalm,loud,0.5\n")
    assert simulate(trace, "--cluster", "1x4xv100", "--policy", "fairlead", "--json", "--colocation", table) == 0
    slowed = json.loads(capsys.readouterr().out)["fairlead"]
    assert slowed["makespan_s"] > before["makespan_s"] + 9_000
    assert simulate(*words, "--colocation", tmp_path / "none.csv") == 2
    assert "there is no file" in capsys.readouterr().err


@pytest.mark.parametrize("cost", ["-1", "nan", "inf"])
def test_a_restart_costs_no_odd_time(trace: Path, capsys: pytest.CaptureFixture[str], cost: str) -> None:
    assert simulate(trace, "--cluster", "4xt4", f"--restart-cost={cost}") == 2
    assert "--restart-cost" in capsys.readouterr().err


def test_a_folder_that_cannot_be_is_told_before_anything_runs(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (trace, trace / "below"):
        assert simulate(trace, "--cluster", "4xt4", "--policy", "fifo", "--out", place) == 2
        assert "--out" in capsys.readouterr().err


def test_what_had_no_part_in_it_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    jobs, owners = tmp_path / "philly.csv", tmp_path / "owners.csv"
    jobs.write_text("timestamp,duration,num_gpus,cluster\n2017-10-03 00:00:00,9,1,a\n2017-10-03 00:00:00,9,0,b\n")
    owners.write_text("name,weight\na,1\nb,1\n")
    assert simulate(jobs, "--policy", "fifo", "--tenants", owners) == 0
    said = capsys.readouterr().out
    assert "1 row was skipped" in said and "tenants without jobs in this trace: b" in said
