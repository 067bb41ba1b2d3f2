"""What a tenant notices of a neighbour that wants all processes, memory, disk, log or cores of the machine."""

from __future__ import annotations

import statistics
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from benchmarks.platform import PROGRAMS, platform, wait_until
from benchmarks.reporter import Bench, main, spread
from fairlead import Client
from fairlead.errors import Refused
from fairlead.sdk.jobs import Job

BOMBS = ("forks", "memory", "disk", "log", "cores")
NODES = "2x0.7"  # what is left of two cores is the platform's
GIVE_UP_S = 60.0


def run(bench: Bench) -> None:
    """Steps per second of a training beside each bomb, against the same training undisturbed before and after."""
    seconds, turns = (4.0, 1) if bench.quick else (5.0, 7)
    with platform(NODES) as running:
        admin = running.client
        token = admin.create_tenant("bomber", policy={"disk": 2 << 30, "processes": 512}).token.token
        bomber = Client(url=admin.url, token=token)
        fields = {"name": "victim", "tenant": "bench", "resources": {"cpu": 0.7}}
        victim = admin.submit(["python", "counts.py"], folder=PROGRAMS, **fields)
        counts = running.home / "jobs" / victim.id / "output" / "counts"
        wait_until(counts.exists, GIVE_UP_S, "the victim's first count")
        for bomb in BOMBS:
            with bench.step(f"{bomb}, {turns} times"):
                ratios = _beside(bomber, counts, bomb, seconds, turns)
            bench.add(f"steps/s beside a bomb of {bomb}", statistics.median(ratios), "of undisturbed", target=">= 0.95")
            if turns > 1:
                bench.add(f"same, middle half of {turns} turns", spread(ratios), "wide")
        bench.add("victim restarted or disturbed", float(victim.detail().recoveries), "times", target="<= 0")
        running.end(victim)
    bench.note("undisturbed: the same training in the same run, right before and right after each bomb; medians")
    bench.note(f"nodes {NODES}: each tenant on its own virtual node; bombs are restarted while the time runs")


def _beside(bomber: Client, counts: Path, bomb: str, seconds: float, turns: int) -> list[float]:
    """Rest and bomb by turns: each bomb is held against the rests on both sides of it."""
    rests, bombed = [_rate(counts, seconds)], []
    for _ in range(turns):
        bombed.append(_bombed(bomber, counts, bomb, seconds))
        rests.append(_rate(counts, seconds))
    return [during / statistics.mean(around) for during, around in zip(bombed, pairwise(rests), strict=True)]


def _bombed(bomber: Client, counts: Path, bomb: str, seconds: float) -> float:
    begun_s = time.time()
    job = _start(bomber, bomb)
    while time.time() - begun_s < seconds + 1.0:
        if job.refresh().ended:
            job = _start(bomber, bomb)
        time.sleep(0.1)
    during = _between(counts, begun_s + 0.5, time.time())
    with suppress(Refused):  # it has just ended by itself
        job.cancel()
    job.wait(GIVE_UP_S)
    time.sleep(1.0)
    return during


def _start(bomber: Client, bomb: str) -> Job:
    demand = {"cpu": 0.7, "memory": "400MB"}
    return bomber.submit(["python", "bombs.py", bomb], folder=PROGRAMS, name=f"bomb-{bomb}", resources=demand)


def _rate(counts: Path, seconds: float) -> float:
    begun_s = time.time()
    time.sleep(seconds)
    return _between(counts, begun_s, time.time())


def _between(counts: Path, begun_s: float, ended_s: float) -> float:
    pairs = [tuple(map(float, line.split())) for line in counts.read_text().splitlines() if line.count(" ") == 1]
    return statistics.median(rate for at_s, rate in pairs if begun_s + 0.5 <= at_s <= ended_s)


if __name__ == "__main__":
    main("neighbours", run)
