"""A newer Fairlead on an older one's home: the store migrates, running gangs are adopted, and old nodes are renewed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fairlead import wire
from fairlead.control.store import migrate
from fairlead.control.store.connections import connect
from tests.chaos.crashable import PROGRAMS, Crashable, alive, kill, same_curve, wait_until

OLD = Path(__file__).parent / "older" / "protocol-1.tar.xz"
"""The last one with schema 0001 and protocol 1: no sandbox, no policies.

Kept here as `git archive c7fd136 fairlead` gave it, so that a shallow clone, or a copy without history, is tested too.
"""

STEPS, PAUSE_S = 300, 1.0


@pytest.fixture(scope="module")
def old_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The older version, unpacked."""
    folder = tmp_path_factory.mktemp("old")
    folder.parent.chmod(0o755)
    folder.chmod(0o755)  # its workers are users of their own
    with tarfile.open(OLD) as tar:
        tar.extractall(folder, filter="data")
    return folder


class Old:
    """Runs the older version."""

    def __init__(self, code: Path, home: Path) -> None:
        self._code, self._home = code, home

    def __call__(self, *words: str, cwd: Path | None = None) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FAIRLEAD_")}
        environment |= {"PYTHONPATH": str(self._code), "FAIRLEAD_HOME": str(self._home)}
        command = [sys.executable, "-P", "-m", "fairlead.cli.main", *words]
        done = subprocess.run(command, env=environment, cwd=cwd or self._code, capture_output=True, text=True,
                              timeout=90, check=False)  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout


@pytest.fixture
def platform(old_code: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crashable]:
    """A home in which the older version trains on both nodes; its control plane was told to end."""
    home = tmp_path_factory.mktemp("upgraded")
    old = Old(old_code, home)
    crashable = Crashable(home, "2")
    try:
        old("up", "--nodes", "2", "--port", "0", "--detach")
        old("tenant", "create", "alpha")
        old("run", "train.py:training", "--tenant", "alpha", "--workers", "2", "--name", "lasts",
            "--param", f"steps={STEPS}", "--param", f"pause_s={PAUSE_S}", cwd=PROGRAMS)  # fmt: skip
        wait_until(lambda: trains(old("queue", "--json")), 90, "it trains", every_s=1.0)
        assert version(home) == "0001"
        control = crashable.control_pid
        _end(control)
        yield crashable
    finally:
        crashable.down()


def trains(queue: str) -> bool:
    return '"step": 0,' not in queue and '"running"' in queue


def _end(control: int) -> None:
    """Tell the older control plane to end, and nothing else; where it hangs on the way, as it may, it is killed."""
    os.kill(control, signal.SIGTERM)
    with suppress(AssertionError):
        wait_until(lambda: not alive(control), 20, "it ends by itself")
    kill(control)


def version(home: Path) -> str | None:
    engines = connect(f"sqlite:///{home}/fairlead.db")
    with engines.reader.connect() as connection:
        found = migrate.schema_version(connection)
    engines.dispose()
    return found


def states(platform: Crashable) -> dict[str, str]:
    return {node.name: node.state for node in platform.call(lambda c: c.nodes())}


CURVE: dict[int, float] = {}  # of a training that nobody disturbed; the same on every platform


def undisturbed(platform: Crashable) -> dict[int, float]:
    if not CURVE:
        job = platform.train("undisturbed", workers="2", steps=STEPS, pause_s=0.0)
        platform.wait_for_end(job.id, 90)
        CURVE.update(platform.losses(job.id))
    return CURVE


def test_a_newer_version_adopts_what_an_older_one_runs(platform: Crashable) -> None:
    workers, nodes = platform.workers(), platform.node_managers()
    assert len(workers) == 2
    platform.up()
    assert version(platform.home) == migrate.HEAD
    job = platform.call(lambda c: c.job("lasts")).view
    assert (job.state, job.generation) == ("running", 1)
    wait_until(lambda: platform.view(job.id).step > job.step + 4, 60, "it goes on")
    assert platform.workers() == workers and platform.node_managers() == nodes, "the same processes"
    assert set(states(platform).values()) == {"outdated"}, "and they get nothing new"
    new = platform.submit(["true"], key="new", tenant="alpha", name="new")

    platform.hurry(job.id)
    platform.wait_for_end(job.id)
    wait_until(lambda: set(states(platform).values()) == {"ready"}, 40, "empty nodes are renewed")
    assert not set(platform.node_managers().values()) & set(nodes.values())
    platform.wait_for_end(new.id)
    assert platform.state(new.id) == platform.state(job.id) == "succeeded"
    after = platform.view(job.id)
    assert (after.generation, after.recoveries, after.preemptions) == (1, 0, 0)
    same_curve(platform.losses(job.id), undisturbed(platform))


def test_a_gang_moves_off_older_nodes_by_its_snapshot(platform: Crashable) -> None:
    """Drained, it leaves with its state; the emptied nodes are renewed, and take it again."""
    workers = platform.workers()
    platform.up()
    job = platform.call(lambda c: c.job("lasts")).view
    platform.call(lambda c: c.drain("node-0"))
    wait_until(lambda: not set(platform.workers().values()) & set(workers.values()), 60, "the old workers leave")
    wait_until(lambda: states(platform) == {"node-0": "drained", "node-1": "ready"}, 60, "the nodes are renewed")
    platform.call(lambda c: c.uncordon("node-0"))
    wait_until(lambda: platform.view(job.id).state == "running", 60, "it runs on the new nodes")
    platform.hurry(job.id)
    platform.wait_for_end(job.id)
    after = platform.view(job.id)
    assert (after.state, after.preemptions) == ("succeeded", 1)
    log = "".join(line.text for line in platform.call(lambda c: list(c.logs(job.id))))
    assert log.count("from step 0 (start)") == 2, "only the first generation began at 0"
    same_curve(platform.losses(job.id), undisturbed(platform))


def test_a_gang_that_breaks_on_older_nodes_goes_on_on_new_ones(platform: Crashable) -> None:
    workers = platform.workers()
    platform.up()
    job = platform.call(lambda c: c.job("lasts")).view
    kill(workers[sorted(workers)[-1]])
    wait_until(lambda: len(platform.workers()) == 2 and not {*platform.workers().items()} & {*workers.items()}, 90,
               "both workers are new")  # fmt: skip
    assert set(states(platform).values()) == {"ready"}
    platform.hurry(job.id)
    platform.wait_for_end(job.id)
    assert platform.view(job.id).state == "succeeded"
    same_curve(platform.losses(job.id), undisturbed(platform))


def test_the_old_code_is_of_another_protocol(old_code: Path) -> None:
    """Else these tests would test nothing."""
    assert "PROTOCOL" not in (old_code / "fairlead" / "wire.py").read_text()
    assert wire.PROTOCOL > 1
