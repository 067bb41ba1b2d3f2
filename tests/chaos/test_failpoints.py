"""The control plane dies at every named place between a store write and its side effect: nothing is lost or doubled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fairlead.control
from fairlead.control.reconcile.failpoints import NAMES
from tests.chaos.crashable import Crashable, kill, same_curve, wait_until

STEPS = 400
PAUSE_S = 0.5  # longer than all crashes together take on a slow machine; then it is hurried to its end


@pytest.fixture(scope="module")
def platform(own_platform: Crashable) -> Crashable:
    return own_platform


@pytest.fixture(scope="module")
def undisturbed(platform: Crashable) -> dict[int, float]:
    """The loss curve of a run that nobody disturbed."""
    job = platform.train("undisturbed", workers="1", steps=STEPS, pause_s=0.0)
    platform.wait_for_end(job.id)
    assert platform.state(job.id) == "succeeded", platform.view(job.id).message
    return platform.losses(job.id)


def test_every_failpoint_stands_in_the_code_and_every_name_is_known() -> None:
    source = "".join(path.read_text() for path in Path(fairlead.control.__file__).parent.rglob("*.py"))
    used = set(re.findall(r'failpoint\("([a-z-]+)"\)', source)) | set(re.findall(r'point="([a-z-]+)"', source))
    assert used == NAMES
    assert len(NAMES) >= 12


STORIES = {
    "while a job is taken in": ("lease-taken", "submit-stored", "round-stored"),
    "while a gang begins": ("launched", "join-stored", "join-told", "running-stored"),
    "while it trains and changes": ("events-stored", "leave-told", "broken-stored", "metered"),
    "while a job ends": ("stop-stored", "stop-told", "released", "concluded"),
}
"""Where the control plane dies, one place after the other, each time to be started again."""

OF_PIPELINES = ("pipeline-submitted", "pipeline-stored")
"""Only pipelines come there: tests/pipelines/test_crashes.py."""


def test_every_failpoint_is_in_a_story() -> None:
    assert sorted([*OF_PIPELINES, *(place for places in STORIES.values() for place in places)]) == sorted(NAMES)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("when", STORIES)
def test_crashes_at_these_places_lose_nothing(when: str, platform: Crashable, undisturbed: dict[int, float]) -> None:
    """A job leaves a node, loses a worker and finishes; another is cancelled; the control plane dies on the way."""
    platform.failpoints = ["none-yet", *STORIES[when]]
    kill(platform.control_pid)
    platform.up_again()
    name = when.replace(" ", "-")
    long = platform.train(f"long-{name}", workers="1:2", steps=STEPS, pause_s=PAUSE_S)
    again = platform.train(f"long-{name}", workers="1:2", steps=STEPS, pause_s=PAUSE_S)
    assert again.id == long.id, "the same key twice is one job"
    left = _where_it_trains(platform, long.id)
    platform.call(lambda c: c.drain(left))
    wait_until(lambda: left not in platform.view(long.id).nodes, 60, "it moves away from the drained node")
    platform.call(lambda c: c.uncordon(left))
    _where_it_trains(platform, long.id)
    workers = platform.workers(long.id)
    if workers:
        kill(workers[sorted(workers)[-1]])
    other = platform.train(f"other-{name}", tenant="beta", workers="1", steps=2000, pause_s=0.05)
    wait_until(lambda: platform.state(other.id) == "running", 60, "the other one runs")
    platform.call(lambda c: c.cancel(other.id) if c.job(other.id).state == "running" else None)
    if when == "while it trains and changes":  # the ledger is written less often than all else
        wait_until(lambda: platform.ended(other.id) and not platform.failpoints, 60, "it has died at all of them")
    platform.hurry(long.id)
    wait_until(lambda: platform.ended(long.id) and platform.ended(other.id), 60, "both end")
    wait_until(lambda: platform.state(long.id) and not platform.workers(), 60, "no worker is left")

    assert not platform.failpoints, "these were never reached"
    assert platform.state(long.id) == "succeeded", platform.view(long.id).message
    assert platform.state(other.id) == "cancelled"
    same_curve(platform.losses(long.id), undisturbed)
    names = [job.name for job in platform.call(lambda c: list(c.jobs()))]
    assert names.count(f"long-{name}") == 1
    assert "contradiction" not in platform.log()


def _where_it_trains(platform: Crashable, job: str) -> str:
    """A node on which the job trains; between two generations it is nowhere."""
    where: list[str] = []

    def sits() -> bool:
        view = platform.view(job)
        where[:] = view.nodes
        return view.step > 3 and bool(where)

    wait_until(sits, 60, "it trains")
    return where[0]
