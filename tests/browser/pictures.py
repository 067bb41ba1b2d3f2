"""Makes the documents' pictures of the web page from a real run: python -m tests.browser.pictures docs/images."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import sync_playwright

from fairlead.agent.embedded.node_records import read_record
from fairlead.home import Home
from fairlead.sdk.client import Client
from tests.browser.conftest import BROWSERS, Running, Visit, put_away, start
from tests.waiting import until

EXAMPLES = Path(__file__).parents[2] / "examples"
WATCHED_S = 60.0  # for the curves to have a shape
JOBS = (  # name, tenant, workers, plan: one process is fastest for such small networks, which makes a dull picture
    ("digits-wide", "vision", "2:4", "dp"), ("small-net", "text", "1:2", "auto"),
    ("recall-net", "search", "1:2", "auto"), ("click-model", "search", "1:2", "auto"),
    ("tagger-de", "text", "2", "dp"), ("ocr-lines", "vision", "2:4", "dp"),
)  # fmt: skip


def submit(running: Running) -> list[str]:
    with Client(running.url, running.admin) as client:
        return [
            client.submit("train.py:training", folder=EXAMPLES / "digits", name=name, tenant=tenant, workers=workers,
                          plan=plan, params={"epochs": 4000}).id
            for name, tenant, workers, plan in JOBS
        ]  # fmt: skip


def run_pipeline(running: Running) -> str:
    """The id of a pipeline that has fitted some of its models, and is fitting others."""
    with Client(running.url, running.admin) as client:
        client.cancel_jobs(all=True)
        pipeline = client.run_pipeline(str(EXAMPLES / "models" / "compare.py:models"), tenant="search", trees=2000).id

    def half_done() -> bool:
        states = [stage["state"] for stage in running.ask("GET", f"/pipelines/{pipeline}")["stages"]]
        return states.count("succeeded") >= 3 and "running" in states

    until(half_done, 120.0)
    return pipeline


def take(browser: Any, running: Running, view: str, path: Path, *, dark: bool, size: tuple[int, int]) -> None:
    scheme = "dark" if dark else "light"
    window = Visit(browser, running.url, color_scheme=scheme, viewport={"width": size[0], "height": size[1]})
    window.log_in(running.admin, view)
    window.settled()
    window.page.wait_for_timeout(3000)  # curves are drawn, and the first live news has come
    window.page.screenshot(path=path)
    window.context.close()


def kill_a_node_of(running: Running, job: str) -> None:
    seat = running.ask("GET", f"/jobs/{job}")["nodes"][-1]
    record = read_record(Home(running.home), seat)
    assert record is not None
    psutil.Process(record.process.pid).kill()


def main(folder: Path) -> None:
    browser_path = next(found for name in BROWSERS if (found := shutil.which(name)))
    running = start("4")
    try:
        running.ask("POST", "/tenants", json={"name": "search", "weight": 1})
        watched, *_ = submit(running)
        until(lambda: running.state(watched) == "running", 120.0)
        time.sleep(WATCHED_S)
        with sync_playwright() as playwright:
            arguments = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
            browser = playwright.chromium.launch(executable_path=browser_path, args=arguments)
            take(browser, running, "cluster", folder / "cluster.png", dark=False, size=(1360, 390))
            take(browser, running, "queue", folder / "queue.png", dark=False, size=(1280, 620))
            kill_a_node_of(running, watched)
            time.sleep(20.0)
            take(browser, running, f"job/{watched}", folder / "job.png", dark=True, size=(1280, 1700))
            take(browser, running, "tenants", folder / "tenants.png", dark=True, size=(1280, 800))
            pipeline = run_pipeline(running)
            take(browser, running, f"pipeline/{pipeline}", folder / "pipeline.png", dark=False, size=(1280, 690))
            browser.close()
    finally:
        put_away(running)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
