"""A thousand jobs on two hundred nodes: the page stays smooth, and the platform is not asked for more than it shows."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Visit, Visitor
from tests.browser.large_process import JOBS, NODES
from tests.waiting import until

ROOT = Path(__file__).parent.parent.parent
SCROLL = """async () => {
  const box = document.querySelector('.scroll');
  for (let place = 0; place < 60; place += 1) {
    box.scrollTop = (box.scrollHeight - box.clientHeight) * place / 59;
    await new Promise(requestAnimationFrame);
  }
  const rows = box.querySelectorAll('tbody tr:not(.gap)').length;
  box.scrollTop = 0;
  return rows;
}"""


@pytest.fixture(scope="module")
def large(chromium: Any) -> Iterator[tuple[str, str]]:
    home = Path(tempfile.mkdtemp(prefix="fairlead-large-"))
    command = [sys.executable, "-m", "tests.browser.large_process", str(home)]
    with (home / "process.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (home / "process.log").read_text()[-3000:]
        told = json.loads(line)
        yield told["url"], told["token"]
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(home, ignore_errors=True)


class Cost:
    """What the page's own thread spent, in seconds of the processor: other work on the machine does not count."""

    def __init__(self, window: Visit) -> None:
        self._cdp = window.context.new_cdp_session(window.page)
        self._cdp.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent_s(self) -> float:
        metrics = self._cdp.send("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def test_a_thousand_jobs_and_two_hundred_nodes_stay_smooth(large: tuple[str, str], visit: Visitor) -> None:
    url, token = large
    window = visit(url)
    page, cost, asked = window.page, Cost(window), []
    page.on("request", lambda request: asked.append(request.url))
    window.log_in(token)
    page.locator(".node").nth(NODES - 1).wait_for(state="attached")
    page.locator(".slot a").first.wait_for()
    begun_s = cost.spent_s()
    for _ in range(3):  # beats, each of which moves most of the nodes
        before = page.locator(".figures").inner_text()
        page.wait_for_function("(was) => document.querySelector('.figures').innerText !== was", arg=before)
    assert cost.spent_s() - begun_s < 1.5, "the cluster is drawn too dearly"

    window.go("queue")
    page.get_by_text(f"{JOBS:,} jobs").wait_for()
    asked.clear()
    begun_s = cost.spent_s()
    assert page.evaluate(SCROLL) < 60  # of a thousand rows only those in sight exist
    moving = page.locator(".r-running .progress .num").first
    first = moving.inner_text()
    until(lambda: moving.inner_text() != first)
    page.get_by_label("Name").fill("job-77")
    page.get_by_text(f"11 of {JOBS:,} jobs").wait_for()
    assert cost.spent_s() - begun_s < 3.0, "the queue is drawn too dearly"
    lists = [place for place in asked if "/api/v1/jobs?" in place and "ids=" not in place]
    assert len(lists) <= 4 and len(asked) < 60, asked  # pages and changed rows, not everything at every event
