"""Two control planes on one store: one leads, the other waits; a paused leader that wakes up can do nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from fairlead import Client
from tests.chaos.crashable import Crashable, alive, kill, wait_until


def start_second(home: Path, log: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fairlead.cli.main", "up", "--home", str(home), "--port", "0", *more]
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)


def test_a_second_control_plane_on_the_same_store_stands_by(platform: Crashable, tmp_path: Path) -> None:
    leader, log = platform.control_pid, tmp_path / "second.log"
    second = start_second(tmp_path / "home", log, "--store", f"sqlite:///{platform.home}/fairlead.db")
    try:
        wait_until(lambda: b"standing by" in log.read_bytes(), 30, "it says that it stands by")
        seen = platform.call(lambda c: c.health())
        assert seen["leader"]
        job = platform.train("led", workers="1", steps=80, pause_s=0.08)  # longer than the lease lasts
        wait_until(lambda: platform.ended(job.id), 40, "work goes on under the first")
        assert platform.control_pid == leader
        assert second.poll() is None
        assert b"is up" not in log.read_bytes()
    finally:
        second.terminate()
        assert second.wait(20) == 0


def test_a_paused_leader_that_wakes_up_finds_another_one_and_ends(platform: Crashable, tmp_path: Path) -> None:
    first = platform.control_pid
    job = platform.train("leads", workers="1", steps=1000, pause_s=0.05)
    wait_until(lambda: platform.view(job.id).step > 2, 30, "it trains")
    workers = platform.workers(job.id)

    os.kill(first, signal.SIGSTOP)  # the leader hangs: it neither renews nor answers
    log = tmp_path / "second.log"
    second = start_second(platform.home, log)
    try:
        wait_until(lambda: platform.control_pid == second.pid, 30, "the second takes over when the lease has run out")
        assert platform.workers(job.id) == workers, "the running gang was adopted, not restarted"
        before = Client(home=platform.home).job(job.id).view
        os.kill(first, signal.SIGCONT)
        wait_until(lambda: not alive(first), 20, "the former leader ends by itself")
        fresh = Client(home=platform.home)
        wait_until(lambda: fresh.job(job.id).view.step > before.step, 20, "the job goes on")
        assert fresh.job(job.id).view.generation == before.generation
        assert platform.workers(job.id) == workers
        fresh.cancel(job.id)
        wait_until(lambda: fresh.job(job.id).ended, 20, "it is cancelled")
    finally:
        kill(first)
        kill(second.pid)
        second.wait()
        platform.up()


def test_a_leader_that_is_told_to_end_leaves_its_gangs_running(platform: Crashable) -> None:
    job = platform.train("stays", workers="1:2", steps=600, pause_s=0.05)
    wait_until(lambda: platform.view(job.id).step > 2, 30, "it trains")
    workers, generation = platform.workers(job.id), platform.view(job.id).generation
    control = platform.control_pid
    os.kill(control, signal.SIGTERM)
    wait_until(lambda: not alive(control), 20, "the control plane ends")
    assert platform.workers(job.id) == workers
    platform.up()
    assert platform.view(job.id).generation == generation
    assert platform.workers(job.id) == workers
    platform.call(lambda c: c.cancel(job.id))
    wait_until(lambda: platform.ended(job.id), 20, "it is cancelled")
