"""The control plane dies at every named place between a store write and its side effect: nothing is lost or doubled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import fairlead.control
from fairlead.control.failpoints import NAMES
from tests.chaos.crashable import Crashable, kill, same_curve, wait_until

STEPS = 400


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


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_crash_at_this_place_loses_nothing(name: str, platform: Crashable, undisturbed: dict[int, float]) -> None:
    """A job leaves a node, loses a worker and finishes; another is cancelled; the control plane dies on the way."""
    wait_until(lambda: not platform.workers(), 60, "the last job's workers are gone")
    kill(platform.control_pid)
    armed = platform.up(failpoint=name)
    restarts = platform.restarts
    if not armed:
        platform.up()
    long = platform.train(f"long-{name}", workers="1:2", steps=STEPS, pause_s=0.05)
    again = platform.train(f"long-{name}", workers="1:2", steps=STEPS, pause_s=0.05)
    assert again.id == long.id, "the same key twice is one job"
    where: list[str] = []  # between two generations it is nowhere

    def sits() -> bool:
        view = platform.view(long.id)
        where[:] = view.nodes
        return view.step > 3 and bool(where)

    wait_until(sits, 60, "it trains")
    left = where[0]
    platform.call(lambda c: c.drain(left))
    wait_until(lambda: left not in platform.view(long.id).nodes, 60, "it moves away from the drained node")
    platform.call(lambda c: c.uncordon(left))
    workers = platform.workers(long.id)
    if workers:
        kill(workers[sorted(workers)[-1]])
    other = platform.train(f"other-{name}", tenant="beta", workers="1", steps=2000, pause_s=0.05)
    wait_until(lambda: platform.state(other.id) == "running", 60, "the other one runs")
    platform.call(lambda c: c.cancel(other.id) if c.job(other.id).state == "running" else None)
    if name == "metered":  # that happens less often
        wait_until(lambda: platform.restarts > restarts or not platform.control_lives(), 40, "the ledger is written")
    platform.hurry(long.id)
    wait_until(lambda: platform.ended(long.id) and platform.ended(other.id), 60, "both end")

    died = name == "lease-taken" or platform.restarts > restarts
    assert died, "the failpoint was never reached"
    assert platform.state(long.id) == "succeeded", platform.view(long.id).message
    assert platform.state(other.id) == "cancelled"
    same_curve(platform.losses(long.id), undisturbed)
    names = [job.name for job in platform.call(lambda c: list(c.jobs()))]
    assert names.count(f"long-{name}") == 1
    wait_until(lambda: not platform.workers(), 60, "no worker is left")
    assert "contradiction" not in platform.log()
