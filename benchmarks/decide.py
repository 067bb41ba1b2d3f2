"""What a round of decisions costs: from a cluster state to whole gangs with seats and reasons, as the queue grows.

``python -m benchmarks.decide`` measures CPU seconds of ``scheduling.decide(state)``, end to end, both ways: as the
simulator asks (what a decision frees is given away at once) and as the live platform does. The first call of a process
is measured in a process of its own, as it finds no menu remembered; later ones carry the memory of the one before.
FAIRLEAD_PLOT names a file for the plot of the growth.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.reporter import Bench, main
from fairlead.cluster import DEVICE, Node
from fairlead.scheduling import decide
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.state import ClusterState, JobState, Resize, Start, TenantState

TYPES = {"a100": 1.0, "v100": 0.5, "t4": 0.25, "k80": 0.1}
SIZES = (1, 2, 4, 8, 16, 32, 64)
WIDTH = 8  # devices of a node
TENANTS = 20
NOW_S, ROUND_S = 86_400.0, 60.0

LARGE, SMALL = (1_000, 10_000, 2_000), (100, 1_000, 200)
"""Nodes, jobs that wait, jobs that run."""

GROWTH = ((100, 1_000, 200), (300, 3_000, 600), (1_000, 10_000, 2_000), (1_000, 30_000, 2_000), (1_000, 100_000, 2_000))


def state_of(nodes: int, queued: int, running: int, seed: int = 0) -> ClusterState:
    """A mixed cluster under load: four types, 20 tenants, every job a shape of its own, a tenth with deadlines."""
    rng = np.random.default_rng(seed)
    names = list(TYPES)
    machines = [Node(f"node-{at:05}", {DEVICE: float(WIDTH)}, names[at % len(names)]) for at in range(nodes)]
    room = {kind: [node.name for node in machines if node.device_type == kind for _ in range(WIDTH)] for kind in TYPES}
    jobs = []
    for at in range(queued + running):
        job = _job(at, rng)
        free = room[names[at % len(names)]]
        size = min(job.max_workers, 4 * job.min_workers)
        if at < running and len(free) >= size:
            seats = tuple(free.pop() for _ in range(size))
            ran_s = float(rng.uniform(60.0, 7_200.0))
            job = replace(job, seats=seats, ran_s={names[at % len(names)]: ran_s}, work_done=ran_s * size**0.8)
        jobs.append(job)
    tenants = [TenantState(f"tenant-{at:02}", float(1 + at % 4)) for at in range(TENANTS)]
    return ClusterState(NOW_S, machines, tenants, jobs, round_s=ROUND_S, at_once=True)


def rich_of(nodes: int, queued: int, running: int, seed: int = 0) -> ClusterState:
    """The same with all that makes a round dearer: cores and memory per worker, some more than goes with a device;
    zones and racks; a tree of tenants with five people each, guarantees, limits by type and quotas."""
    plain, rng = state_of(nodes, queued, running, seed), np.random.default_rng(seed + 1)
    machines = [
        replace(node, capacity={**node.capacity, "cpu": 64.0, "memory": 512e9},
                topology=(f"zone-{at // (nodes // 2 + 1)}", f"rack-{at // 8:03}"))
        for at, node in enumerate(plain.nodes)
    ]  # fmt: skip
    jobs = []
    for job in plain.jobs:
        memory = 120e9 if rng.random() < 0.1 else float(rng.choice([4e9, 16e9, 32e9, 64e9]))
        demand = {"cpu": float(rng.choice([1, 2, 4, 8])), "memory": memory}
        jobs.append(replace(job, demand=demand, person=f"person-{rng.integers(5)}"))
    tenants = [
        replace(tenant, parent=f"tenant-{at - at % 4:02}" if at % 4 else None,
                guarantee={"a100": float(nodes // 25)} if at % 5 == 1 else {},
                most={"t4": float(nodes)} if at % 7 == 2 else {}, quota=nodes if at % 9 == 3 else None)
        for at, tenant in enumerate(plain.tenants)
    ]  # fmt: skip
    return replace(plain, nodes=machines, jobs=jobs, tenants=tenants)


def _job(at: int, rng: np.random.Generator) -> JobState:
    least = int(rng.choice([1, 1, 1, 2, 4, 8]))
    most = least * int(rng.choice([1, 2, 4, 8]))
    power = rng.uniform(0.6, 1.0)
    base = np.array(SIZES) ** power * rng.lognormal(0.0, 1.0)
    speeds = {}
    for kind, speed in TYPES.items():
        near = base * speed ** rng.uniform(0.5, 1.5)
        speeds[kind] = (tuple(near.tolist()), tuple((near * 0.8).tolist()))
    work = float(base[0] * rng.lognormal(8.0, 1.5))
    due_s = NOW_S + float(rng.uniform(600.0, 86_400.0)) if rng.random() < 0.1 else None
    return JobState(
        f"job-{at:06}", f"tenant-{rng.integers(TENANTS):02}", NOW_S - float(rng.uniform(0.0, 7_200.0)), least, most,
        elastic=most > least, curve=SpeedCurve(SIZES, speeds), work_left=work if rng.random() < 0.8 else None,
        finish_by_s=due_s, restart_cost_s=float(rng.uniform(5.0, 60.0)),
        facts={"application": f"model-{rng.integers(40)}"},
    )  # fmt: skip


def shapes(state: ClusterState) -> int:
    """How many different jobs there are, as far as gangs and speeds go."""
    return len({(id(job.curve), job.min_workers, job.max_workers) for job in state.jobs})


def rounds(size: tuple[int, int, int], times: int, at_once: bool, rich: bool = False) -> list[float]:
    """CPU seconds of so many rounds in a row, each with the memory of the one before."""
    state, cost = replace((rich_of if rich else state_of)(*size), at_once=at_once), []
    for _ in range(times):
        begun_s = time.process_time()
        made = decide(state)
        cost.append(time.process_time() - begun_s)
        given = {one.job: one.seats for one in made.decisions if isinstance(one, Start | Resize)}
        gone = {one.job for one in made.decisions} - set(given)
        jobs = [replace(job, seats=() if job.id in gone else given.get(job.id, job.seats)) for job in state.jobs]
        state = replace(state, jobs=jobs, memory=made.memory, now_s=state.now_s + ROUND_S)
    return cost


def _in_a_fresh_process(
    size: tuple[int, int, int], times: int, at_once: bool = True, rich: bool = False
) -> list[float]:
    code = f"from benchmarks.decide import rounds; print(*rounds({size}, {times}, {at_once}, {rich}))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                           env={**os.environ, "OMP_NUM_THREADS": "1"})  # fmt: skip
    return [float(word) for word in found.stdout.split()]


def run(bench: Bench) -> None:
    """CPU seconds of one round of decisions, first and later ones."""
    times = 3 if bench.quick else 7
    for name, size, rich, unit, per, target in (
        ("1,000 nodes, 10,000 + 2,000 jobs", LARGE, False, "s", 1.0, "< 1"),
        ("100 nodes, 1,000 + 200 jobs", SMALL, False, "ms", 1e3, "< 50"),
        ("1,000 nodes, 10,000 + 2,000 rich jobs", LARGE, True, "s", 1.0, "< 1"),
        ("100 nodes, 1,000 + 200 rich jobs", SMALL, True, "ms", 1e3, "< 50"),
    ):
        for way, at_once in (("at once", True), ("live", False)):
            with bench.step(f"{name}, {way}"):
                cost = [value * per for value in _in_a_fresh_process(size, times, at_once, rich)]
            bench.add(f"{name}, {way}: first round", cost[0], unit, target=target)
            bench.add(f"{name}, {way}: later rounds", statistics.median(cost[1:]), unit, target=target)
    many, few = shapes(state_of(*LARGE)), shapes(state_of(*SMALL))
    bench.note(
        f"jobs that wait + jobs that run, {many:,} and {few:,} different shapes of them; four types of devices, "
        "20 tenants; a tenth has a deadline, a fifth does not say how long it is; rich: with cores and memory, racks, "
        "a tree of tenants with people, guarantees and limits"
    )
    grown = []
    for size in GROWTH[:3] if bench.quick else GROWTH:
        with bench.step(f"{size[0]:,} nodes, {size[1]:,} jobs wait"):
            cost = _in_a_fresh_process(size, 3)
        grown.append((size[1] + size[2], cost[0], statistics.median(cost[1:])))
        bench.add(f"{sum(size[1:]):,} jobs on {size[0]:,} nodes, at once", grown[-1][2], "s")
    if file := os.environ.get("FAIRLEAD_PLOT"):
        plot(grown, Path(file))


def plot(grown: list[tuple[int, float, float]], file: Path) -> None:
    """CPU seconds over the number of jobs, both logarithmic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    jobs, first, later = zip(*grown, strict=True)
    axes.loglog(jobs, first, "o--", label="first round of a process")
    axes.loglog(jobs, later, "o-", label="later rounds")
    axes.axhline(1.0, color="grey", linewidth=0.8, linestyle=":")
    axes.set(xlabel="jobs (up to 1,000 nodes, 8,000 devices)", ylabel="CPU seconds of a round")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    main("decide", run)
