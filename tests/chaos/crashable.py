"""A real platform whose parts can be killed at any moment, and brought back."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from fairlead import Client
from fairlead.errors import Unavailable
from fairlead.sdk.jobs import Job
from fairlead.views.jobs import JobView
from tests import nursery
from tests.waiting import until as wait_until

__all__ = ["PROGRAMS", "Crashable", "alive", "kill", "same_curve", "wait_until"]

T = TypeVar("T")
PROGRAMS = Path(__file__).parent / "programs"


class Crashable:
    """One platform with a home of its own."""

    def __init__(self, home: Path, nodes: str, store: str | None = None) -> None:
        self.home = home
        self.nodes = nodes
        self.store = store
        self.failpoints: list[str] = []  # where the control plane is to die next, and after that
        self.tries = 1  # of the test that runs: what it submits at its second try are other jobs
        self._client: Client | None = None

    # ------------------------------------------------------------ life

    def up(self) -> None:
        """Start the control plane, to die at the first of the failpoints; one at which it dies on the way is passed."""
        while not self._up():
            self.failpoints.pop(0)

    def _up(self) -> bool:
        environment = {k: v for k, v in os.environ.items() if k not in ("FAIRLEAD_FAILPOINT", "FAIRLEAD_URL")}
        environment |= {"FAIRLEAD_VALIDATE": "1"}
        if self.failpoints:
            environment["FAIRLEAD_FAILPOINT"] = self.failpoints[0]
        words = ["up", "--home", str(self.home), "--port", "0", "--nodes", self.nodes, "--detach"]
        words += ["--store", self.store] if self.store else []
        done = nursery.fairlead(*words, environment=environment)
        assert done.code == 0 or self.failpoints, done.err
        self._client = None
        return done.code == 0

    def up_again(self) -> None:
        """If the control plane died, it was where it had to: start it to die at the next of the failpoints."""
        if not self.control_lives():
            del self.failpoints[:1]
            self.up()

    def down(self) -> None:
        done = nursery.fairlead("down", "--home", str(self.home), environment=os.environ)
        assert done.code == 0, done.err

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = Client(home=self.home, timeout_s=30.0)
        return self._client

    @property
    def control_pid(self) -> int:
        return int(json.loads((self.home / "profile.json").read_text())["pid"])

    def control_lives(self) -> bool:
        return alive(self.control_pid)

    def _answers(self) -> bool:
        try:
            return bool(self.client.health())
        except Unavailable:
            return False

    def call(self, what: Callable[[Client], T]) -> T:
        """Ask the platform, starting it again as often as it turns out to be dead."""
        for _ in range(4):
            try:
                return what(self.client)
            except Unavailable:
                wait_until(lambda: not self.control_lives() or self._answers(), 60, "the control plane answers or dies")
                self.up_again()
        return what(self.client)

    # ------------------------------------------------------------ what can be killed

    def node_records(self) -> dict[str, dict[str, Any]]:
        records = {}
        for path in self.home.glob("run/node-*.json"):
            try:
                records[path.stem] = json.loads(path.read_text())
            except (ValueError, FileNotFoundError):
                continue  # it is being written anew
        return records

    def workers(self, job: str | None = None) -> dict[str, int]:
        """``job/worker`` -> process id, of those that live."""
        found = {
            name: int(worker["process"]["pid"])
            for record in self.node_records().values()
            for name, worker in record["workers"].items()
        }
        return {n: pid for n, pid in found.items() if alive(pid) and (job is None or n.startswith(f"{job}/"))}

    def node_managers(self) -> dict[str, int]:
        found = {name: int(record["process"]["pid"]) for name, record in self.node_records().items()}
        return {name: pid for name, pid in found.items() if alive(pid)}

    # ------------------------------------------------------------ work

    def submit(self, what: Any, key: str, **fields: Any) -> Job:
        """The same key again is the same job, but for the second try of a test that failed."""
        key = f"{key}-{self.tries}"
        return self.call(lambda c: c.submit(what, key=key, **fields))

    def train(
        self, name: str, tenant: str = "alpha", workers: str = "1:2", plan: str | None = None, **params: Any
    ) -> Job:
        """Submit the small network of ``programs/train.py``; the same name again is the same job.

        Without a ``plan`` the planner chooses, and may choose one process: on a busy machine more gain nothing.
        """
        fields = {"name": name, "tenant": tenant, "workers": workers, "params": params, "plan": plan}
        return self.submit("train.py:training", name, folder=PROGRAMS, **fields)

    def hurry(self, job: str) -> None:
        """Let the rest of this job take no time."""
        output = self.home / "jobs" / job / "output"
        wait_until(output.is_dir, 60, f"{job} has begun")
        (output / "hurry").touch()

    def state(self, job: str) -> str:
        return self.view(job).state

    def view(self, job: str) -> JobView:
        return self.call(lambda c: c.job(job).view)

    def ended(self, job: str) -> bool:
        return self.state(job) in ("succeeded", "failed", "cancelled")

    def losses(self, job: str) -> dict[int, float]:
        return {int(row["step"]): row["loss"] for row in self.call(lambda c: c.metrics(job))}

    def wait_for_end(self, job: str, timeout_s: float = 60) -> None:
        """Until the job has ended; if it does not, the error tells its whole story."""
        try:
            wait_until(lambda: self.ended(job), timeout_s, f"{job} ends")
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.story(job)}") from None

    def story(self, job: str) -> str:
        """All that is known of a job: for the error of a test that waited for it in vain."""
        events = "\n".join(f"{e.time_s:.2f} {e.kind} {e.text}" for e in self.call(lambda c: list(c.events(limit=200))))
        words = "\n".join(f"{line.worker}: {line.text}" for line in self.call(lambda c: list(c.logs(job))))
        detail = self.call(lambda c: c.detail(job)).model_dump_json(indent=1)
        own = "".join(f"== {path.name}\n{path.read_text()[-2000:]}\n" for path in sorted(self.home.glob("logs/*.log")))
        return f"{detail}\n{events}\n{words}\n{json.dumps(self.node_records(), indent=1)}\n{own}"

    def log(self) -> str:
        return (self.home / "logs" / "control.log").read_text()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the second: gone between opening and reading
        return False


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    wait_until(lambda: not alive(pid), 60, f"process {pid} is gone")


def same_curve(left: dict[int, float], right: dict[int, float], tolerance: float = 1e-4) -> None:
    """Both have every step, and the same loss at each."""
    assert sorted(left) == sorted(right)
    worst = max(abs(left[step] - right[step]) for step in left)
    assert worst < tolerance, f"the curves differ by {worst}"
