"""The state of a training in the grid, on a real platform: its workers die and it goes on from there; it ends and
nothing is left."""

from __future__ import annotations

import json
from pathlib import Path

from fairlead.home import Home
from tests.chaos.crashable import PROGRAMS, Crashable, kill, wait_until


def notes(platform: Crashable, job: str) -> list[Path]:
    return list((Home(platform.home).memory / job).glob("*/snapshot-*.grid"))


def labels(platform: Crashable, turn: int) -> list[str]:
    """Of the grid of some node, as a command of the same tenant finds them there."""
    name = f"looks-{turn}"
    command = ["python", "labels.py"]
    job = platform.submit(command, folder=PROGRAMS, key=name, name=name, tenant="alpha")
    wait_until(lambda: platform.ended(job.id), 60, "it has looked")
    assert platform.state(job.id) == "succeeded", platform.story(job.id)
    return list(json.loads((platform.home / "jobs" / job.id / "output" / "labels.json").read_text()))


def test_a_job_whose_workers_all_die_goes_on_from_the_grid_and_leaves_nothing_there(platform: Crashable) -> None:
    job = platform.train("keeps", workers="1", steps=400, pause_s=0.1)
    wait_until(lambda: bool(notes(platform, job.id)), 60, "its state is in the grid")
    for path in (platform.home / "jobs" / job.id / "snapshots").glob("*"):
        path.unlink()  # what is on disk would do as well
    for pid in platform.workers(job.id).values():
        kill(pid)
    for path in (platform.home / "jobs" / job.id / "snapshots").glob("*"):
        path.unlink()
    wait_until(lambda: "(memory)" in log(platform, job.id), 60, "it goes on from memory")
    platform.call(lambda c: c.cancel(job.id))
    wait_until(lambda: platform.ended(job.id) and not notes(platform, job.id), 60, "it is over, and its notes are gone")
    for turn in range(3):
        assert f"snapshot/{job.id}" not in labels(platform, turn)


def log(platform: Crashable, job: str) -> str:
    return "".join(line.text for line in platform.call(lambda c: list(c.logs(job))))
