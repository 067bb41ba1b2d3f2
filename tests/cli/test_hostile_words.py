"""Promises about words of strangers: whatever servers or tenants name things, no command lets it steer a terminal."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from fairlead.cli import output
from fairlead.cli.errors import execute
from fairlead.cli.main import app
from fairlead.cli.shell_completion import ASK, answer
from fairlead.cli.text_tables import Cell, Column, draw
from fairlead.sdk import transport
from fairlead.terminal import plain
from tests.cli.hostile_server import HOSTILE, NOW_S, ROUTES, STREAMS, Mood, all_views, hostile_server

STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")
COMMANDS = [
    "queue", "queue --all --tenant t", "logs j", "logs j -f", "logs j --worker w0", "why j", "cancel j", "result j",
    "metrics j", "metrics j --tail 1", "lineage j", "rerun j", "rerun j --watch", "run -- true", "run --watch -- true",
    "run --dry-run -- true", "submit {job}", "data load {file} --name d", "data load {file} --name d --watch",
    "data sync d --from {file}", "data list", "data show d", "data drop d", "pipeline run {pipeline}",
    "pipeline run {pipeline} --watch", "pipeline show p", "pipeline list", "pipeline cancel p", "nodes",
    "nodes drain n", "nodes cordon n", "nodes uncordon n", "tenant create t", "tenant show t", "tenant list",
    "tenant update t --weight 2", "tenant update t --grant /x", "tenants", "token create", "token list",
    "token list --all", "token revoke i", "secret set NAME --from-file {file}", "secret list", "secret remove NAME",
    "events", "events -f", "report", "usage", "usage --by user,job", "usage --csv", "audit", "audit --csv", "what-if",
    "whoami", "down", "cancel --all --yes", "cancel --state queued --yes",
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, Mood]]:
    with hostile_server() as (url, mood):
        yield url, mood


@pytest.fixture
def mood(server: tuple[str, Mood], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mood:
    url, mood = server
    fresh = Mood()
    for name in vars(fresh):
        setattr(mood, name, getattr(fresh, name))
    monkeypatch.setenv("FAIRLEAD_URL", url)
    monkeypatch.setenv("FAIRLEAD_TOKEN", "fl_a_b")
    monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "3000")
    monkeypatch.setattr(transport, "PAUSES_S", (0.0,))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    (tmp_path / "job.yaml").write_text('name: j\ncommand: ["true"]\n')
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    (tmp_path / "pipeline.yaml").write_text('name: p\nstages:\n  a:\n    command: ["true"]\n')
    return mood


def words(command: str, folder: Path) -> list[str]:
    files = {"job": folder / "job.yaml", "file": folder / "table.csv", "pipeline": folder / "pipeline.yaml"}
    return [word.format(**files) for word in command.split()]


def said(command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> str:
    """Everything that the command writes, of which no byte steers and no line is forged."""
    capfd.readouterr()
    execute(app, words(command, tmp_path))
    out, err = capfd.readouterr()
    for text in (out, err):
        assert STEERS.search(text) is None, (command, text)
        assert not any(line.startswith("FORGED") for line in text.splitlines()), (command, text)
    return out + err


def test_the_server_of_these_tests_answers_with_every_view() -> None:
    given = [answer for _, _, answer in ROUTES] + [[kind] for _, kind, _ in STREAMS]
    direct = {kind for one in given if one is not None for kind in (one if isinstance(one, list) else [one])}
    open_, reached = list(direct), set(direct)
    while open_:
        kind = open_.pop()
        inner = {part for field in kind.model_fields.values() for part in _parts(field.annotation)} - reached
        reached |= inner
        open_ += inner
    unasked = {"SharesView", "ShareLine"}  # for the page only: no command asks for it
    assert {kind.__name__ for kind in all_views()} - {kind.__name__ for kind in reached} <= unasked | {"JobView"}


def _parts(kind: Any) -> set[Any]:
    inner = [part for of in getattr(kind, "__args__", ()) for part in _parts(of)]
    return {*inner, *([kind] if kind in all_views() else [])}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_string_of_any_view_steers_the_terminal(
    command: str, mood: Mood, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mood.state = "failed"
    text = said(command, tmp_path, capfd)
    assert "unexpected error" not in text or command == "what-if"  # a state as of no scheduler
    if "--watch" not in command and "-f" not in command.split():
        mood.state = HOSTILE
        said(command, tmp_path, capfd)
    said(f"{command} --json" if "run" not in command.split()[:1] else command, tmp_path, capfd)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_error_of_a_server_steers_the_terminal(
    command: str, mood: Mood, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for mood.error in (404, 418):
        assert "owned" in said(command, tmp_path, capfd)


@pytest.mark.parametrize("raw", [
    json.dumps(HOSTILE).encode(), json.dumps([HOSTILE]).encode(), json.dumps({HOSTILE: HOSTILE}).encode(),
    HOSTILE.encode(), b"\x1b]0;owned\x07\xff\xfe", b"",
])  # fmt: skip
def test_an_answer_of_any_other_shape_steers_nothing(
    raw: bytes, mood: Mood, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mood.raw = raw
    for command in ("queue", "why j", "nodes", "logs j", "pipeline show p", "metrics j"):
        said(command, tmp_path, capfd)
    monkeypatch.setenv("FAIRLEAD_DEBUG", "1")
    said("why j", tmp_path, capfd)


def test_the_trace_of_an_unexpected_error_steers_nobody_who_reads_it(
    mood: Mood, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home" / "logs").mkdir(parents=True)
    mood.raw = json.dumps({HOSTILE: HOSTILE}).encode()
    said("metrics j", tmp_path, capfd)
    assert STEERS.search((tmp_path / "home" / "logs" / "cli.log").read_text()) is None


def test_titles_and_values_of_a_file_that_is_described_steer_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], mood: Mood
) -> None:
    title, value = "a\x1b]0;owned\x07\u202e", "b\x1b[2J\x9b31m\u2066"
    (tmp_path / "table.csv").write_text(f"{title},x\n{value},1\n{value},2\n", encoding="utf-8")
    assert "2 rows" in said("data describe {file}", tmp_path, capfd)
    (tmp_path / "table.csv").write_text(f'{title},x\n{value}\n"{title}', encoding="utf-8")
    said("data describe {file}", tmp_path, capfd)


def test_a_job_that_is_watched_in_a_terminal_steers_nothing(mood: Mood, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(highlight=False, markup=False, width=200, force_terminal=True, file=io.StringIO())
    monkeypatch.setattr(output, "console", lambda: screen)
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    execute(app, ["run", "--watch", "--", "true"])
    assert isinstance(screen.file, io.StringIO)
    drawn = screen.file.getvalue()
    assert "owned" in drawn
    for steering in ("\x1b]", "\x1b[2J", "\x9b", "\x07", "\u202e", "\nFORGED"):
        assert steering not in drawn


def test_a_name_on_the_screen_is_text_and_no_markup(mood: Mood, monkeypatch: pytest.MonkeyPatch) -> None:
    from fairlead.cli.watch import watch
    from fairlead.sdk.client import Client
    from fairlead.sdk.jobs import Job
    from fairlead.views.jobs import JobView

    screen = Console(highlight=False, markup=False, width=200, force_terminal=True, file=io.StringIO())
    monkeypatch.setattr(output, "console", lambda: screen)
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    name = "[link=http://evil]a[/link]"
    view = JobView(id="a-1", name=name, tenant="t", state="failed", submitted_s=1.0, submitted_by="x")
    watch(Job(Client(), view))
    assert isinstance(screen.file, io.StringIO)
    assert name[:20] in screen.file.getvalue()


def test_the_colours_of_a_terminal_are_ours_alone(
    mood: Mood, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    for command in ("queue", "nodes", "pipeline show p", "metrics j", "submit {job}", "tenants", "usage --by user"):
        capfd.readouterr()
        execute(app, words(command, tmp_path))
        out, err = capfd.readouterr()
        assert "\x1b[" in out
        assert STEERS.search(re.sub(r"\x1b\[[0-9;]*m", "", out + err)) is None


def test_a_tab_offers_no_name_that_the_shell_would_read_as_more_than_a_word(
    mood: Mood, capfd: pytest.CaptureFixture[str]
) -> None:
    for before in (["why"], ["nodes", "drain"], ["tenant", "show"], ["token", "revoke"]):
        answer(app, [*before, ""])
    out, err = capfd.readouterr()
    assert out + err == "", ASK


def test_a_column_s_title_and_a_cell_steer_nothing_however_they_are_drawn() -> None:
    lines = draw([Column(HOSTILE), Column("B")], [[Cell(HOSTILE), Cell("a\tb")]], 500, colours=False)
    assert len(lines) == 2
    assert not any(STEERS.search(line) or "\t" in line for line in lines)


def test_a_sequence_that_begins_in_one_name_takes_nothing_of_ours_along() -> None:
    assert plain("job \x1b]0; failed: \x07 done") == "job ]0; failed:  done"


def test_a_forged_moment_is_shown_as_none() -> None:
    for value in (1e308, -1e308, float("inf"), float("nan")):
        assert output.when(value) == output.duration(value) == "–"
        assert output.percent(value) == "–"
        assert len(output.number(value)) < 20
        assert len(output.size(value)) < 20
        assert output.ahead(value) == "unknown"
    assert output.when(NOW_S) != "–"


def test_words_of_strangers_in_a_reason_phrase_steer_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    response = httpx.Response(500, request=httpx.Request("GET", "http://h/"), content=HOSTILE.encode(),
                              extensions={"reason_phrase": b"\x1b]0;owned\x07"})  # fmt: skip
    output.note(str(transport.problem(response)))
    assert STEERS.search(capfd.readouterr().err) is None
