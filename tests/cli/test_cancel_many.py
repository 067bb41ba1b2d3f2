"""Cancelling many jobs from the command line: says how many, asks in a terminal, and ends with a code for scripts."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from tests.waiting import until

from .conftest import Platform, Terminal


def submit(team: Terminal, name: str, *more: str) -> str:
    return str(team("run", "--name", name, "--label", "sweep=a", *more, "--json", "--", "sleep", "86400").data["id"])


def state(team: Terminal, job: str) -> str:
    return str(team("why", job, "--json").data["job"]["state"])


def test_all_that_fit_are_cancelled_at_once_and_counted(platform: Platform) -> None:
    ours = [submit(platform.vision, f"swept-{number}") for number in range(3)]
    others = submit(platform.text, "swept-0")
    try:
        rehearsed = platform.vision("cancel", "--name", "swept-*", "--dry-run")
        assert "3 jobs would be cancelled" in rehearsed.out
        states = "queued,starting,running"
        done = platform.vision("cancel", "--name", "swept-*", "--label", "sweep=a", "--state", states)
        assert done.out.startswith("cancelled 3 jobs\n") and all(job in done.out for job in ours)
        until(lambda: {state(platform.vision, job) for job in ours} == {"cancelled"})
        assert state(platform.text, others) != "cancelled"
        assert platform.vision("cancel", "--label", "sweep=a").out == "no unfinished job matches\n"
        told = platform.admin("cancel", "--tenant", "text", "--label", "sweep=a", "--json").data
        assert (told["cancelled"], told["jobs"], told["more"]) == (1, [others], False)
    finally:
        for team in (platform.vision, platform.text):
            team("cancel", "--label", "sweep=a")


@pytest.mark.parametrize(("line", "said"), [
    ("cancel", "no job named"), ("cancel some-job --all", "or options that select many, not both"),
    ("cancel some-job --state queued", "not both"), ("cancel --label nonsense", "is not of the form name=value"),
    ("cancel --state ended", "is not a state in which a job can be cancelled"), ("cancel --dry-run", "no job named"),
])  # fmt: skip
def test_what_says_nothing_or_too_much_is_a_mistake(platform: Platform, line: str, said: str) -> None:
    done = platform.vision(*line.split(), code=2)
    assert said in done.err and "fix: " in done.err


def test_in_a_terminal_it_asks_first(platform: Platform) -> None:
    job = submit(platform.vision, "asked-for")
    try:
        assert "cancel 1 job?" in answered(platform.vision, "n", "cancel", "--name", "asked-*")
        assert state(platform.vision, job) != "cancelled"
        answered(platform.vision, "y", "cancel", "--name", "asked-*")
        until(lambda: state(platform.vision, job) == "cancelled")
    finally:
        platform.vision("cancel", "--label", "sweep=a")


def answered(team: Terminal, word: str, *words: str) -> str:
    """What a person in a terminal sees who answers so."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "fairlead.cli.main", *words], stdin=theirs, stdout=theirs, stderr=theirs,
        env=team.variables() | {"TERM": "dumb"}, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    os.write(ours, f"{word}\n".encode())
    seen = b""
    try:
        while piece := os.read(ours, 4096):
            seen += piece
    except OSError:  # the other end is closed
        pass
    finally:
        os.close(ours)
    process.wait(60)
    return seen.decode()
