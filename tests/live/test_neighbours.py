"""A live platform learns who slows whom down on a node, and tells the platform team."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.crashable import Crashable, wait_until
from tests.cli.conftest import Terminal

NODES = "1"
PROGRAMS = Path(__file__).parent / "programs"
WAITS = "while [ ! -e $FAIRLEAD_OUTPUT/go ]; do sleep 0.05; done"

pytestmark = pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="a node of one core has one device: no neighbours")


def known(platform: Crashable) -> dict[tuple[str, str], Any]:
    pairs = platform.call(lambda c: c.report()).neighbours
    return {(pair["class"], pair["beside"]): pair for pair in pairs}


def test_what_a_job_loses_beside_another_is_learned_and_told(platform: Crashable) -> None:
    params = {"steps": 10_000, "pause_s": 0.1}
    fields: dict[str, Any] = {"name": "victim", "tenant": "alpha", "workers": "1", "params": params}
    victim = platform.call(lambda c: c.submit("felt.py:training", folder=PROGRAMS, **fields))
    wait_until(lambda: platform.view(victim.id).step > 130, 150, "it was alone for some windows")
    loud = platform.call(lambda c: c.submit(["sh", "-c", WAITS], tenant="alpha", name="loud"))
    wait_until(lambda: platform.state(loud.id) in ("starting", "running"), 60, "it has a neighbour")
    (platform.home / "jobs" / victim.id / "output" / "feels").touch()
    pair = ("alpha/victim", "alpha/loud")
    wait_until(lambda: known(platform).get(pair, {}).get("slowdown", 0.0) > 0.4, 150, "it is seen to be slower")
    assert known(platform).keys() == {pair}, "a command takes no steps: nobody knows what it loses"
    assert "alpha/victim" in Terminal(platform.home)("report").out
    for job in (victim.id, loud.id):
        platform.call(lambda c, job=job: c.cancel(job))
        platform.wait_for_end(job)
