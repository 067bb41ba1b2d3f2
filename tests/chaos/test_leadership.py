"""Two control planes on one store: one leads, the other waits; a paused leader that wakes up can do nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fairlead import Client
from tests.chaos.crashable import Crashable, alive, kill, wait_until


def start_second(home: Path, log: Path, *more: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "fairlead.cli.main", "up", "--home", str(home), "--port", "0", *more]
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)


def holds_the_write_lock(pid: int, database: Path) -> bool:
    """Whether the process is within a write: SQLite then holds byte 120 of the file beside its log."""
    shared = f":{Path(f'{database}-shm').stat().st_ino}"
    locks = (line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" not in line)
    mine = [lock for lock in locks if lock[3] == "WRITE" and int(lock[4]) == pid and lock[5].endswith(shared)]
    return any(int(first) <= 120 and (last == "EOF" or int(last) >= 120) for *_, first, last in mine)


def stopped(pid: int, database: Path, *, within_a_write: bool) -> bool:
    """Stop the process for good if it is at this just now; else let it go on."""
    if holds_the_write_lock(pid, database) is not within_a_write:
        return False
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: "T (stopped)" in Path(f"/proc/{pid}/status").read_text(), 60, "it stands still")
    if holds_the_write_lock(pid, database) is within_a_write:
        return True
    os.kill(pid, signal.SIGCONT)
    return False


def test_a_second_control_plane_on_the_same_store_stands_by(platform: Crashable, tmp_path: Path) -> None:
    leader, log = platform.control_pid, tmp_path / "second.log"
    second = start_second(tmp_path / "home", log, "--store", f"sqlite:///{platform.home}/fairlead.db")
    try:
        wait_until(lambda: b"standing by" in log.read_bytes(), 60, "it says that it stands by")
        seen = platform.call(lambda c: c.health())
        assert seen["leader"]
        job = platform.train("led", workers="1", steps=80, pause_s=0.08)  # longer than the lease lasts
        wait_until(lambda: platform.ended(job.id), 90, "work goes on under the first")
        assert platform.control_pid == leader
        assert second.poll() is None
        assert b"is up" not in log.read_bytes()
    finally:
        second.terminate()
        assert second.wait(60) == 0


@dataclass(frozen=True)
class Replaced:
    """A leader that hangs, the one that leads in its place, and the gang that both have led."""

    first: int
    second: int
    job: str
    workers: dict[str, int]


@contextmanager
def replaced(platform: Crashable, log: Path, *, within_a_write: bool) -> Iterator[Replaced]:
    """The leader hangs (it neither renews nor answers) until another one leads."""
    first, database = platform.control_pid, platform.home / "fairlead.db"
    job = platform.train(f"led-{within_a_write}".lower(), workers="1", steps=10_000, pause_s=0.02).id
    wait_until(lambda: platform.view(job).step > 2, 60, "it trains")
    workers = platform.workers(job)
    wait_until(lambda: stopped(first, database, within_a_write=within_a_write), 120, "it is stopped", every_s=0.005)
    second = start_second(platform.home, log)
    try:
        wait_until(lambda: platform.control_pid == second.pid or second.poll() is not None, 60, "the second leads")
        assert second.poll() is None, log.read_text()
        assert platform.workers(job) == workers, "the running gang was adopted, not restarted"
        yield Replaced(first, second.pid, job, workers)
        with Client(home=platform.home) as fresh:
            fresh.cancel(job)
            wait_until(lambda: fresh.job(job).ended, 60, "it is cancelled")
    finally:
        kill(first)
        kill(second.pid)
        second.wait()
        platform.up()


def test_a_paused_leader_that_wakes_up_finds_another_one_and_ends(platform: Crashable, tmp_path: Path) -> None:
    with replaced(platform, tmp_path / "log", within_a_write=False) as now, Client(home=platform.home) as fresh:
        before = fresh.job(now.job).view
        os.kill(now.first, signal.SIGCONT)
        wait_until(lambda: not alive(now.first), 60, "the former leader ends by itself")
        wait_until(lambda: fresh.job(now.job).view.step > before.step, 60, "the job goes on")
        assert fresh.job(now.job).view.generation == before.generation
        assert platform.workers(now.job) == now.workers


def test_a_leader_that_was_stopped_within_a_write_keeps_nobody_from_leading(
    platform: Crashable, tmp_path: Path
) -> None:
    with replaced(platform, tmp_path / "log", within_a_write=True) as now:
        wait_until(lambda: not alive(now.first), 60, "the former leader, which held the store's lock, is gone")
        assert platform.workers(now.job) == now.workers


def test_a_leader_that_is_told_to_end_leaves_its_gangs_running(platform: Crashable) -> None:
    job = platform.train("stays", workers="1:2", steps=10_000, pause_s=0.05)
    wait_until(lambda: platform.view(job.id).step > 2, 60, "it trains")
    workers, generation = platform.workers(job.id), platform.view(job.id).generation
    control = platform.control_pid
    os.kill(control, signal.SIGTERM)
    wait_until(lambda: not alive(control), 60, "the control plane ends")
    assert platform.workers(job.id) == workers
    platform.up()
    assert platform.view(job.id).generation == generation
    assert platform.workers(job.id) == workers
    platform.call(lambda c: c.cancel(job.id))
    wait_until(lambda: platform.ended(job.id), 60, "it is cancelled")
