"""Promises about what a terminal shows: short, fitting, and never steered by what strangers wrote."""

from __future__ import annotations

import io
import json
import sys
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from fairlead.cli import output
from fairlead.cli.commands import metrics, report
from fairlead.cli.commands.metrics import _figure
from fairlead.cli.commands.why import _explain
from fairlead.cli.options import parse_sla, parse_value
from fairlead.cli.text_tables import FIXED_SPACE, Cell, Column, draw
from fairlead.cli.watch import exit_code, figures, watch
from fairlead.sdk.client import Client
from fairlead.sdk.jobs import Job
from fairlead.views.jobs import JobView, NodeView, ReasonView, Why
from fairlead.views.reports import JobReport, Report


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"), (-3, "0.0s"), (0.44, "0.4s"), (12.4, "12s"), (59.6, "1m00s"), (192, "3m12s"), (7500, "2h05m"),
        (273600, "3d4h"),
    ],
)  # fmt: skip
def test_a_duration_has_two_figures_at_the_most(seconds: float | None, text: str) -> None:
    assert output.duration(seconds) == text


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("plain", "plain"), ("\x1b[31mred\x1b[0m", "red"), ("\x1b]0;title\x07x", "x"), ("10%\r20%\r30%\r", "30%"),
        ("a\tb", "a\tb"), ("bell\x07", "bell"), ("\x1b", ""), ("\x9b31mx", "31mx"), ("größer → ✓", "größer → ✓"),
    ],
)  # fmt: skip
def test_text_of_strangers_cannot_steer_the_terminal(written: str, shown: str) -> None:
    assert output.clean(written) == shown


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.123456, "0.123"), (12345.6, "12,346"), (1e-7, "1e-07"), (999.0, "999"), (0.0, "0")],
)
def test_a_number_has_three_digits(value: float | None, text: str) -> None:
    assert output.number(value) == text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.1), ("1e-3", 0.001), ("3", 3), ("true", True), ("True", True), ("None", None), ("adam", "adam"),
        ('"3"', "3"), ("[1, 2]", [1, 2]), ("", ""), ("1:4", "1:4"),
    ],
)  # fmt: skip
def test_a_parameter_is_the_value_it_looks_like(text: str, value: object) -> None:
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_a_promise_is_a_class_a_deadline_or_none() -> None:
    assert parse_sla("gold") == {"class": "gold"}
    assert parse_sla("30m") == {"deadline": "30m"}
    assert parse_sla("none") == {}
    assert parse_sla(None) is None


def test_json_is_one_line_that_every_reader_takes(capsys: pytest.CaptureFixture[str]) -> None:
    node = NodeView(
        name="n", state="ready", device_type="cpu", devices=1, devices_used=0, cpu=1.0, memory_bytes=1,
        speed=float("inf"),
    )  # fmt: skip
    output.print_json({"nodes": [node]})
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert json.loads(line)["nodes"][0]["speed"] is None


def view(state: str, **fields: object) -> JobView:
    base = {"id": "a-1", "name": "a", "tenant": "t", "state": state, "submitted_s": 1.0, "submitted_by": "x"}
    return JobView.model_validate(base | fields)


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 100), ("cancelled", 103), ("running", 101)])
def test_a_watched_job_ends_with_its_exit_code(state: str, code: int) -> None:
    assert exit_code(view(state)) == code


def test_a_glance_shows_why_it_waits_and_how_it_runs() -> None:
    waiting = view("queued", reason=ReasonView(code="x", text="waits for room"))
    assert figures(waiting) == "waits for room"
    running = view("running", loss=0.25, samples_per_s=1234.0, workers=2)
    assert figures(running) == "loss 0.25  1,234 samples/s  2 workers"
    assert figures(view("succeeded", loss=0.25)) == "loss 0.25"


class Interrupted(Job):
    """A job that somebody watches for a moment only."""

    def wait(self, timeout: float | None = None) -> Job:
        raise KeyboardInterrupt


def test_watching_with_json_ends_in_json_also_when_interrupted(capsys: pytest.CaptureFixture[str]) -> None:
    assert watch(Interrupted(Client("http://127.0.0.1:1", "fl_a_b"), view("running")), as_json=True) == 101
    assert json.loads(capsys.readouterr().out)["state"] == "running"


@pytest.mark.parametrize("name", ["a", "a-name-of-forty-letters-which-is-the-most"])
def test_a_long_reason_gives_way_to_name_and_state_in_80_columns(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(highlight=False, markup=False, width=80, force_terminal=True, file=io.StringIO())
    monkeypatch.setattr(output, "console", lambda: screen)
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    waiting = view("queued", name=name, reason=ReasonView(code="x", text="y" * 99))
    job = Job(Client("http://127.0.0.1:1", "fl_a_b"), waiting)

    def ends() -> Job:
        job.view = view("succeeded", name=name)
        return job

    monkeypatch.setattr(job, "refresh", ends)
    assert watch(job) == 0
    assert isinstance(screen.file, io.StringIO)
    drawn = screen.file.getvalue()
    assert name[:19] in drawn
    assert "queued" in drawn


def test_a_piped_table_has_no_padding_at_the_ends_of_its_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    output.table([Column("A"), Column("B")], [["x", "long"], ["y", ""]], empty="")
    assert capsys.readouterr().out == "A  B\nx  long\ny\n"


def test_the_report_keeps_names_whole_in_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    line = JobReport(
        job="digits-anvumj", tenant="vision", state="succeeded", wait_s=4.2, jct_s=39.0, samples_per_s=14300.0,
        recoveries=1, recovery_s=0.2, metrics={"loss": 0.000428, "eval_loss": 0.117, "accuracy": 0.972},
    )  # fmt: skip
    report._jobs(Report(since_s=0.0, until_s=1.0, jobs=[line]))
    text = capsys.readouterr().out
    assert all(word in text for word in ("digits-anvumj", "vision", "succeeded", "39s", "1 in 0.2s", "0.972"))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for pair in ("loss 0.000428", "eval_loss 0.117", "accuracy 0.972"):  # a name and its figure stay together
        assert pair in text


def test_the_moment_of_a_step_is_a_time_and_not_a_count_of_seconds() -> None:
    now_s = time.time()
    assert _figure("time_s", now_s).startswith(time.strftime("%H:%M:%S.", time.localtime(now_s)))
    assert _figure("loss", 0.123456789) == "0.12346"
    assert _figure("accuracy", None) == "–"


def test_why_says_a_failure_once(capsys: pytest.CaptureFixture[str]) -> None:
    said = "w0: KeyError: 'missing' (train.py:20)"
    _explain(Why(job=view("failed", message=said), reason=ReasonView(code="failed", text=said)))
    assert capsys.readouterr().out.count(said) == 1


def test_why_tells_a_forecast_only_where_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    waits = Why(job=view("queued"), reason=ReasonView(code="no-room", text="needs 2 devices, 0 free"))
    _explain(waits)
    assert "ends:" not in capsys.readouterr().out
    _explain(waits.model_copy(update={"expected_finish_s": 2e9}))
    assert "ends:" in capsys.readouterr().out
    _explain(waits.model_copy(update={"unforeseen": "looking ahead took too long\x1b[2J"}))
    assert "no forecast: looking ahead took too long\n" in capsys.readouterr().out


def drawn(columns: list[Column], *rows: list[str], width: int = 80, colours: bool = False) -> list[str]:
    return draw(columns, [[Cell(text, "32") for text in row] for row in rows], width, colours=colours)


def test_a_table_that_fits_is_as_wide_as_its_words() -> None:
    assert drawn([Column("A"), Column("NUMBER", right=True)], ["x", "7"], ["long", "12"]) == [
        "A     NUMBER", "x          7", "long      12",
    ]  # fmt: skip


def test_the_widest_column_gives_way_first_and_says_so() -> None:
    lines = drawn([Column("ID"), Column("TARGET")], ["12345678", "x" * 50], width=30)
    assert lines == ["ID        TARGET", f"12345678  {'x' * 19}…"]


def test_a_column_that_grows_goes_on_in_the_next_line_before_others_give_way() -> None:
    pair = f"and{FIXED_SPACE}so"
    lines = drawn([Column("ID"), Column("WHY", grows=True)], ["12345678", f"one two three four {pair} on"], width=30)
    assert lines == ["ID        WHY", "12345678  one two three four", "          and so on"]


def test_a_name_that_is_told_twice_gives_way_to_the_id() -> None:
    name, id_ = "resnet50-cifar10-seed3", "resnet50-cifar10-seed3-k3wvhs"
    columns = [Column("NAME", spare=True), Column("ID", ends=6)]
    assert drawn(columns, [name, id_], width=40)[1] == f"resnet50…  {id_}"


def test_an_id_that_does_not_fit_is_cut_before_what_makes_it_one() -> None:
    assert drawn([Column("ID", ends=6)], ["resnet50-cifar10-seed3-k3wvhs"], width=16)[1] == "resnet50-…k3wvhs"
    assert drawn([Column("ID", ends=6)], ["resnet50-cifar10-seed3-k3wvhs"], width=6)[1] == "resne…"


def test_wide_letters_count_twice_and_marks_not_at_all() -> None:
    assert drawn([Column("A"), Column("B")], ["日本", "x"], ["e\u0301", "y"]) == ["A     B", "日本  x", "e\u0301     y"]


def test_colours_are_for_terminals_and_take_no_room() -> None:
    lines = drawn([Column("A"), Column("B")], ["x", ""], colours=True)
    assert lines == ["\x1b[1mA\x1b[0m  \x1b[1mB\x1b[0m", "\x1b[32mx\x1b[0m"]


def test_a_table_of_many_columns_in_a_narrow_terminal_still_ends() -> None:
    lines = drawn([Column(f"C{n}") for n in range(20)], ["word"] * 20, width=20)
    assert len(lines) == 2


def calls(columns: int) -> int:
    """How many functions are called to draw so many columns with long names."""
    counted = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        drawn([Column(f"{n:04d}{'x' * 496}", right=True) for n in range(columns)], ["1"] * columns)
    finally:
        sys.setprofile(None)
    return counted


def test_to_draw_twice_as_many_columns_takes_twice_the_work() -> None:
    assert calls(200) < 2.5 * calls(100)


def test_metrics_shows_as_many_as_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    step = {"step": 1.0, "loss": 0.5} | {f"m{n}": 0.1 for n in range(300)}
    told = SimpleNamespace(metrics=lambda job: [step] * 3)
    monkeypatch.setattr(metrics, "client", lambda: told)
    monkeypatch.setattr(output, "screen", lambda: SimpleNamespace(columns=80))
    metrics.metrics("x")
    titles, *_, note = capsys.readouterr().out.splitlines()
    assert titles.split()[:3] == ["step", "loss", "m0"] and len(titles) <= 80
    assert note == "the first 13 of 302 metrics (--json shows all)"


def test_a_cell_cannot_become_a_formula_in_a_spreadsheet(capsys: pytest.CaptureFixture[str]) -> None:
    output.csv(["label", "hours"], [["=HYPERLINK(1)", 1.5], ["@x", 0], ["plain, with comma", -1]])
    assert capsys.readouterr().out == "label,hours\n'=HYPERLINK(1),1.5\n'@x,0\n\"plain, with comma\",-1\n"
