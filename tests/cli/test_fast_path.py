"""The short way to a verb means what the long way means, or is not taken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from fairlead.cli.fast_path import shortcut
from fairlead.cli.local_status import JobRow, jobs
from fairlead.cli.main import app
from fairlead.errors import Unavailable
from fairlead.views.jobs import JobView


def _probe() -> tuple[typer.Typer, list[dict[str, Any]]]:
    """A verb with everything that verbs have, and what it was called with."""
    probe, calls = typer.Typer(), list[dict[str, Any]]()

    @probe.callback()
    def top() -> None:
        """So that the verb is one among several."""

    @probe.command("verb")
    def verb(
        word: Annotated[str, typer.Argument()],
        switch: Annotated[bool, typer.Option("--switch", "-s")] = False,
        number: Annotated[int | None, typer.Option("--number", "-n", min=1, max=99)] = None,
        text: Annotated[str, typer.Option("--text")] = "usual",
        many: Annotated[list[str] | None, typer.Option("--many")] = None,
        place: Annotated[Path | None, typer.Option("--place")] = None,
        part: Annotated[float, typer.Option("--part")] = 0.5,
    ) -> None:
        calls.append(locals() | {"calls": None})

    return probe, calls


SIMPLE = [
    "verb a", "verb a -s", "verb -s a", "verb a --switch -n 7", "verb a --number 99 --text x", "verb --text b a -n 1",
    "verb größer", "verb a --text =", "verb a -n 007",
]  # fmt: skip
NOT_SIMPLE = [
    "", "verb", "verb a b", "verb --help", "verb a --no-such", "verb a -n", "verb a -n x", "verb a -n 0",
    "verb a -n 100", "verb a -n -5", "verb a --text", "verb a --text -s", "verb a -s -s", "verb a --text=x",
    "verb a --many x", "verb -- a", "verb a --place .", "verb a --part 1", "other a", "verb a -n \uff17", "--version",
]  # fmt: skip


@pytest.mark.parametrize("line", SIMPLE)
def test_a_simple_line_means_the_same_on_both_ways(line: str) -> None:
    probe, calls = _probe()
    call = shortcut(probe, line.split(" "))
    assert call is not None
    call()
    typer.main.get_command(probe).main(line.split(" "), standalone_mode=False)
    assert calls[0] == calls[1]


@pytest.mark.parametrize("line", NOT_SIMPLE)
def test_whatever_is_not_simple_takes_the_usual_way(line: str) -> None:
    assert shortcut(_probe()[0], line.split(" ") if line else []) is None


DAILY = ["queue", "queue -a --json", "tenants", "events -n 5", "why some-job", "usage --by user"]


@pytest.mark.parametrize("line", DAILY)
def test_the_daily_verbs_take_the_short_way(line: str) -> None:
    assert shortcut(app, line.split()) is not None


@pytest.mark.parametrize("line", ["nodes", "tenant list", "run -- true", "logs", "queue --help", "submit"])
def test_groups_help_and_mistakes_do_not(line: str) -> None:
    assert shortcut(app, line.split()) is None


def test_what_the_queue_shows_is_what_a_job_has() -> None:
    assert set(JobRow.__slots__) <= set(JobView.model_fields)


def test_a_platform_that_does_not_answer_is_left_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("http://127.0.0.1:1", "https://127.0.0.1:1", "http://example.org:1", "nonsense"):
        monkeypatch.setenv("FAIRLEAD_URL", url)
        monkeypatch.setenv("FAIRLEAD_TOKEN", "fl_a_b")
        assert jobs({"limit": 1}) is None


def test_where_no_platform_was_started_it_says_so_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FAIRLEAD_URL", raising=False)
    monkeypatch.delenv("FAIRLEAD_TOKEN", raising=False)
    monkeypatch.setenv("FAIRLEAD_HOME", str(tmp_path))
    with pytest.raises(Unavailable, match="no platform was started"):
        jobs({"limit": 1})


def test_neither_help_nor_the_queue_load_what_is_heavy(tmp_path: Path) -> None:
    heavy = ("pydantic", "httpx", "rich.console", "msgspec", "sqlalchemy", "torch")
    script = (
        "import sys; from fairlead.cli.errors import execute; from fairlead.cli.main import app; "
        f"execute(app, sys.argv[1:]); print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    for words in (["--help"], ["queue"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60,
            env={"FAIRLEAD_HOME": str(tmp_path), "PATH": ""},
        )  # fmt: skip
        assert done.stderr.splitlines()[-1] == "[]", words


def test_ending_a_platform_loads_no_part_of_its_store() -> None:
    heavy = ("sqlalchemy", "fastapi", "torch")
    script = f"import sys, fairlead.agent.embedded.leftovers; print([n for n in {heavy!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
