"""A deep queue from outside, over HTTP: why a job waits, a page of the queue, and looks ahead."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Connection

from benchmarks.http_load import Ask, job_body, send
from benchmarks.platform import Platform, wait_until
from benchmarks.reporter import Bench, main
from fairlead.control.identity.tokens import mint
from fairlead.control.records import Role
from fairlead.control.service.submission import new_job
from fairlead.control.store import jobs, tenants
from fairlead.control.store.engine import Store
from fairlead.home import Home
from fairlead.specs import TenantSpec, parse_job

JOBS = 10_000
TEAMS = ("bench", *(f"team-{number}" for number in range(7)))
NODES = 4
AT_ONCE = 200  # jobs to a transaction
SOME = 10  # jobs that are asked about


def run(bench: Bench) -> None:
    """Why, a page of the queue, forecasts and dry runs with 10,000 jobs in the queue, timed by a client."""
    count = 1_000 if bench.quick else JOBS
    home = Home(Path(tempfile.mkdtemp(prefix="fairlead-why-")))
    running = Platform(home.root, str(NODES))
    try:
        home.create()
        with bench.step(f"write {count:,} jobs"):
            asyncio.run(_write(home, count))
        running.up()
        try:
            with bench.step("all devices are taken"):
                ready = lambda: running.client.page(state="running", limit=1).total >= NODES  # noqa: E731
                wait_until(ready, 120, "jobs to run", 0.5)
            _ask(bench, running, count)
        finally:
            running.down()
    finally:
        shutil.rmtree(home.root, ignore_errors=True)


async def _write(home: Home, count: int) -> None:
    """Jobs that wait, of several tenants and sizes; the first of them will run for as long as this takes."""
    store = Store.open(f"sqlite:///{home.database}")
    await store.acquire_lease("why", 1e9)
    who, _ = mint(None, Role.ADMIN, "benchmark", None, time.time())
    await store.write(lambda connection: [tenants.insert(connection, TenantSpec(name=name)) for name in TEAMS])
    now_s = time.time()
    for begin in range(0, count, AT_ONCE):

        def work(connection: Connection, begin: int = begin) -> None:
            for number in range(begin, min(begin + AT_ONCE, count)):
                team = TEAMS[number % len(TEAMS)]
                size = 1 + number // len(TEAMS) % NODES
                spec = parse_job({"name": "deep", "tenant": team, "command": ["sleep", "86400"], "workers": size})
                tenant = tenants.get(connection, team)
                assert tenant is not None
                job = new_job(spec, tenant, who, now_s - 0.01 * (count - number))
                document = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
                jobs.insert(connection, job, document, {}, None, "digest")

        await store.write(work)
    await store.release_lease()
    await store.close()


def _ask(bench: Bench, running: Platform, count: int) -> None:
    asks = 30 if bench.quick else 200
    waiting = [job.id for job in running.client.page(state="queued", limit=1000).items]
    some = waiting[:: max(1, len(waiting) // SOME)][:SOME]
    queue = "/api/v1/jobs?state=active&order=queue&limit=100"
    _timed(bench, running, "why", [f"/api/v1/jobs/{job}/why" for job in some], asks, "<= 50")
    _timed(bench, running, "a page of the queue (100 jobs)", [queue], asks, "<= 30")
    _timed(bench, running, "one job", [f"/api/v1/jobs/{job}" for job in some], asks)
    _timed(bench, running, "why, with a forecast", [f"/api/v1/jobs/{job}/why?forecast=true" for job in some], SOME)
    _timed(bench, running, "a dry run", ["/api/v1/jobs/dry-run"], SOME, body=job_body("bench"))
    bench.add("resident memory of the control plane", running.control.memory_info().rss / 1e6, "MB")
    bench.note(f"{count:,} jobs of {len(TEAMS)} tenants wait for {NODES} devices; one client, one request at a time; "
               "CPU is the control plane's while it is asked, with its rounds")  # fmt: skip


def _timed(
    bench: Bench, running: Platform, name: str, paths: Sequence[str], asks: int, target: str | None = None,
    body: str | None = None,
) -> None:  # fmt: skip
    """The median and the tail of what a client waits, and what it costs the control plane."""
    profile, each, failed = running.profile, [], 0
    before_s = _cpu_s(running.control)
    with bench.step(name):
        for path in paths:
            ask = Ask(profile["url"], profile["token"], "GET" if body is None else "POST", path, body)
            load = send(ask, max(1, asks // len(paths)), 1)
            each += load.each_s
            failed += load.failed
    each.sort()
    bench.add(f"{name}, p50", each[len(each) // 2] * 1e3, "ms", target=target)
    bench.add(f"{name}, p99", each[min(len(each) - 1, int(0.99 * len(each)))] * 1e3, "ms")
    bench.add(f"{name}, CPU each", (_cpu_s(running.control) - before_s) / len(each) * 1e3, "ms")
    if failed:
        bench.note(f"{name}: {failed} of {len(each)} requests failed")


def _cpu_s(process: psutil.Process) -> float:
    times: Any = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main("why", run)
