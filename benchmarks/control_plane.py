"""The control plane with a thousand queued jobs: how fast it takes them in, answers and decides, and how it idles;
and what jobs that do nothing, and trainings that come and go, cost it."""

from __future__ import annotations

import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from benchmarks import trivial_jobs
from benchmarks.http_load import Ask, job_body, send
from benchmarks.platform import Platform, platform, wait_until
from benchmarks.reporter import Bench, main
from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.decide import decide
from fairlead.scheduling.state import ClusterState, JobState, TenantState

JOBS = 1000
CONNECTIONS = 8
NODES = 4
SCRIPTS = Path(sys.executable).parent


def run(bench: Bench) -> None:
    """Submit rate, queue, API latency, idle cost and command start-up, with 1,000 jobs in the queue."""
    idle_s = 15.0 if bench.quick else 45.0  # with a deep queue a round is held every 15 s: less shows one or none
    _commands(bench)
    _rounds(bench)
    with platform(str(NODES)) as running:
        with bench.step("idle, without jobs"):
            _idle(bench, running, idle_s, "no jobs")
        for node in running.client.nodes():
            running.client.cordon(node.name)
        with bench.step(f"submit {JOBS} jobs"):
            _submit(bench, running)
        with bench.step("read them"):
            _read(bench, running)
        with bench.step(f"idle, with {JOBS} queued"):
            _idle(bench, running, idle_s, f"{JOBS} queued")
    trivial_jobs.run(bench)


def _submit(bench: Bench, running: Platform) -> None:
    profile = running.profile
    ask = Ask(profile["url"], profile["token"], "POST", "/api/v1/jobs", job_body("bench"))
    before_s = _cpu_s(running.control)
    load = send(ask, JOBS, CONNECTIONS)
    spent_s = _cpu_s(running.control) - before_s
    stored = running.client.page(limit=1).total
    if load.failed or stored != JOBS:
        bench.note(f"{load.failed} of {JOBS} submissions were refused; {stored} are stored")
    peer = f"raw SQLite {sqlite3.sqlite_version}, fsync per row"
    bench.add(f"submit over HTTP, {CONNECTIONS} connections", load.per_s, "jobs/s", target=">= 200", peer=peer,
              peer_value=_sqlite_per_s(running.home))  # fmt: skip
    bench.add("submit, p99", load.quantile(0.99) * 1e3, "ms")
    bench.add("submit, control plane CPU each", spent_s / JOBS * 1e3, "ms")


def _sqlite_per_s(folder: Path, rows: int = 500) -> float:
    """Durable inserts per second without anything around them: the same file system, journal and fsync."""
    file = Path(tempfile.mkdtemp(dir=folder)) / "peer.db"
    database = sqlite3.connect(file, isolation_level=None)
    try:
        for pragma in ("journal_mode=WAL", "synchronous=FULL"):
            database.execute(f"PRAGMA {pragma}")
        database.execute("CREATE TABLE jobs (id TEXT PRIMARY KEY, spec TEXT)")
        begun_s = time.perf_counter()
        for number in range(rows):
            database.execute("INSERT INTO jobs VALUES (?, ?)", (f"queued-{number}", job_body("bench")))
        return rows / (time.perf_counter() - begun_s)
    finally:
        database.close()
        shutil.rmtree(file.parent)


def _read(bench: Bench, running: Platform) -> None:
    profile = running.profile
    asks = 50 if bench.quick else 300
    for name, path in (("GET /jobs?limit=100", "/api/v1/jobs?limit=100"), ("GET /jobs/JOB", _one_job(running))):
        load = send(Ask(profile["url"], profile["token"], "GET", path), asks, 1)
        bench.add(f"{name}, p50", load.quantile(0.5) * 1e3, "ms")
        bench.add(f"{name}, p99", load.quantile(0.99) * 1e3, "ms")
    load = send(Ask(profile["url"], profile["token"], "GET", "/api/v1/jobs?limit=1000"), max(5, asks // 20), 1)
    bench.add("GET /jobs?limit=1000, p50", load.quantile(0.5) * 1e3, "ms")
    queue = [SCRIPTS / "fairlead", "queue"]
    times = 3 if bench.quick else 7
    bench.add("fairlead queue", _wall_s(lambda: _call(queue, running), times), "s", target="< 0.5")
    bench.add("fairlead queue, CPU", min(_cpu_of(queue, running) for _ in range(times)), "s")
    bench.add("fairlead queue --json (all)", _wall_s(lambda: _call([*queue, "--json"], running), times), "s")


def _one_job(running: Platform) -> str:
    return f"/api/v1/jobs/{running.client.page(limit=1).items[0].id}"


def _idle(bench: Bench, running: Platform, seconds: float, when: str) -> None:
    """CPU and memory of a control plane that nobody asks anything, and of the node managers beside it."""
    control = running.control
    settled = time.monotonic() + 3.0  # what it still did about the last request is not idling
    wait_until(lambda: time.monotonic() > settled, 10, "quiet", every_s=0.5)
    others = [psutil.Process(record["process"]["pid"]) for record in running.node_records().values()]
    before, before_others = _cpu_s(control), sum(map(_cpu_s, others))
    begun = time.monotonic()
    until = begun + seconds
    wait_until(lambda: time.monotonic() > until, seconds + 10, "the measured time", every_s=1.0)
    elapsed = time.monotonic() - begun
    bench.add(f"idle CPU, {when}", (_cpu_s(control) - before) / elapsed * 100, "% core", target="< 2")
    nodes = (sum(map(_cpu_s, others)) - before_others) / elapsed * 100
    bench.add(f"same, {len(others)} node managers", nodes, "% core")
    bench.add(f"resident memory, {when}", control.memory_info().rss / 1e6, "MB", target="< 250")


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


# ------------------------------------------------------------ without a platform


def _commands(bench: Bench) -> None:
    """CPU rather than wall time, and the best of several: the machine's other work does not count."""
    times = 3 if bench.quick else 5
    with bench.step("--help"):
        own = min(_cpu_of([SCRIPTS / "fairlead", "--help"]) for _ in range(times))
        peer = min(_cpu_of([SCRIPTS / "torchrun", "--help"]) for _ in range(1 if bench.quick else 3))
    bench.add("fairlead --help, CPU", own, "s", target="< 0.3", peer="torchrun --help", peer_value=peer)


def _cpu_of(command: Sequence[object], running: Platform | None = None) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _call(command, running)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _call(command: Sequence[object], running: Platform | None) -> None:
    environment = running.environment if running else None
    subprocess.run([str(word) for word in command], env=environment, capture_output=True, check=True)


def _wall_s(work: Callable[[], object], times: int) -> float:
    """The median of several."""
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


def _rounds(bench: Bench) -> None:
    """The pure decision alone, on a full cluster, as the reconcile loop asks for it every few seconds."""
    for queued in (JOBS,) if bench.quick else (JOBS, 10 * JOBS):
        state = full_cluster(queued)
        taken = _wall_s(lambda state=state: decide(state), 5)  # type: ignore[misc]
        bench.add(f"decide, 100 nodes full, {queued:,} queued", taken * 1e3, "ms")


def full_cluster(queued: int, nodes: int = 100) -> ClusterState:
    """A hundred nodes of four devices, all taken by elastic gangs of ten tenants, and a queue behind them."""
    capacity = {"cpu": 16.0, "memory": 64e9, DEVICE: 4.0}
    names = [f"node-{n:03}" for n in range(nodes)]
    tenants = [TenantState(f"tenant-{n}", weight=1.0 + n % 3) for n in range(10)]
    running = [
        JobState(f"running-{n:03}", tenants[n % 10].name, submitted_s=float(n), min_workers=1, max_workers=8,
                 seats=(name,) * 4, since_s=100.0, elastic=True, speeds={4: 1000.0}, remaining_samples=1e6)
        for n, name in enumerate(names)
    ]  # fmt: skip
    waiting = [
        JobState(f"waiting-{n:05}", tenants[n % 10].name, submitted_s=500.0 + n, min_workers=1 + n % 4,
                 max_workers=4 + n % 4, elastic=True)
        for n in range(queued)
    ]  # fmt: skip
    return ClusterState(1000.0, [Node(name, capacity) for name in names], tenants, [*running, *waiting])


if __name__ == "__main__":
    main("control_plane", run)
