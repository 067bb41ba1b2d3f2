"""What jobs cost that do nothing, with real and with hollow agents, and what trainings cost that come and go."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import deque
from contextlib import closing
from pathlib import Path

import psutil

from benchmarks.hollow_platform import HollowPlatform, hollow_platform
from benchmarks.http_load import Ask, Load, send
from benchmarks.platform import PROGRAMS, Platform, platform, wait_until
from benchmarks.reporter import Bench
from fairlead import Client

NODES = 4
CONNECTIONS = 8
REAL, HOLLOW = 120, 600
TRAININGS = 20
TURN_S = 5.0  # one training ends and one begins so often
SETTLE_S = 15.0
_FROM_TO = "SELECT min(submitted_s), max(finished_s) FROM jobs WHERE submitted_s > ?"
_UNFINISHED = "SELECT count(*) FROM jobs WHERE phase NOT IN ('succeeded', 'failed', 'cancelled')"


def run(bench: Bench) -> None:
    """CPU per job, jobs per second, answers at half that rate, and percent of a core with 20 trainings."""
    with platform(str(NODES)) as running, bench.step("jobs that are `true`, real agents"):
        _real(bench, running)
    with hollow_platform(NODES, every_s=1.0) as hollow, bench.step("the same, hollow agents"):
        _hollow(bench, hollow)
    with hollow_platform(NODES, every_s=1.0) as hollow, bench.step(f"{TRAININGS} trainings"):
        _trainings(bench, hollow)


def _real(bench: Bench, running: Platform) -> None:
    ask = _ask(running.profile["url"], running.profile["token"])
    control, database, count = running.control, running.home / "fairlead.db", REAL // 3 if bench.quick else REAL
    _carried(ask, database, NODES)  # each node has started one
    before, agents_before = _cpu_s(control), _agents_s(running)
    per_s = _carried(ask, database, count)
    control_ms = (_cpu_s(control) - before) / count * 1e3
    agents_ms = (_agents_s(running) - agents_before) / count * 1e3
    bench.add("a job that is `true`, control plane CPU", control_ms, "ms", target="<= 12")
    bench.add("same, agents and workers", agents_ms, "ms", target="<= 37.5")
    bench.add("such jobs, submitted at once", per_s, "jobs/s", target=">= 12")
    before = _cpu_s(control)
    load = send(ask, count, CONNECTIONS, per_s / 2)
    _wait(database)
    bench.add("same, at half that rate, control plane CPU each", (_cpu_s(control) - before) / count * 1e3, "ms")
    _answered(bench, "real agents", load)


def _hollow(bench: Bench, hollow: HollowPlatform) -> None:
    ask, count = _ask(hollow.url, hollow.token), HOLLOW // 3 if bench.quick else HOLLOW
    _carried(ask, hollow.database, NODES)
    before = hollow.cpu_s()
    per_s = _carried(ask, hollow.database, count)
    bench.add("a job that is `true`, hollow agents, control plane CPU", (hollow.cpu_s() - before) / count * 1e3, "ms",
              target="<= 12")  # fmt: skip
    bench.add("such jobs, hollow agents", per_s, "jobs/s", target=">= 40")
    before = hollow.cpu_s()
    load = send(ask, count, CONNECTIONS, per_s / 2)
    _wait(hollow.database)
    bench.add("same, at half that rate, control plane CPU each", (hollow.cpu_s() - before) / count * 1e3, "ms")
    _answered(bench, "hollow agents", load)


def _answered(bench: Bench, agents: str, load: Load) -> None:
    bench.add(f"submission at half that rate, {agents}, p99", load.quantile(0.99) * 1e3, "ms", target="<= 100")
    if load.failed:
        bench.note(f"{load.failed} submissions were refused ({agents})")


def _trainings(bench: Bench, hollow: HollowPlatform) -> None:
    """Each reports every second; every few seconds the oldest ends and another begins."""
    client, number = Client(url=hollow.url, token=hollow.token), 0
    there: deque[str] = deque()

    def begin() -> None:
        nonlocal number
        number += 1
        spec = {"name": f"training-{number}", "tenant": "bench", "run": "steady:training", "workers": "1"}
        there.append(client.submit(spec, folder=PROGRAMS).id)

    def turn() -> None:
        hollow.loop.call_soon_threadsafe(hollow.agents.finish, there.popleft())
        begin()

    for _ in range(TRAININGS):
        begin()
    _rest(SETTLE_S)
    train = sum(job.state == "running" for job in client.page(state="active", limit=2 * TRAININGS).items)
    if train < TRAININGS:
        bench.note(f"only {train} of {TRAININGS} trainings ran when the measurement began")
    turns = 6 if bench.quick else 18
    before, begun_s = hollow.cpu_s(), time.monotonic()
    for _ in range(turns):
        turn()
        _rest(TURN_S)
    percent = (hollow.cpu_s() - before) / (time.monotonic() - begun_s) * 100
    bench.add(f"{TRAININGS} trainings, one starts and one ends every {TURN_S:g} s", percent, "% core", target="<= 8")


# ------------------------------------------------------------ what is asked and measured


def _ask(url: str, token: str) -> Ask:
    spec = {"name": "trivial", "tenant": "bench", "command": ["true"]}
    return Ask(url, token, "POST", "/api/v1/jobs", json.dumps(spec))


def _carried(ask: Ask, database: Path, count: int) -> float:
    """So many jobs a second from the first submission to the last end."""
    begun_s = time.time()
    load = send(ask, count, CONNECTIONS)
    _wait(database)
    with closing(sqlite3.connect(database, timeout=30.0)) as connection:
        first_s, last_s = connection.execute(_FROM_TO, (begun_s,)).fetchone()
    return float((count - load.failed) / (last_s - first_s))


def _wait(database: Path) -> None:
    def over() -> bool:
        with closing(sqlite3.connect(database, timeout=30.0)) as connection:
            return bool(connection.execute(_UNFINISHED).fetchone()[0] == 0)

    wait_until(over, 300, "all jobs have ended", every_s=0.1)


def _rest(seconds: float) -> None:
    until_s = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() > until_s, seconds + 10, "the measured time", every_s=0.2)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _agents_s(running: Platform) -> float:
    """Of the host, the node managers, the fork servers and all workers that they have seen end."""
    managers = [psutil.Process(int(record["process"]["pid"])) for record in running.node_records().values()]
    found = {process.pid: process for manager in managers for process in _family(manager)}
    spent = 0.0
    for process in found.values():
        try:
            times = process.cpu_times()
        except psutil.Error:  # it has just ended, and counts with its parent
            continue
        spent += times.user + times.system + times.children_user + times.children_system
    return spent


def _family(manager: psutil.Process) -> list[psutil.Process]:
    """Of the host, which has forked the manager; without one, of the manager."""
    host = manager.parent()
    first = manager if host is None or host.pid <= 1 else host
    return [first, *first.children(recursive=True)]
