"""A backup of a platform with a running gang, and its return elsewhere: the gang goes on from its snapshot."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fairlead import Client
from tests.chaos.crashable import Crashable, alive, kill, same_curve, wait_until
from tests.cli.conftest import Terminal

STEPS, PAUSE_S = 200, 0.6


def test_a_running_gang_goes_on_from_a_backup(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    first = Crashable(tmp_path_factory.mktemp("first"), "2")
    second = Crashable(tmp_path_factory.mktemp("second") / "home", "2")
    file = tmp_path / "platform.tar.zst"
    try:
        first.up()
        made = first.client.create_tenant("alpha")
        reference = first.train("reference", workers="2", steps=STEPS, pause_s=0.0)
        first.wait_for_end(reference.id)
        job = first.train("lasts", workers="2", steps=STEPS, pause_s=PAUSE_S)
        snapshots = first.home / "jobs" / job.id / "snapshots"
        wait_until(lambda: any(snapshots.glob("snapshot-*.*")), 60, "it has a snapshot on disk")
        workers, before = first.workers(), first.view(job.id)

        taken = Terminal(first.home)("backup", str(file), "--json").data
        assert taken["jobs_going_on"] == 1
        assert first.workers() == workers, "nobody was disturbed"
        assert first.view(job.id).generation == before.generation

        for pid in (first.control_pid, *first.node_managers().values()):  # the machine is gone
            kill(pid)
        wait_until(lambda: not any(alive(pid) for pid in workers.values()), 60, "all of it")
        back = Terminal(second.home)("restore", str(file), "--home", str(second.home), "--json").data
        assert back["going_on"] == 1
        second.up()
        wait_until(lambda: second.view(job.id).state == "running", 60, "the gang runs again")
        second.hurry(job.id)
        second.wait_for_end(job.id)
        assert second.state(job.id) == "succeeded", second.story(job.id)
        log = "".join(line.text for line in second.call(lambda c: list(c.logs(job.id))))
        assert log.count("from step 0 (start)") == 2, "only the first generation began at 0"
        same_curve(second.losses(job.id), second.losses(reference.id))
        with Client(url=second.client.url, token=made.token.token) as team:
            assert team.whoami().tenant == "alpha", "tokens are good as before"
            assert team.result(reference.id, download=tmp_path / "result").artifacts
    finally:
        try:
            first.down()
        finally:
            if second.home.exists():
                second.down()
        shutil.rmtree(tmp_path / "result", ignore_errors=True)
