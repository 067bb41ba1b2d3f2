"""An ``up`` that cannot be is whole in that, too: it leaves nothing running, and says what an operator must know."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.waiting import until

from .conftest import Terminal


@pytest.fixture
def busy() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield int(other.getsockname()[1])


def of(home: Path) -> list[psutil.Process]:
    """Processes that have to do with this home."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(home) in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("options", [("--detach",), ()])
def test_a_port_that_is_taken_leaves_nothing_running(tmp_path: Path, busy: int, options: tuple[str, ...]) -> None:
    admin = Terminal(tmp_path / "home")
    done = admin("up", "--nodes", "1", "--port", str(busy), *options, code=4)
    assert f"cannot listen on 127.0.0.1:{busy}" in done.err and "choose another with --port" in done.err
    until(lambda: not of(tmp_path / "home"), 20, "nothing of it runs")
    try:
        admin("up", "--nodes", "1", "--port", "0", "--detach")
        assert len(admin("nodes", "--json").data["nodes"]) == 1
    finally:
        admin("down")


def test_a_platform_that_was_left_running_is_not_ended_by_a_start_that_fails(tmp_path: Path, busy: int) -> None:
    admin = Terminal(tmp_path / "home")
    try:
        admin("up", "--nodes", "1", "--port", "0", "--detach")
        (control,) = [each for each in of(tmp_path / "home") if "up" in each.cmdline()]
        control.terminate()  # the control plane only: what runs goes on
        control.wait(20)
        nodes = {each.pid for each in of(tmp_path / "home")}
        assert nodes
        admin("up", "--nodes", "1", "--port", str(busy), "--detach", code=4)
        assert nodes <= {each.pid for each in of(tmp_path / "home")}
    finally:
        admin("down")


def test_up_says_what_an_operator_must_know(tmp_path: Path) -> None:
    admin = Terminal(tmp_path / "home", environment={"FAIRLEAD_ISOLATION": "auto", "PATH": "/usr/bin:/bin"})
    try:
        told = admin("up", "--nodes", "1", "--port", "0", "--detach", "--json").data
        sandboxed = "sandbox" in json.dumps(admin("nodes", "--json").data["nodes"][0]["isolation"])
        assert bool(told["hints"]) != sandboxed
        assert sandboxed or "a second tenant will be refused" in told["hints"][0]
    finally:
        admin("down")
