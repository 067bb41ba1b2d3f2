"""The controller with thousands of live gangs on hollow agents: the CPU that it takes of its own."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import structlog
from sqlalchemy import Connection

from benchmarks.hollow_agents import BATCH, DEVICES, LASTS, HollowAgents
from benchmarks.reporter import Bench, main
from fairlead import wire
from fairlead.cluster import Member
from fairlead.control.reconcile.loop import Controller
from fairlead.control.records import Generation, GenerationPhase, Job, JobPhase
from fairlead.control.store import generations, jobs, tenants
from fairlead.control.store.engine import Store
from fairlead.specs import TenantSpec

GANGS, FEW = 2000, 200
WORKERS = 2  # of each gang
TEAMS = 10
EVERY_S = 10.0
AT_ONCE = 500  # gangs written in one transaction
STARTED = 10  # gangs that are ended and started beside those that run
SETTLE_S = 20.0


def run(bench: Bench) -> None:
    """CPU of the controller with 2,000 live gangs that report every 10 s, and of each gang that starts beside them."""
    seconds = 30.0 if bench.quick else 60.0
    gangs = FEW * 2 if bench.quick else GANGS
    with bench.step(f"{FEW} gangs"):
        few = asyncio.run(measured(FEW, seconds))
    with bench.step(f"{gangs} gangs"):
        many = asyncio.run(measured(gangs, seconds))
    bench.add(f"controller, {FEW} live gangs", few.percent, "% core")
    bench.add(f"controller, {gangs} live gangs", many.percent, "% core", target="< 10")
    bench.add("same, per gang", many.percent / gangs * 1e3, "m% core", peer=f"with {FEW} gangs",
              peer_value=few.percent / FEW * 1e3, target="ratio <= 1.3")  # fmt: skip
    bench.add("a report is stored after, p50", many.stored_s[0] * 1e3, "ms", peer=f"with {FEW} gangs",
              peer_value=few.stored_s[0] * 1e3)  # fmt: skip
    bench.add("same, p99", many.stored_s[1] * 1e3, "ms", peer=f"with {FEW} gangs", peer_value=few.stored_s[1] * 1e3,
              target="<= 3000")  # fmt: skip
    bench.add("taking over, per gang", many.takeover_ms, "CPU ms", peer=f"with {FEW} gangs", peer_value=few.takeover_ms)
    bench.add("a gang started and ended beside", many.start_ms, "CPU ms", peer=f"with {FEW} gangs",
              peer_value=few.start_ms)  # fmt: skip
    bench.add("submission to running, p50", many.start_s * 1e3, "ms", peer=f"with {FEW} gangs",
              peer_value=few.start_s * 1e3)  # fmt: skip
    bench.add("resident memory", many.memory_mb, "MB")
    bench.add("hollow agents, not counted", many.agents_percent, "% core")
    bench.note(
        f"gangs of {WORKERS} on nodes of {DEVICES}; each worker reports every {EVERY_S:g} s, each node tells its use "
        f"every second: {many.events_per_s:.0f} events/s of workers; agents and controller share one process"
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """What so many gangs cost."""

    percent: float
    agents_percent: float
    takeover_ms: float
    start_ms: float
    start_s: float
    events_per_s: float
    stored_s: tuple[float, float]  # from what a worker says to its acknowledgement, p50 and p99
    memory_mb: float


async def measured(count: int, seconds: float) -> Figures:
    """Take over so many gangs, watch them for a while, then end and start some."""
    agents = HollowAgents(-(-count * WORKERS // DEVICES) + STARTED * WORKERS // DEVICES + 1, EVERY_S)
    with tempfile.TemporaryDirectory(prefix="fairlead-hollow-") as folder:
        store = Store.open(f"sqlite:///{Path(folder) / 'fairlead.db'}")
        epoch = await store.acquire_lease("hollow", 1e9)
        await _write(store, agents, count)
        begun_s = _cpu_s() - agents.own_cpu_s
        async with _led(store, agents, epoch or 0) as controller:
            await _taken_over(controller, count)
            takeover_s = _cpu_s() - agents.own_cpu_s - begun_s
            await asyncio.sleep(SETTLE_S)
            agents.waited_s.clear()
            cpu_s, own_s, told, since_s = _cpu_s(), agents.own_cpu_s, agents.told, time.monotonic()
            await asyncio.sleep(seconds)
            for_s = time.monotonic() - since_s
            own = (agents.own_cpu_s - own_s) / for_s
            percent, per_s = ((_cpu_s() - cpu_s) / for_s - own) * 100, (agents.told - told) / for_s
            waited = sorted(agents.waited_s) or [seconds]
            stored_s = waited[len(waited) // 2], waited[int(len(waited) * 0.99)]
            start_ms, start_s = await _beside(store, agents, controller, percent)
        await store.close()
    memory_mb = psutil.Process().memory_info().rss / 1e6
    return Figures(percent, own * 100, takeover_s / count * 1e3, start_ms, start_s, per_s, stored_s, memory_mb)


def _cpu_s() -> float:
    """Of this process with all its threads, and of the planner's process."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    spent = own.ru_utime + own.ru_stime
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            times = child.cpu_times()
            spent += times.user + times.system
    return spent


# ------------------------------------------------------------ a platform that has been running


async def _write(store: Store, agents: HollowAgents, count: int) -> None:
    def teams(connection: Connection) -> None:
        for number in range(TEAMS):
            tenants.insert(connection, TenantSpec(name=f"team-{number}"))

    await store.write(teams)
    now_s = time.time()
    for begin in range(0, count, AT_ONCE):
        numbers = range(begin, min(begin + AT_ONCE, count))

        def work(connection: Connection, numbers: Sequence[int] = numbers) -> None:
            for number in numbers:
                _running(connection, agents, number, now_s)

        await store.write(work)


def _job(number: int, now_s: float, **changes: object) -> Job:
    name = f"hollow-{number:05}"
    base = {
        "id": name, "tenant": f"team-{number % TEAMS}", "name": name, "phase": JobPhase.QUEUED, "submitted_s": now_s,
        "submitted_by": "tok", "min_workers": WORKERS, "max_workers": WORKERS, "demand": {"cpu": 4.0},
        "device_type": None, "priority": 0, "elastic": True, "training": True, "retries": 0, "since_s": now_s,
    }  # fmt: skip
    return Job(**(base | changes))  # type: ignore[arg-type]


def _running(connection: Connection, agents: HollowAgents, number: int, now_s: float) -> None:
    """A gang that has been running for an hour."""
    since_s, done = now_s - 3600.0, 3600
    seats = [(f"w{rank}", f"node-{seat // DEVICES:04}", seat % DEVICES)
             for rank, seat in enumerate(range(number * WORKERS, (number + 1) * WORKERS))]  # fmt: skip
    job = _job(number, since_s, phase=JobPhase.RUNNING, started_s=since_s, generation=1, next_worker=WORKERS,
               step=done, total_steps=LASTS, batch_size=BATCH, samples_per_s=float(BATCH),
               speeds={WORKERS: float(BATCH)})  # fmt: skip
    jobs.insert(connection, job, {"name": job.name}, {}, None, "digest")
    members = tuple(Member(worker, rank, node, device) for rank, (worker, node, device) in enumerate(seats))
    generations.insert(connection, Generation(
        job.id, 1, GenerationPhase.RUNNING, members, "started", "it fits", since_s, running_s=since_s, first_step=1,
        metered_s=now_s, rendezvous=f"hollow-{number} 127.0.0.1:{16_384 + number}",
    ))  # fmt: skip
    agents.adopt(job.id, 1, seats, done)


def _order(connection: Connection, job: Job) -> wire.WorkerSpec:
    return wire.WorkerSpec(job.id, job.tenant, None, "train.py:training", None, {}, {}, None, None, 1.0)


@asynccontextmanager
async def _led(store: Store, agents: HollowAgents, epoch: int) -> AsyncIterator[Controller]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    gc.freeze()  # as a platform does when it has started
    await agents.open(epoch)
    controller = Controller(store, agents, _order)
    running = asyncio.create_task(controller.run())
    try:
        yield controller
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await agents.close()


async def _taken_over(controller: Controller, count: int) -> None:
    while sum(map(bool, controller.gang_registry.workers.values())) < count or not controller.last_round.decided_s:
        await controller.wait_for_news(0.2)


async def _beside(store: Store, agents: HollowAgents, controller: Controller, percent: float) -> tuple[float, float]:
    """CPU milliseconds of a gang that is submitted, runs and ends, and how long it takes to run."""
    began_s, own_s, since_s = _cpu_s(), agents.own_cpu_s, time.monotonic()
    took = []
    for number in range(STARTED):
        job = _job(900_000 + number, time.time())

        def work(connection: Connection, job: Job = job) -> None:
            jobs.insert(connection, job, {"name": job.name}, {}, None, "digest")

        submitted_s = time.monotonic()
        await store.write(work)
        controller.nudge()
        await _in_phase(store, controller, job.id, JobPhase.RUNNING)
        took.append(time.monotonic() - submitted_s)
        agents.finish(job.id)
        await _in_phase(store, controller, job.id, JobPhase.SUCCEEDED)
    usual_s = percent / 100 * (time.monotonic() - since_s)
    spent_s = _cpu_s() - began_s - (agents.own_cpu_s - own_s) - usual_s
    return spent_s / STARTED * 1e3, statistics.median(took)


async def _in_phase(store: Store, controller: Controller, job_id: str, phase: JobPhase) -> None:
    until_s = time.monotonic() + 300.0
    while (await store.read(lambda connection: jobs.get(connection, job_id))).phase is not phase:  # type: ignore[union-attr]
        if time.monotonic() > until_s:
            raise TimeoutError(f"{job_id} is not {phase}")
        await controller.wait_for_news(0.05)


if __name__ == "__main__":
    main("hollow", run)
