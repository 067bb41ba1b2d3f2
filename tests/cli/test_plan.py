"""``fairlead plan``: one JSON object that scripts can rely on, a ranked table with reasons, and mistakes told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.cli.errors import execute
from fairlead.cli.main import app
from fairlead.cli.plan_measurement import busy, by_kind, parse_link
from fairlead.errors import InvalidSpec
from tests.profiling.test_node_profile import NODE

FIELDS = [
    "id", "data", "tensor", "pipeline", "microbatches", "schedule", "sync", "sharded", "workers_used", "step_s",
    "samples_per_s", "memory_bytes", "bottleneck", "reason", "measured_step_s",
]  # fmt: skip
RUN = "tests.profiling.programs:mlp"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a node that was measured already."""
    monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path))
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "node.json").write_text(json.dumps(NODE))
    return tmp_path


def test_a_plan_for_this_node_is_one_object_that_scripts_can_rely_on(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["plan", RUN, "--workers", "2", "--link", "200mbit", "--speeds", "2,1", "-p", "width=48", "--json"]
    assert execute(app, line) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"chosen", "candidates"}
    assert [list(row) for row in told["candidates"]] == [FIELDS] * len(told["candidates"])
    ids = [row["id"] for row in told["candidates"]]
    assert told["chosen"] == ids[0] == "single" and "ddp" in ids  # so small that nothing is worth sending
    assert all(row["measured_step_s"] is None and row["reason"] for row in told["candidates"])
    for row in told["candidates"]:
        assert row["data"] * row["tensor"] * row["pipeline"] == row["workers_used"] <= 2


def test_ddp_is_among_the_candidates_of_a_single_worker_too(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, ["plan", RUN, "--workers", "1", "--json"]) == 0
    rows = {row["id"]: row for row in json.loads(capsys.readouterr().out)["candidates"]}
    assert rows["ddp"]["step_s"] == rows["single"]["step_s"] and rows["ddp"]["workers_used"] == 1


def test_two_plans_of_a_kind_teach_what_lies_between_them() -> None:
    assert by_kind([("dp", 1.0, 2.0), ("tp", 5.0, 1.0), ("dp", 3.0, 2.0)]) == {"dp": (2.0, 2.0), "tp": (5.0, 1.0)}


def test_a_plan_for_hardware_that_one_does_not_own_is_a_table_with_reasons(
    home: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    spec = tmp_path / "two.yaml"
    spec.write_text("[{type: a100, nodes: 2, devices: 4}]")
    assert execute(app, ["plan", RUN, "--cluster", str(spec), "--workers", "3"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split() == ["PLAN", "WORKERS", "STEP", "TIME", "SAMPLES/S", "MEMORY", "BOTTLENECK"]
    assert "3 workers" in out and "ddp" in out and "times the time" in out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--link", "fast"], "--link"),
        (["--link", "infmbit"], "--link"),
        (["--link", "200mbit,"], "--link"),
        (["--speeds", "2,x"], "--speeds"),
        (["--speeds", "nan,1"], "--speeds"),
        (["--speeds", "inf,1"], "--speeds"),
        (["--workers", "2", "--speeds", "2,1,1"], "--speeds"),
        (["--cluster", "1x2xt4", "--speeds", "2,1,3"], "--speeds"),
        (["-p", "batch_size=100000"], "batch_size"),
        (["--cluster", "2x4xabacus"], "abacus"),
        (["--cluster", "1x2xt4", "--workers", "5"], "--workers"),
        (["--measure", "some"], "--measure"),
    ],
)
def test_what_cannot_be_meant_is_told_with_a_fix(
    home: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    assert execute(app, ["plan", RUN, *more]) == 2
    err = capsys.readouterr().err
    assert said in err and "fix: " in err and "Traceback" not in err


def test_what_was_measured_on_this_node_is_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, ["profile"]) == 0
    out = capsys.readouterr().out
    assert "a processor (virtual), 2 cores" in out and "50.0 GFLOP/s" in out and "100 µs" in out
    assert execute(app, ["profile", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == NODE


def test_links_are_written_as_networks_are() -> None:
    assert parse_link("200mbit").bytes_per_s == 25e6
    both = parse_link("1gbit,2ms")
    assert (both.latency_s, both.bytes_per_s) == (0.002, 125e6)
    for text in ("", "1gb", "mbit", "1gbit,soon", "-1mbit"):
        with pytest.raises(InvalidSpec):
            parse_link(text)


def test_candidates_are_run_and_what_is_learned_is_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(app, ["plan", RUN, "--workers", "2", "--measure", "1", "--steps", "3", "--json"]) == 0
    shown = capsys.readouterr()
    told = {row["id"]: row["measured_step_s"] for row in json.loads(shown.out)["candidates"]}
    ran = {name for name, step in told.items() if step is not None}
    assert ran == {next(iter(told)), "ddp"}, shown.out  # the best, and what it is compared with
    learned = [json.loads(file.read_text()) for file in (home / "profiles").glob("model-*.json")]
    assert [set(each) for each in learned] == [{"*", "single", "ddp"}] or "correct no predictions" in shown.err


def test_nothing_is_learned_from_a_busy_machine() -> None:
    assert busy(9.0, 2) and not busy(3.0, 2)
