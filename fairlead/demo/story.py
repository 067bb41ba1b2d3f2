"""What happens: submit more than fits, watch, kill a node in the middle, watch all of it finish."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fairlead.agent.embedded.node_records import read_record
from fairlead.demo.participants import JOBS, QUICK, TENANTS, WORK, DemoJob, granted
from fairlead.demo.platform import DemoPlatform
from fairlead.errors import StillRunning, Unavailable
from fairlead.home import Home
from fairlead.sdk.client import Client
from fairlead.sdk.jobs import ENDED
from fairlead.views.jobs import EventView, JobView, NodeView, TenantView

LOOK_EVERY_S = 0.4
WITHIN_S = 600.0
CALM_S = 1.5  # nothing has moved for so long: the kill is the only thing that happens then
MOVES = frozenset({"job-starting", "job-resizing", "job-preempted", "generation-running"})
TOO_LATE = 0.85  # a job that has done this much of its work may be over before its node is


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The platform at one moment, as its API tells it."""

    time_s: float
    tenants: list[TenantView]
    jobs: list[JobView]
    nodes: list[NodeView]
    news: list[EventView]

    @property
    def over(self) -> bool:
        return all(job.state in ENDED for job in self.jobs)

    def trainings(self) -> list[JobView]:
        """Jobs that make steps now."""
        return [job for job in self.jobs if job.state == "running" and job.total_steps and job.step]


@dataclass(frozen=True, slots=True)
class Kill:
    """The node that was killed, when, and whose it was."""

    node: str
    pid: int
    job: str
    time_s: float


@dataclass(slots=True)
class Story:
    """The state of the play. ``chapter`` is one line that says what is going on."""

    platform: DemoPlatform
    quick: bool = False
    started_s: float = field(default_factory=time.time)
    chapter: str = "starting"
    kill: Kill | None = None
    names: dict[str, str] = field(default_factory=dict)  # job id -> name
    grown: dict[str, int] = field(default_factory=dict)  # job id -> size, once it grew into room that appeared
    whys: dict[str, dict[str, str]] = field(default_factory=dict)  # growth, preemption -> job and what ``why`` answered
    _tokens: dict[str, str] = field(default_factory=dict)
    _newest_event: int = 0
    _moved_s: float = 0.0

    def submit(self, admin: Client) -> None:
        """Create the tenants; each then submits its own jobs with its own token."""
        self._tokens = {
            tenant.name: admin.create_tenant(
                tenant.name, weight=tenant.weight, sla=tenant.sla, policy={"folders": granted()}
            ).token.token
            for tenant in TENANTS
        }
        for work in WORK:
            if not work.later:
                self._hand_in(work)

    def _hand_in(self, work: DemoJob) -> None:
        with self.platform.client(self._tokens[work.tenant]) as client:
            job = client.submit(work.spec(QUICK if self.quick else 1.0), folder=JOBS)
            self.names[job.id] = work.name

    def play(self, admin: Client, show: Callable[[Story, Snapshot], None]) -> None:
        """Watch until every job has ended; kill a node on the way."""
        until_s = time.monotonic() + WITHIN_S
        while True:
            sight = self.look(admin)
            self._turn_page(sight)
            self._ask_why(admin, sight)
            show(self, sight)
            if sight.over and len(self.names) == len(WORK):
                return
            if time.monotonic() > until_s:
                unfinished = ", ".join(self.names[job.id] for job in sight.jobs if job.state not in ENDED)
                raise StillRunning(f"after {WITHIN_S:.0f} s there is still work left: {unfinished}")
            time.sleep(LOOK_EVERY_S)

    def look(self, admin: Client) -> Snapshot:
        news = list(admin.events(after=self._newest_event, limit=1000))
        self._newest_event = max((event.id for event in news), default=self._newest_event)
        jobs = sorted((job.view for job in admin.jobs()), key=lambda view: list(self.names).index(view.id))
        return Snapshot(time.time(), admin.tenants(), jobs, admin.nodes(), news)

    def _turn_page(self, sight: Snapshot) -> None:
        for event in sight.news:
            if event.kind in MOVES:
                self._moved_s = max(self._moved_s, event.time_s)
            if event.kind == "job-resizing" and event.facts.get("reason") == "spare-devices" and event.job:
                self.grown[event.job] = len(event.facts.get("seats", ()))
        if len(self.names) < len(WORK) and self._all_busy(sight):
            for work in WORK:
                if work.later:
                    self._hand_in(work)
        if self.kill is None and sight.time_s - self._moved_s > CALM_S:
            victim = self._victim(sight)
            if victim is not None:
                self._strike(sight, victim)
        self.chapter = self._chapter(sight)

    def _all_busy(self, sight: Snapshot) -> bool:
        """Whether every training makes steps, so that who comes now finds no room; or some are over already."""
        training = sight.trainings()
        return len(training) == sum(work.run is not None for work in WORK) or any(j.state in ENDED for j in sight.jobs)

    def _ask_why(self, admin: Client, sight: Snapshot) -> None:
        """What the platform answers about the first growth and the first preemption, while they are fresh."""
        for event in sight.news:
            grew = event.kind == "job-resizing" and event.facts.get("reason") == "spare-devices"
            what = "growth" if grew else "preemption" if event.kind == "job-preempted" else None
            if what is not None and event.job and what not in self.whys:
                said = admin.why(event.job).reason.text
                self.whys[what] = {"job": self.names[event.job], "event": event.text, "why": said}

    def _victim(self, sight: Snapshot) -> JobView | None:
        """A training with survivors and most work left, once a job has grown into free room."""
        training = sight.trainings()
        settled = any(job.id in self.grown for job in training)
        late = any(job.step > TOO_LATE * job.total_steps for job in training)
        ended = any(job.state in ENDED for job in sight.jobs)
        if not training or not ended or not (settled or late):
            return None
        return min(training, key=lambda job: (job.workers < 2, job.step / job.total_steps))

    def _strike(self, sight: Snapshot, victim: JobView) -> None:
        """kill -9 of the node manager under the gang's last worker: workers die with their node manager."""
        by_name: Mapping[str, NodeView] = {node.name: node for node in sight.nodes}
        node = by_name[victim.nodes[-1]]
        record = read_record(Home(self.platform.home), node.name)
        if record is None:
            raise Unavailable(f"{node.name} runs {victim.name}, but there is no record of its process")
        os.kill(record.process.pid, signal.SIGKILL)
        self.kill = Kill(node.name, record.process.pid, victim.id, time.time())

    def _chapter(self, sight: Snapshot) -> str:
        running = [job for job in sight.jobs if job.state not in ENDED]
        if not running:
            return "all work is done"
        if self.kill is not None and not self._recovered(sight):
            return f"{self.kill.node} was killed (kill -9 {self.kill.pid}): {self.names[self.kill.job]} has to recover"
        if self.kill is not None:
            return f"{self.names[self.kill.job]} has recovered from the loss of {self.kill.node}"
        if self.grown:
            return "; ".join(f"{self.names[job]} grows to {size} workers" for job, size in self.grown.items())
        if "preemption" in self.whys and not self.kill:
            return f"{self.whys['preemption']['job']} makes room for a job of higher priority, and goes on after it"
        if len(sight.trainings()) == sum(work.run is not None for work in WORK):
            return "all three tenants train; there is more demand than room"
        if any(job.state in ENDED for job in sight.jobs):
            return "a job has ended; its devices are free for the others"
        if any(job.state == "stopping" for job in sight.jobs):
            return "a job makes room for another"
        return "the first jobs are starting"

    def _recovered(self, sight: Snapshot) -> bool:
        return any(job.id == self.kill.job and job.recoveries for job in sight.jobs) if self.kill else False
