"""The control plane dies in the midst of a change and stays away: the gang trains on, and the change is made later."""

from __future__ import annotations

import contextlib
import itertools
import math
import sqlite3
import threading
import time
from collections.abc import Iterator

import pytest

from fairlead.errors import Unavailable
from fairlead.home import Home
from fairlead.training.resumption import RESUME_AFTER_S
from tests.chaos.crashable import PROGRAMS, Crashable, kill, same_curve, wait_until

STEPS, PAUSE_S = 400, 0.15
AWAY_S = 6.0
SLACK_S = 3.0  # of a machine on which others work, too


@pytest.fixture(scope="module")
def platform(own_platform: Crashable) -> Crashable:
    return own_platform


@pytest.fixture(scope="module")
def undisturbed(platform: Crashable) -> dict[int, float]:
    job = platform.train("undisturbed", workers="1", steps=STEPS, pause_s=0.0)
    platform.wait_for_end(job.id)
    return platform.losses(job.id)


def passes(platform: Crashable, job: str) -> int:
    """How many passes the workers of a job have made, by the marks that they leave."""
    return sum(path.stat().st_size for path in (platform.home / "jobs" / job / "output").glob("passes-*"))


def sizes(platform: Crashable, job: str) -> list[int]:
    """How many workers each generation had that came to run."""
    return [len(one.members) for one in platform.call(lambda c: c.detail(job).generations) if one.running_s is not None]


@pytest.fixture(autouse=True)
def _all_nodes_back(platform: Crashable) -> Iterator[None]:
    yield
    platform.failpoints = []
    for node in platform.call(lambda c: c.nodes()):
        platform.call(lambda c, node=node: c.uncordon(node.name))


def leads_on_to(platform: Crashable, *failpoints: str) -> None:
    """The control plane is started again, to die at these places."""
    platform.failpoints = ["none-yet", *failpoints]
    kill(platform.control_pid)
    platform.up_again()


def uncordon(platform: Crashable, node: str) -> None:
    with contextlib.suppress(Unavailable):
        platform.client.uncordon(node)


def drain(platform: Crashable, node: str) -> None:
    with contextlib.suppress(Unavailable):
        platform.client.drain(node)


def usage(platform: Crashable, job: str) -> list[tuple[int, str, float, float]]:
    """The lines of the ledger: generation, node, from, to."""
    with sqlite3.connect(Home(platform.home).database) as store:
        query = "select generation, node, from_s, to_s from usage where job = ? order by from_s, generation"
        return list(store.execute(query, (job,)))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("place", ["leave-told", "join-stored"])
def test_a_gang_trains_on_while_nobody_leads_and_grows_when_somebody_does(
    place: str, platform: Crashable, undisturbed: dict[int, float]
) -> None:
    for node in ("node-1", "node-2"):
        platform.call(lambda c, node=node: c.cordon(node))
    params = {"steps": STEPS, "pause_s": PAUSE_S}
    fields = {"tenant": "alpha", "workers": "1:2", "name": f"grows-{place}", "params": params, "plan": "dp"}
    job = platform.submit("counted.py:training", f"grows-{place}", folder=PROGRAMS, **fields)
    wait_until(lambda: platform.view(job.id).step > 3 and platform.view(job.id).workers == 1, 60, "it trains")
    leads_on_to(platform, place)
    asking = threading.Thread(target=uncordon, args=(platform, "node-1"))  # its answer may never come
    asking.start()
    idle_s = longest_pause_s(platform, job.id)
    asking.join()
    print(f"{place}: without a control plane the gang stood for {idle_s:.2f} s of {AWAY_S:g}")
    assert RESUME_AFTER_S - 0.5 < idle_s < RESUME_AFTER_S + SLACK_S < AWAY_S

    platform.failpoints = []
    platform.up()
    wait_until(lambda: sizes(platform, job.id) == [1, 2], 60, "it has grown")
    said = [event.text for event in platform.call(lambda c: list(c.events(job=job.id)))]
    assert any("resumed generation 1: it left, but was never told to join the next one" in text for text in said), said
    platform.hurry(job.id)
    platform.wait_for_end(job.id)
    assert platform.state(job.id) == "succeeded", platform.view(job.id).message
    same_curve(platform.losses(job.id), undisturbed)
    assert "contradiction" not in platform.log()
    all_is_charged_once(usage(platform, job.id))


@pytest.mark.timeout(300)
def test_a_gang_that_was_to_leave_a_node_trains_on_while_nobody_leads_and_leaves_later(
    platform: Crashable, undisturbed: dict[int, float]
) -> None:
    params = {"steps": STEPS, "pause_s": 4 * PAUSE_S}  # three workers share a step
    fields = {"tenant": "alpha", "workers": "1:3", "name": "shrinks", "params": params, "plan": "dp"}
    job = platform.submit("counted.py:training", "shrinks", folder=PROGRAMS, **fields)
    wait_until(lambda: platform.view(job.id).step > 3 and platform.view(job.id).workers == 3, 60, "it trains on all")
    leads_on_to(platform, "leave-told")
    asking = threading.Thread(target=drain, args=(platform, "node-2"))
    asking.start()
    idle_s = longest_pause_s(platform, job.id)
    asking.join()
    print(f"shrinking: without a control plane the gang stood for {idle_s:.2f} s of {AWAY_S:g}")
    assert RESUME_AFTER_S - 0.5 < idle_s < RESUME_AFTER_S + SLACK_S < AWAY_S

    platform.failpoints = []
    platform.up()
    wait_until(lambda: sizes(platform, job.id)[-1] == 2, 60, f"it has shrunk: {platform.view(job.id)}")
    assert "node-2" not in platform.view(job.id).nodes
    platform.hurry(job.id)
    platform.wait_for_end(job.id)
    assert platform.state(job.id) == "succeeded", platform.view(job.id).message
    same_curve(platform.losses(job.id), undisturbed)
    assert "contradiction" not in platform.log()


def longest_pause_s(platform: Crashable, job: str) -> float:
    """The longest time without a pass of any worker, from now until the control plane has been away for so long."""
    longest_s, last_s, before, died_s = 0.0, time.monotonic(), passes(platform, job), math.inf

    def watched() -> bool:
        nonlocal longest_s, last_s, before, died_s
        now_s, now = time.monotonic(), passes(platform, job)
        longest_s = max(longest_s, now_s - last_s)
        if now != before:
            last_s, before = now_s, now
        if not platform.control_lives():
            died_s = min(died_s, now_s)
        return now_s - died_s >= AWAY_S

    wait_until(watched, 90, "the control plane dies as the gang grows, and stays away")
    return longest_s


def all_is_charged_once(lines: list[tuple[int, str, float, float]]) -> None:
    """On the node on which it trained all the time no second is missing between two lines, and none is in two."""
    kept = [(from_s, to_s) for _, node, from_s, to_s in lines if node == "node-0"]
    assert len(kept) > 1 and {generation for generation, *_ in lines} >= {1, 2}
    for (_, earlier_s), (later_s, _) in itertools.pairwise(kept):
        assert later_s == pytest.approx(earlier_s, abs=1e-6)
