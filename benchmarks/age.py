"""A platform that has seen 50,000 jobs beside one of 1,000: answers, CPU per job, idle cost, memory, disk."""

from __future__ import annotations

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Connection

from benchmarks.http_load import Ask, job_body, send
from benchmarks.platform import Platform, wait_until
from benchmarks.reporter import Bench, main
from fairlead.cluster import Member
from fairlead.control.records import Generation, GenerationPhase, Job, JobPhase, Usage
from fairlead.control.retention.pruner import Pruner
from fairlead.control.store import audit, events, generations, jobs, ledger, metrics, row_deletion, tenants
from fairlead.control.store.engine import Store
from fairlead.home import Home
from fairlead.specs import TenantSpec

YOUNG, OLD = 1_000, 50_000
DAYS = 40
TEAMS = ("bench", *(f"team-{number}" for number in range(7)))
NODES = 2
AT_ONCE = 200  # jobs to a transaction
WITH_LOGS = 10  # one job in so many left a log
DAY = 86400.0
MONTH = "shares of a month"


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured on one platform."""

    latency_ms: dict[str, float]
    first_s: float  # until the first answer of a platform that has just been started
    up_s: float
    down_s: float
    cpu_per_job_ms: float
    idle_percent: float
    memory_mb: float


def run(bench: Bench) -> None:
    """Latency, CPU per job, idle cost and memory of an old platform beside a young one, and the disk after a day."""
    old = 5_000 if bench.quick else OLD
    with aged(bench, YOUNG, DAYS * YOUNG / old) as young_home, aged(bench, old, DAYS) as old_home:
        with bench.step(f"a platform that has seen {YOUNG:,} jobs"):
            young = measured(bench, young_home)
        with bench.step(f"a platform that has seen {old:,} jobs"):
            found = measured(bench, old_home)
        with bench.step("a live day by the virtual clock"):
            before, after, cpu_s = live_day(old_home, 96 if bench.quick else 1440)
    peer = f"with {YOUNG:,} jobs"
    for name, value in found.latency_ms.items():
        if name == MONTH:  # a young platform has no month to show
            bench.add(f"{name}, p50", value, "ms", peer=peer, peer_value=young.latency_ms[name])
            continue
        _beside(bench, f"{name}, p50", value, young.latency_ms[name], "ms", peer, slack=2.0)
    _beside(bench, "control plane CPU per job", found.cpu_per_job_ms, young.cpu_per_job_ms, "ms", peer, slack=2.0)
    _beside(bench, "idle CPU", found.idle_percent, young.idle_percent, "% core", peer, slack=0.2)
    _beside(bench, "resident memory", found.memory_mb, young.memory_mb, "MB", peer)
    bench.add("up", found.up_s, "s", peer=peer, peer_value=young.up_s)
    bench.add("first answer after up", found.first_s, "s", peer=peer, peer_value=young.first_s, target="<= 0.5")
    bench.add("down", found.down_s, "s", peer=peer, peer_value=young.down_s, target="<= 2.0")
    bench.add("store after a day with 30d kept", after / 1e6, "MB", peer="before it", peer_value=before / 1e6,
              target="ratio <= 1.0")  # fmt: skip
    bench.add("pruning, CPU of that day", cpu_s, "s")
    bench.note(f"{old:,} jobs over {DAYS} days and {YOUNG:,} at the same rate, by the store's own functions; "
               "a figure is met within 1.3 times the young platform's, or within 2 ms of it")  # fmt: skip


def _beside(bench: Bench, name: str, value: float, young: float, unit: str, peer: str, slack: float = 0.0) -> None:
    most = max(1.3 * young, young + slack)
    bench.add(name, value, unit, peer=peer, peer_value=young, target=f"<= {most:.3f}")


# ------------------------------------------------------------ a platform of some age


@contextmanager
def aged(bench: Bench, count: int, days: float) -> Iterator[Home]:
    """A home in which so many jobs have run in so many days; removed afterwards."""
    home = Home(Path(tempfile.mkdtemp(prefix="fairlead-age-")))
    try:
        home.create()
        with bench.step(f"write {count:,} jobs"):
            begun_s = time.monotonic()
            asyncio.run(_write(home, count, days))
            bench.add(f"writing {count:,} jobs", time.monotonic() - begun_s, "s", target="<= 300")
        yield home
    finally:
        shutil.rmtree(home.root, ignore_errors=True)


async def _write(home: Home, count: int, days: float) -> None:
    store = Store.open(f"sqlite:///{home.database}")
    await store.acquire_lease("age", 1e9)

    def teams(connection: Connection) -> None:
        for name in TEAMS:
            tenants.insert(connection, TenantSpec(name=name))

    await store.write(teams)
    now_s = time.time()
    for begin in range(0, count, AT_ONCE):
        numbers = range(begin, min(begin + AT_ONCE, count))

        def work(connection: Connection, numbers: range = numbers) -> None:
            for number in numbers:
                ended = now_s - days * DAY * (1.0 - (number + 1) / (count + 1))
                live(connection, home, number, ended - 90.0, ended)

        await store.write(work)

    def prune(connection: Connection) -> None:
        """What the leader does a little at a time; here nobody has to be spared."""
        row_deletion.advance_marks(connection, now_s)
        while row_deletion.drop_lines(connection, 10_000) + row_deletion.drop_spans(connection, 10_000):
            pass

    await store.write(prune)
    await Pruner(store, home).sweep()
    await store.release_lease()
    await store.close()


def live(connection: Connection, home: Home, number: int, begun_s: float, ended_s: float) -> None:
    """All that the store ever learns of one job."""
    team, node = TEAMS[number % len(TEAMS)], f"node-{number % NODES}"
    job = Job(
        id=jobs.new_id("aged"), tenant=team, name="aged", phase=JobPhase.QUEUED, submitted_s=begun_s,
        submitted_by="token", min_workers=1, max_workers=2, demand={}, device_type=None, priority=0, elastic=True,
        training=True, retries=0,
    )  # fmt: skip
    spec = {"name": "aged", "tenant": team, "run": "train:train", "workers": "1:2", "params": {"rate": 0.1}}
    job, _ = jobs.insert(connection, job, spec, {"team": team}, f"key-{job.id}-{begun_s}", "digest")
    audit.append(connection, time_s=begun_s, actor="token", action="job.submit", target=job.id, tenant=team)
    members = (Member("w0", 0, node, 0),)
    generation = Generation(job.id, 1, GenerationPhase.PLANNED, members, "started", "starts", begun_s)
    generations.insert(connection, generation)
    for kind in ("job-submitted", "job-starting", "generation-running", "job-succeeded"):
        events.append(connection, time_s=begun_s, kind=kind, text=f"{job.id}: {kind}", tenant=team, job=job.id)
    jobs.update(connection, job.id, phase=JobPhase.RUNNING, started_s=begun_s + 1.0, generation=1)
    metrics.append(connection, job.id, 1, [{"step": step, "loss": 1.0 / step} for step in range(1, 20)])
    line = Usage(job.id, team, "token", 1, node, "cpu", 1, 1.0, begun_s, begun_s, 10.0)
    cuts = [begun_s + 15.0 * part for part in range(7)]
    ledger.append(connection, [replace(line, from_s=a, to_s=b) for a, b in pairwise(cuts)])
    generations.update(connection, job.id, 1, phase=GenerationPhase.ENDED, running_s=begun_s + 1.0, ended_s=ended_s,
                       outcome="finished", metered_s=ended_s)  # fmt: skip
    jobs.update(connection, job.id, phase=JobPhase.SUCCEEDED, finished_s=ended_s, step=19, total_steps=19,
                result={"metrics": {"accuracy": 0.9}})  # fmt: skip
    if number % WITH_LOGS == 0:
        logs = home.job(job.id) / "logs"
        logs.mkdir(parents=True)
        (logs / "w0.log").write_text("it said something\n")


class VirtualClock:
    """A clock that goes when it is told to."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def live_day(home: Home, minutes: int) -> tuple[int, int, float]:
    """A day in which jobs come and go, on a clock that goes as fast as it can: bytes before and after, and CPU seconds.

    Every tenant keeps what it has for 30 of the 40 days that the home holds.
    """
    clock = VirtualClock(time.time())

    async def day() -> tuple[int, int, float]:
        store = Store.open(f"sqlite:///{home.database}", clock=clock)
        await store.acquire_lease("age", 1e12)
        before = _bytes(home)
        keeps = {"retention": {"jobs": 30 * DAY}}
        await store.write(lambda connection: [tenants.update(connection, name, policy=keeps) for name in TEAMS])
        pruner, spent_s = Pruner(store, home, clock), 0.0
        for minute in range(minutes):
            clock.now_s += DAY / minutes
            await store.write(partial(live, home=home, number=minute, begun_s=clock() - 90.0, ended_s=clock()))
            begun_s = time.process_time()
            await pruner.clean_ended()
            await pruner.prune()
            spent_s += time.process_time() - begun_s
        await store.release_lease()
        await store.close()
        return before, _bytes(home), spent_s

    return asyncio.run(day())


def _bytes(home: Home) -> int:
    return sum(path.stat().st_size for path in home.root.glob(f"{home.database.name}*"))


# ------------------------------------------------------------ what it is like to use it


def measured(bench: Bench, home: Home) -> Figures:
    """Start a platform in this home, ask it what people ask, run some jobs, let it idle, and end it."""
    running = Platform(home.root, str(NODES))
    up_s = _seconds(running.up)
    try:
        first_s = _seconds(lambda: running.client.page(limit=20))
        running.warm(NODES)
        latency = _latency(bench, running)
        cpu_ms = _cpu_per_job(bench, running)
        idle = _idle(running, 10.0 if bench.quick else 30.0)
        memory = running.control.memory_info().rss / 1e6
    finally:
        down_s = _seconds(running.down)
    return Figures(latency, first_s, up_s, down_s, cpu_ms, idle, memory)


def _latency(bench: Bench, running: Platform) -> dict[str, float]:
    asks = 30 if bench.quick else 100
    profile, found = running.profile, {}
    for name, path in (
        ("queue", "/api/v1/jobs?limit=20"),
        ("queue of one tenant, all that ended", "/api/v1/jobs?limit=20&tenant=bench&state=ended"),
        ("report", "/api/v1/report"),
        ("shares of an hour", "/api/v1/shares?window_s=3600"),
        (MONTH, "/api/v1/shares?window_s=2592000"),
        ("tenants", "/api/v1/tenants"),
        ("usage of a day, by tenant", "/api/v1/usage?by=tenant&since_s=" + str(int(time.time() - DAY))),
        ("audit", "/api/v1/audit?limit=20&after=-20"),
        ("scrape", "/metrics"),
    ):
        load = send(Ask(profile["url"], profile["token"], "GET", path), asks, 1)
        if load.failed:
            bench.note(f"{path}: {load.failed} of {asks} requests failed")
        found[name] = load.quantile(0.5) * 1e3
    for node in running.client.nodes():
        running.client.cordon(node.name)
    load = send(Ask(profile["url"], profile["token"], "POST", "/api/v1/jobs", job_body("bench")), asks, 1)
    found["submission"] = load.quantile(0.5) * 1e3
    return found


def _cpu_per_job(bench: Bench, running: Platform) -> float:
    """Of the control plane, for the jobs that were submitted while no node took them."""
    waiting = running.client.page(limit=1, state="queued").total
    before_s = _cpu_s(running.control)
    for node in running.client.nodes():
        running.client.uncordon(node.name)
    wait_until(lambda: not running.client.page(limit=1, state="active").total, 300, "jobs to end", every_s=1.0)
    bench.details.setdefault("jobs run", []).append(waiting)
    return (_cpu_s(running.control) - before_s) / max(waiting, 1) * 1e3


def _idle(running: Platform, seconds: float) -> float:
    """The median of several stretches: one round of pruning falls into one of them."""
    shares = []
    for _ in range(3):
        before_s, begun = _cpu_s(running.control), time.monotonic()
        wait_until(lambda begun=begun: time.monotonic() > begun + seconds, seconds + 10, "time", every_s=1.0)  # type: ignore[misc]
        shares.append((_cpu_s(running.control) - before_s) / (time.monotonic() - begun) * 100)
    return statistics.median(shares)


def _cpu_s(process: psutil.Process) -> float:
    times: Any = process.cpu_times()
    return float(times.user + times.system)


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main("age", run)
