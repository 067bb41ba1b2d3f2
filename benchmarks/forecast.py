"""How far off expected starts are: each job is told when it will start as it is submitted, and then one looks.

``python -m benchmarks.forecast`` asks on published traces in our simulator and on a running platform. The peer is what
a queue's length says: the work that is there already over all devices. The traces are looked for in the folder that
FAIRLEAD_TRACES names.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.platform import PROGRAMS, Platform, platform, wait_until
from benchmarks.reporter import Bench, main
from fairlead.scheduling.forecast import forecast
from fairlead.scheduling.job_speed import efficient_speed, expected_work_left
from fairlead.scheduling.market import Market
from fairlead.scheduling.state import ClusterState, Round
from fairlead.simulation.clusters import cluster
from fairlead.simulation.engine import Settings, simulate
from fairlead.simulation.generated_workloads import multi_tenant, one_failure
from fairlead.simulation.outcome import Outcome, percentile
from fairlead.simulation.trace import Trace
from fairlead.simulation.trace_reader import read_trace

NAIVE = "work ahead / devices"
LIVE_NODES = 4
COMES_UP_S = 3.0
"""Whoever runs within this time has not waited: so long a gang may take to come up on a busy machine."""

GAP_S = 1.5
"""Between two live jobs on average: a little faster than four nodes can serve them, so that a queue builds up."""


@dataclass(frozen=True, slots=True)
class Told:
    """What one job was told as it came, by the forecast and by the length of the queue."""

    asked_s: float
    played_s: float | None
    naive_s: float


@dataclass(slots=True)
class Asked:
    """A policy that is asked about every newcomer."""

    policy: Callable[[ClusterState], Round] = field(default_factory=Market)
    told: dict[str, Told] = field(default_factory=dict)
    cpu_s: list[float] = field(default_factory=list)

    def __call__(self, state: ClusterState) -> Round:
        made = self.policy(state)
        fresh = [job.id for job in state.jobs if job.id not in self.told]
        if fresh:
            begun_s = time.process_time()
            found = forecast(state, self.policy, first=made)
            self.cpu_s.append(time.process_time() - begun_s)
            by_length = naive(state)
            for name in fresh:
                self.told[name] = Told(state.now_s, found.start_s.get(name), by_length[name])
        return made


def naive(state: ClusterState) -> dict[str, float]:
    """In the order of submission: at once where enough is free, else when the work before it is done on all devices.

    Devices that elastic gangs hold beyond their minimum count as free, or this would be no peer at all.
    """
    devices = sum(node.devices for node in state.nodes if node.schedulable)
    free = devices - sum(min(len(job.seats), job.min_workers) for job in state.jobs)
    jobs = sorted(state.jobs, key=lambda job: (not job.seats, job.submitted_s, job.id))
    left = dict(zip((job.id for job in jobs), expected_work_left(state, jobs), strict=True))
    ahead_s, found = 0.0, {}
    for job in jobs:
        fits = not job.seats and job.min_workers <= free
        found[job.id] = state.now_s if job.seats or fits else state.now_s + ahead_s
        free -= job.min_workers if fits else 0
        alone_s = left[job.id] / max(efficient_speed(job), 1e-300)
        ahead_s += alone_s * max(len(job.seats), job.min_workers) / devices
    return found


@dataclass(frozen=True, slots=True)
class Errors:
    """How far off answers were, over some jobs, in seconds; and relative to how long they then waited."""

    off_s: Sequence[float]
    relative: Sequence[float]

    @classmethod
    def of(cls, answers: Sequence[tuple[float | None, float, float]]) -> Errors:
        """Of (told, happened, asked); who was told nothing is left out."""
        known = [(told, happened, asked) for told, happened, asked in answers if told is not None]
        off = sorted(abs(told - happened) for told, happened, _ in known)
        relative = sorted(abs(told - happened) / max(happened - asked, 1e-9) for told, happened, asked in known)
        return cls(off, relative)


def _rows(bench: Bench, name: str, told: dict[str, Told], started_s: dict[str, float], patience_s: float) -> None:
    """All jobs, and those among them that had to wait: for the others "now" is an easy answer."""
    here = [(told[job], started_s[job]) for job in sorted(told) if job in started_s]
    waited = [(one, happened) for one, happened in here if happened - one.asked_s > patience_s]
    ours = Errors.of([(one.played_s, happened, one.asked_s) for one, happened in waited])
    theirs = Errors.of([(one.naive_s, happened, one.asked_s) for one, happened in waited])
    every = Errors.of([(one.played_s, happened, one.asked_s) for one, happened in here])
    naively = Errors.of([(one.naive_s, happened, one.asked_s) for one, happened in here])
    for label, mine, peer in (
        ("p90 error, all jobs", percentile(every.off_s, 90), percentile(naively.off_s, 90)),
        ("median error, who waited", percentile(ours.off_s, 50), percentile(theirs.off_s, 50)),
        ("p90 error, who waited", percentile(ours.off_s, 90), percentile(theirs.off_s, 90)),
    ):
        bench.add(f"{name}: {label}", mine, "s", peer=NAIVE, peer_value=peer, target="ratio < 1")
    if waited:
        bench.add(f"{name}: median error / wait", percentile(ours.relative, 50), "", peer=NAIVE,
                  peer_value=percentile(theirs.relative, 50), target="ratio < 1")  # fmt: skip
        waits = sorted(happened - one.asked_s for one, happened in waited)
        bench.note(f"{name}: {len(waited)} of {len(here)} jobs waited, half of them over {median(waits):,.0f} s; "
                   f"{len(waited) - len(ours.off_s)} were told nothing")  # fmt: skip


def _simulated(bench: Bench, name: str, trace: Trace, nodes: str | None, settings: Settings) -> None:
    asked = Asked()
    with bench.step(name):
        outcome: Outcome = simulate(trace, cluster(nodes) if nodes else trace.nodes, asked, settings)
    started_s = {job.id: job.started_s for job in outcome.jobs}
    _rows(bench, name, asked.told, started_s, trace.round_s / 2)
    bench.add(f"{name}: cpu of one answer, p90", 1e3 * percentile(sorted(asked.cpu_s), 90), "ms")


# ------------------------------------------------------------ on a running platform


@dataclass(slots=True)
class Crowd:
    """Short jobs that come one after the other, each told when it will start just before it is handed in."""

    running: Platform
    rng: random.Random = field(default_factory=lambda: random.Random(5))
    lengths: dict[str, tuple[float, int]] = field(default_factory=dict)  # what each said it takes, and its workers
    told: dict[str, Told] = field(default_factory=dict)

    def hand_in(self) -> None:
        said_s, workers = self.rng.uniform(3.0, 9.0), self.rng.choice((1, 1, 1, 2))
        takes_s = said_s * self.rng.uniform(0.8, 1.25)  # nobody knows it exactly
        spec = {"name": "short", "tenant": "bench", "command": ["sleep", f"{takes_s:.2f}"], "workers": workers,
                "takes": f"{said_s:.0f}s"}  # fmt: skip
        now_s, by_length_s = time.time(), self._by_length(workers)
        answer = self.running.client.dry_run(spec, folder=PROGRAMS)
        job = self.running.client.submit(spec, folder=PROGRAMS)
        self.lengths[job.id] = said_s, workers
        self.told[job.id] = Told(now_s, answer.expected_start_s, by_length_s)

    def _by_length(self, workers: int) -> float:
        now_s, ahead_s, free = time.time(), 0.0, LIVE_NODES
        for view in self.running.client.page(state="active", limit=1000).items:
            said_s, gang = self.lengths[view.id]
            left_s = said_s if view.started_s is None else max(0.0, said_s - (now_s - view.started_s))
            ahead_s += left_s * gang / LIVE_NODES
            free -= gang
        return now_s if free >= workers else now_s + ahead_s

    def started_s(self) -> dict[str, float]:
        """When each first ran, once all are done."""
        client = self.running.client
        wait_until(lambda: client.page(state="active", limit=1).total == 0, 600.0, "the end of all jobs", every_s=0.5)
        views = client.page(state="ended", limit=1000).items
        return {view.id: view.started_s for view in views if view.started_s is not None}


def _live(bench: Bench) -> None:
    count = 8 if bench.quick else 24
    with platform(str(LIVE_NODES)) as running, bench.step(f"{count} jobs on {LIVE_NODES} live nodes"):
        crowd = Crowd(running)
        for _ in range(count):
            crowd.hand_in()
            time.sleep(crowd.rng.expovariate(1.0 / GAP_S))
        _rows(bench, "live", crowd.told, crowd.started_s(), COMES_UP_S)


def run(bench: Bench) -> None:
    """How far off expected starts are, against the length of the queue."""
    folder = Path(os.environ.get("FAIRLEAD_TRACES", "traces"))
    for name, file, nodes in (
        ("shockwave 120", "shockwave/120_*.trace", None),
        ("gavel 96", "gavel/max_min_fairness.trace", "8xv100,16xp100,24xk80"),
    ):
        found = sorted(folder.glob(file))
        if found:
            _simulated(bench, name, read_trace(found[0]), nodes, Settings())
        else:
            bench.note(f"{name}: no trace {file} in FAIRLEAD_TRACES")
    tenants = 4 if bench.quick else 10
    _simulated(bench, f"{tenants} tenants", multi_tenant(tenants), None, Settings(outages=one_failure()))
    _live(bench)


if __name__ == "__main__":
    main("forecast", run, peers=("numpy",))
