"""The course of the demonstration: submit more work than fits, kill a node, wait until all jobs have finished."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fairlead.agent.embedded.node_records import read_record
from fairlead.demo.participants import JOBS, JOBS_FOLDER, QUICK_SCALE, TENANTS, DemoJob, granted_folders
from fairlead.demo.platform import DemoPlatform
from fairlead.errors import StillRunning, Unavailable
from fairlead.home import Home
from fairlead.sdk.client import Client
from fairlead.sdk.jobs import ENDED
from fairlead.views.jobs import EventView, JobView, NodeView, TenantView

POLL_S = 0.4
TIMEOUT_S = 600.0
CALM_S = 1.5  # the node is killed only when no gang has changed for this long
MOVES = frozenset({"job-starting", "job-resizing", "job-preempted", "generation-running"})
LATE_FRACTION = 0.85  # with more than this done, a job may finish before its node is killed


@dataclass(frozen=True, slots=True)
class PlatformState:
    """The platform at one moment, as its API shows it."""

    time_s: float
    tenants: list[TenantView]
    jobs: list[JobView]
    nodes: list[NodeView]
    events: list[EventView]

    @property
    def finished(self) -> bool:
        return all(job.state in ENDED for job in self.jobs)

    def trainings(self) -> list[JobView]:
        """Trainings that make steps now."""
        return [job for job in self.jobs if job.state == "running" and job.total_steps and job.step]


@dataclass(frozen=True, slots=True)
class Kill:
    """The killed node, the job that ran on it, and the time."""

    node: str
    pid: int
    job: str
    time_s: float


@dataclass(slots=True)
class Scenario:
    """Drives the demonstration. ``headline`` says in one line what is happening."""

    platform: DemoPlatform
    quick: bool = False
    started_s: float = field(default_factory=time.time)
    headline: str = "starting"
    kill: Kill | None = None
    names: dict[str, str] = field(default_factory=dict)  # job id -> name
    grown: dict[str, int] = field(default_factory=dict)  # job id -> size, of jobs that grew into free devices
    whys: dict[str, dict[str, str]] = field(default_factory=dict)  # "growth", "preemption" -> job, answer of ``why``
    _tokens: dict[str, str] = field(default_factory=dict)
    _newest_event: int = 0
    _moved_s: float = 0.0

    def submit(self, admin: Client) -> None:
        """Create the tenants, then submit each job with its tenant's token."""
        self._tokens = {
            tenant.name: admin.create_tenant(
                tenant.name, weight=tenant.weight, sla=tenant.sla, policy={"folders": granted_folders()}
            ).token.token
            for tenant in TENANTS
        }
        for work in JOBS:
            if not work.when_busy:
                self._submit_job(work)

    def _submit_job(self, work: DemoJob) -> None:
        with self.platform.client(self._tokens[work.tenant]) as client:
            job = client.submit(work.spec(QUICK_SCALE if self.quick else 1.0), folder=JOBS_FOLDER)
            self.names[job.id] = work.name

    def run(self, admin: Client, show: Callable[[Scenario, PlatformState], None]) -> None:
        """Watch until every job has ended; submit the urgent job and kill a node on the way."""
        until_s = time.monotonic() + TIMEOUT_S
        while True:
            state = self.observe(admin)
            self._advance(state)
            self._ask_why(admin, state)
            show(self, state)
            if state.finished and len(self.names) == len(JOBS):
                return
            if time.monotonic() > until_s:
                unfinished = ", ".join(self.names[job.id] for job in state.jobs if job.state not in ENDED)
                raise StillRunning(f"not finished after {TIMEOUT_S:.0f} s: {unfinished}")
            time.sleep(POLL_S)

    def observe(self, admin: Client) -> PlatformState:
        events = list(admin.events(after=self._newest_event, limit=1000))
        self._newest_event = max((event.id for event in events), default=self._newest_event)
        jobs = sorted((job.view for job in admin.jobs()), key=lambda view: list(self.names).index(view.id))
        return PlatformState(time.time(), admin.tenants(), jobs, admin.nodes(), events)

    def _advance(self, state: PlatformState) -> None:
        for event in state.events:
            if event.kind in MOVES:
                self._moved_s = max(self._moved_s, event.time_s)
            if event.kind == "job-resizing" and event.facts.get("reason") == "spare-devices" and event.job:
                self.grown[event.job] = len(event.facts.get("seats", ()))
        if len(self.names) < len(JOBS) and self._all_busy(state):
            for work in JOBS:
                if work.when_busy:
                    self._submit_job(work)
        if self.kill is None and state.time_s - self._moved_s > CALM_S:
            victim = self._victim(state)
            if victim is not None:
                self._kill_node(state, victim)
        self.headline = self._headline(state)

    def _all_busy(self, state: PlatformState) -> bool:
        """True once every training makes steps, so that a new job finds no free device; or one has ended already."""
        training = state.trainings()
        return len(training) == sum(work.run is not None for work in JOBS) or any(j.state in ENDED for j in state.jobs)

    def _ask_why(self, admin: Client, state: PlatformState) -> None:
        """Store the answer of ``why`` about the first growth and the first preemption."""
        for event in state.events:
            grew = event.kind == "job-resizing" and event.facts.get("reason") == "spare-devices"
            what = "growth" if grew else "preemption" if event.kind == "job-preempted" else None
            if what is not None and event.job and what not in self.whys:
                said = admin.why(event.job).reason.text
                self.whys[what] = {"job": self.names[event.job], "event": event.text, "why": said}

    def _victim(self, state: PlatformState) -> JobView | None:
        """The training with survivors and most work left, once a job has grown into free devices."""
        training = state.trainings()
        settled = any(job.id in self.grown for job in training)
        late = any(job.step > LATE_FRACTION * job.total_steps for job in training)
        ended = any(job.state in ENDED for job in state.jobs)
        if not training or not ended or not (settled or late):
            return None
        return min(training, key=lambda job: (job.workers < 2, job.step / job.total_steps))

    def _kill_node(self, state: PlatformState, victim: JobView) -> None:
        """Kill (-9) the node manager of the gang's last worker; workers die with their node manager."""
        by_name: Mapping[str, NodeView] = {node.name: node for node in state.nodes}
        node = by_name[victim.nodes[-1]]
        record = read_record(Home(self.platform.home), node.name)
        if record is None:
            raise Unavailable(f"{node.name} runs {victim.name}, but its process is not recorded")
        os.kill(record.process.pid, signal.SIGKILL)
        self.kill = Kill(node.name, record.process.pid, victim.id, time.time())

    def _headline(self, state: PlatformState) -> str:
        running = [job for job in state.jobs if job.state not in ENDED]
        if not running:
            return "all jobs have ended"
        if self.kill is not None and not self._recovered(state):
            return f"{self.kill.node} was killed (kill -9 {self.kill.pid}): {self.names[self.kill.job]} recovers"
        if self.kill is not None:
            return f"{self.names[self.kill.job]} has recovered from the loss of {self.kill.node}"
        if self.grown:
            return "; ".join(f"{self.names[job]} grows to {size} workers" for job, size in self.grown.items())
        if "preemption" in self.whys and not self.kill:
            return f"{self.whys['preemption']['job']} was preempted by a job of higher priority, and resumes after it"
        if len(state.trainings()) == sum(work.run is not None for work in JOBS):
            return "all three tenants train; they want more devices than there are"
        if any(job.state in ENDED for job in state.jobs):
            return "a job has ended; its devices are free for others"
        if any(job.state == "stopping" for job in state.jobs):
            return "a job makes room for another"
        return "the first jobs are starting"

    def _recovered(self, state: PlatformState) -> bool:
        return any(job.id == self.kill.job and job.recoveries for job in state.jobs) if self.kill else False
