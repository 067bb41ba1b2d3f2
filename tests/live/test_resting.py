"""Nodes of a live platform sleep when nobody needs them, wake for a job, and what that saves is in the report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import Client
from tests.browser.conftest import Visitor
from tests.chaos.crashable import wait_until
from tests.cli.conftest import Terminal


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("resting") / "home"
    admin = Terminal(folder)
    try:
        admin("up", "--detach", "--nodes", "2", "--port", "0", "--sleep-after", "1s")
        admin("down")
        admin("up", "--detach", "--port", "0")  # which remembers how many nodes there are, and when they sleep
        yield folder
    finally:
        admin("down", code=None)


def states(client: Client) -> dict[str, str]:
    return {node.name: node.state for node in client.nodes()}


def asleep(client: Client) -> bool:
    return set(states(client).values()) == {"asleep"}


@pytest.mark.timeout(600)
def test_idle_nodes_end_and_one_comes_back_for_a_job(home: Path, visit: Visitor) -> None:
    with Client(home=home, timeout_s=30.0) as client:
        client.create_tenant("alpha")
        wait_until(lambda: asleep(client), 400, "nobody needs them")  # for seven times what a start takes
        assert not list(home.glob("run/node-*.json")), "their processes are gone"
        told = Terminal(home)("nodes").out
        assert "asleep" in told and "isolation: none" not in told, "they are kept apart as before when they wake"
        _is_seen_in_the_page(home, client.url, visit)
        job = client.submit(["true"], tenant="alpha", name="wakes")
        wait_until(lambda: job.refresh().ended, 120, "a node wakes and runs it")
        assert job.view.state == "succeeded" and job.view.preemptions == 0 and job.view.recoveries == 0
        kinds = [(event.kind, event.node) for event in client.events(limit=500)]
        woken = [node for kind, node in kinds if kind == "node-woke"]
        assert len(woken) == 1, "only the one that was needed"
        assert {node for kind, node in kinds if kind == "node-slept"} == {"node-0", "node-1"}
        assert not [node for kind, node in kinds if kind == "node-lost"]
        energy = client.report().energy
        assert energy["wakes"] == 1 and energy["asleep_s"] > 0 and energy["kwh"] > 0
        assert "alpha" in energy["tenants"]


def _is_seen_in_the_page(home: Path, url: str, visit: Visitor) -> None:
    window = visit(url)
    window.log_in(json.loads((home / "profile.json").read_text())["token"])
    assert "0 of 2 2 asleep" in " ".join(window.page.locator(".figures").inner_text().split())
    assert window.page.locator(".node").get_by_text("asleep").count() == 2
    assert window.page.get_by_text("not isolated").count() == 0


def test_a_time_that_is_none_is_refused(tmp_path: Path) -> None:
    done = Terminal(tmp_path / "home")("up", "--detach", "--sleep-after", "soon", code=2)
    assert "--sleep-after" in done.err and "write it like 90s, 10m or 1h" in done.err
