"""A real platform of its own for a measurement: started, asked, hurt and ended like anybody's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from fairlead import Client
from fairlead.demo.participants import granted_folders
from fairlead.sdk.jobs import Job

PROGRAMS = Path(__file__).parent / "programs"
POLL_S = 0.005


class Platform:
    """One embedded platform in a folder of its own."""

    def __init__(self, home: Path, nodes: str, isolation: str | None = None) -> None:
        self.home = home
        self.nodes = nodes
        self._isolation = [] if isolation is None else ["--isolation", isolation]
        self._client: Client | None = None

    # ------------------------------------------------------------ life

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "fairlead.cli.main", *words]

    @property
    def environment(self) -> dict[str, str]:
        """For clients: this platform and no other."""
        others = ("FAIRLEAD_URL", "FAIRLEAD_TOKEN", "FAIRLEAD_FAILPOINT")
        return {k: v for k, v in os.environ.items() if k not in others} | {"FAIRLEAD_HOME": str(self.home)}

    def run(self, *words: str) -> str:
        """Run a fairlead command to its end; returns what it printed."""
        done = subprocess.run(self.command(*words), env=self.environment, capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise RuntimeError(f"fairlead {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def up(self) -> None:
        self.run("up", "--port", "0", "--nodes", self.nodes, *self._isolation, "--detach")
        self._client = None

    def down(self) -> None:
        self.run("down")

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = Client(home=self.home, timeout_s=30.0)
        return self._client

    @property
    def profile(self) -> dict[str, Any]:
        profile: dict[str, Any] = json.loads((self.home / "profile.json").read_text())
        return profile

    @property
    def control(self) -> psutil.Process:
        return psutil.Process(int(self.profile["pid"]))

    # ------------------------------------------------------------ processes

    def node_records(self) -> dict[str, dict[str, Any]]:
        records = {}
        for path in self.home.glob("run/node-*.json"):
            try:
                records[path.stem] = json.loads(path.read_text())
            except (ValueError, FileNotFoundError):
                continue  # it is being written anew
        return records

    def worker_pids(self, job: str) -> dict[str, int]:
        """Worker -> process id, of those of the job that live."""
        found = {
            name.partition("/")[2]: int(worker["process"]["pid"])
            for record in self.node_records().values()
            for name, worker in record["workers"].items()
            if name.startswith(f"{job}/")
        }
        return {name: pid for name, pid in found.items() if psutil.pid_exists(pid)}

    def node_manager_pid(self, node: str) -> int:
        return int(self.node_records()[node]["process"]["pid"])

    def warm(self, nodes: int) -> None:
        """Wait until every node is ready to fork workers."""
        wait_until(lambda: sum(n.warm and n.state == "ready" for n in self.client.nodes()) >= nodes, 60, "warm nodes")

    # ------------------------------------------------------------ jobs

    def train(self, run: str, name: str, workers: str = "1", tenant: str = "bench", **params: Any) -> Job:
        """Submit one of the programs."""
        spec = {"name": name, "run": run, "tenant": tenant, "workers": workers, "params": params}
        return self.client.submit(spec, folder=PROGRAMS)

    def end(self, job: Job) -> None:
        """Cancel it and wait until its devices are free again."""
        if not job.refresh().ended:
            job.cancel()
            job.wait(30)


@contextmanager
def platform(nodes: str, isolation: str | None = None) -> Iterator[Platform]:
    """A running platform with a tenant named bench; ended and removed afterwards, whatever happens."""
    home = Path(tempfile.mkdtemp(prefix="fairlead-bench-"))
    made = Platform(home, nodes, isolation)
    try:
        made.up()
        made.client.create_tenant("bench", policy={"folders": granted_folders()})
        made.warm(len(made.client.nodes()))
        yield made
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever is impatient still leaves nothing behind
        try:
            made.down()
        finally:
            shutil.rmtree(home, ignore_errors=True)
            signal.signal(signal.SIGINT, before)


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str, every_s: float = POLL_S) -> None:
    until = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        time.sleep(every_s)


def kill(pid: int) -> float:
    """Kill it the hard way; returns the moment, in seconds since the epoch."""
    now_s = time.time()
    os.kill(pid, signal.SIGKILL)
    return now_s
