"""The demonstration shows what it promises, with or without real data, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlead.sdk.client import Client

QUICK = [sys.executable, "-m", "fairlead.demo", "--quick"]


def start(out: Path, home: Path, *options: str, data: bool) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if data or name != "FAIRLEAD_DATA"}
    home.mkdir()
    home.chmod(0o755)
    return subprocess.Popen(
        [*QUICK, *options, "--out", str(out)], env=environment | {"TMPDIR": str(home)}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"did not become true within {timeout_s} s"
        time.sleep(0.05)


def processes_with(word: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            words = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(word in each for each in words):
            found.append(f"{process.pid}: {words[:6]}")
    return found


def interrupt(demo: subprocess.Popen[str]) -> None:
    """Interrupt a demonstration that still runs, as Ctrl-C does, so that it ends its platform."""
    if demo.poll() is None:
        demo.send_signal(signal.SIGINT)
        try:
            demo.communicate(timeout=60)
        finally:
            demo.kill()


def check_kept_platform(output: str) -> None:
    """The kept platform answers at the printed address to the printed token."""
    found = re.search(r"Web page: (http://\S+/)\s+token to log in:\s+(\S+)", output)
    assert found, output
    with Client(url=found[1], token=found[2]) as admin:
        assert len(admin.nodes()) == 4 and {job.view.state for job in admin.jobs()} == {"succeeded"}


@pytest.fixture(scope="module")
def finished_demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("demo")
    demo = start(folder / "out", folder / "tmp", "--keep", data=True)
    try:
        output, _ = demo.communicate(timeout=400)
        check_kept_platform(output)
    finally:
        interrupt(demo)
        for home in (folder / "tmp").glob("fairlead-*"):
            down = [sys.executable, "-m", "fairlead.cli.main", "down", "--home", str(home)]
            subprocess.run(down, check=True, timeout=90, capture_output=True)
    assert processes_with(str(folder / "tmp")) == []
    log = folder / "out" / "control.log"
    assert demo.returncode == 0, output + (log.read_text()[-6000:] if log.exists() else "")
    return output, folder / "out"


@pytest.fixture
def report(finished_demo: tuple[str, Path]) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((finished_demo[1] / "report.json").read_text())
    return document


@pytest.mark.timeout(600)
def test_the_demo_ends_well_and_says_where_its_plot_is(finished_demo: tuple[str, Path]) -> None:
    output, out = finished_demo
    assert f"plot of the shares over time: {out / 'shares.png'}" in output
    assert (out / "shares.png").read_bytes().startswith(b"\x89PNG")
    assert "data: " in output and "node-" in output


def test_every_job_of_the_demo_finished_and_learned(report: dict[str, Any]) -> None:
    assert {job["name"]: job["state"] for job in report["jobs"]} == dict.fromkeys(
        ("images", "texts", "clients", "calls"), "succeeded"
    )
    accuracy = {job["name"]: job["metrics"].get("accuracy") for job in report["jobs"]}
    assert accuracy.pop("calls") is None
    assert accuracy["images"] > 0.25 and accuracy["texts"] > 0.6 and accuracy["clients"] > 0.8
    assert any("rows in" in line for job in report["jobs"] for line in job["log"])


def test_the_demo_shows_entitlements_by_weight_and_shares_that_add_up(report: dict[str, Any]) -> None:
    entitled = {line["tenant"]: line["entitlement"] for line in report["tenants"]}
    assert entitled == pytest.approx({"vision": 1 / 2, "reviews": 1 / 3, "marketing": 1 / 6})
    assert sum(line["share"] for line in report["tenants"]) == pytest.approx(1.0)
    contended = {line["tenant"]: line["contended_share"] for line in report["tenants"]}
    assert contended["vision"] == pytest.approx(0.5, abs=0.1), "two of four devices while all compete"
    assert all(line["mean_wait_s"] is not None and line["mean_jct_s"] for line in report["tenants"])
    assert all(line["sla_satisfaction"] is not None for line in report["tenants"])


def test_a_job_of_the_demo_grew_and_the_one_on_the_killed_node_recovered(report: dict[str, Any]) -> None:
    assert any(growth["to"] > growth["from"] for job in report["jobs"] for growth in job["grew"])
    kill = report["kill"]
    hit = next(job for job in report["jobs"] if job["name"] == kill["job"])
    assert hit["recoveries"] >= 1
    assert 0 < kill["to_next_step_s"] < 10
    before, after = (
        next(g for g in hit["generations"] if g["ended_s"] and g["ended_s"] >= kill["time_s"]),
        next(g for g in hit["generations"] if g["running_s"] and g["running_s"] > kill["time_s"]),
    )
    assert kill["node"] in before["nodes"] and kill["node"] not in after["nodes"]


def test_a_job_of_the_demo_made_room_for_a_more_urgent_one_and_both_that_and_growth_are_explained(
    report: dict[str, Any],
) -> None:
    stopped, grown = report["why"]["preemption"], report["why"]["growth"]
    assert stopped["job"] == "clients" and "gives 1 device to waiting job calls" in stopped["event"]
    assert "whose priority is 10 (its own: 0)" in stopped["event"]
    assert "grows from" in grown["why"] and "to spare" in grown["why"]
    clients = next(job for job in report["jobs"] if job["name"] == "clients")
    assert len(clients["generations"]) >= 2 and clients["state"] == "succeeded"


@pytest.mark.timeout(400)
def test_a_demo_that_is_interrupted_again_and_again_takes_its_platform_down(tmp_path: Path) -> None:
    home = tmp_path / "tmp"
    demo = start(tmp_path / "out", home, data=False)
    try:
        until(lambda: any(home.glob("fairlead-demo-*/profile.json")), 150)
        until(lambda: demo.send_signal(signal.SIGINT) or demo.poll() is not None, 60)  # Ctrl-C again and again
        output, _ = demo.communicate(timeout=60)
    finally:
        interrupt(demo)
    assert demo.returncode == 130, output
    assert "scikit-learn's bundled data sets" in output
    assert not any(home.glob("fairlead-*"))
    assert processes_with(str(home)) == []
