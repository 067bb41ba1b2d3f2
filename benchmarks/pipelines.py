"""Twelve stages in four branches against the best that could be; a process pool and a plain loop in the same run."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from benchmarks.platform import PROGRAMS, Platform, platform
from benchmarks.reporter import Bench, main
from fairlead.views.pipelines import PipelineDetail

TARGET = "<= 1.15"
CORES = len(os.sched_getaffinity(0))
LEAST_S = 2.0  # of processor time in each stage
LINKS = 8
GIVE_UP_S = 600.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One run of the twelve."""

    took_s: float
    stages: Mapping[str, Mapping[str, float]]  # by name: began_s, ended_s, cpu_s
    busy_s: float  # processor time of the whole machine meanwhile, whoever used it

    @property
    def cpu_s(self) -> float:
        return sum(each["cpu_s"] for each in self.stages.values())

    @property
    def bound_s(self) -> float:
        """What no order of the stages could be faster than, on so many cores."""
        branches: dict[str, float] = {}
        for name, each in self.stages.items():
            model = name.partition("-")[2]
            branches[model] = branches.get(model, 0.0) + each["cpu_s"]
        return max(*branches.values(), self.cpu_s / CORES)

    @property
    def over(self) -> float:
        return self.took_s / self.bound_s

    @property
    def elsewhere(self) -> float:
        """Cores that were busy with anything but the stages: whoever starts them, and strangers on this machine."""
        return (self.busy_s - self.cpu_s) / self.took_s

    @property
    def pauses_s(self) -> list[float]:
        """From the end of a stage to the beginning of whatever its core does next."""
        begins = sorted(each["began_s"] for each in self.stages.values())[CORES:]
        ends = sorted(each["ended_s"] for each in self.stages.values())
        return [began - ended for began, ended in zip(begins, ends, strict=False)]


def run(bench: Bench) -> None:
    """A pipeline of twelve stages in four branches: seconds against max(critical path, processor time / cores)."""
    times, size = (1, 0.8) if bench.quick else (3, 1.0)
    pools, ours = [], []
    with platform(str(CORES)) as running:
        with bench.step("a stage of each kind, so that everybody is warm"):
            _ours(running, 0.02)
        with bench.step(f"{LINKS} stages that do nothing, one after the other"):
            pauses_s, first_s = _chain(running)
        for turn in range(times):  # one beside the other: what disturbs this machine disturbs both
            with bench.step(f"twelve stages in four branches ({turn + 1} of {times})"):
                ours.append(_ours(running, size))
            with bench.step("the same in a process pool"):
                pools.append(_peer("pool", size))
        with bench.step("the same, one after the other"):
            serial = _peer("serial", size)
    _tell(bench, ours, pools, serial)
    bench.add("end of a stage to the start of the next, median", statistics.median(pauses_s), "s")
    bench.add("same, worst", max(pauses_s), "s")
    bench.add("run to the start of its first stage", first_s, "s")
    bench.note(f"bound: max(critical path, processor time / {CORES} cores) of the same run, counting the stages' own "
               "functions only: loading code, passing results and starting workers is overhead")  # fmt: skip
    bench.note("from the call of run to the last stage's end, platform and pool with their libraries loaded, "
               f"one thread per stage; data: {_data()}")  # fmt: skip


def _tell(bench: Bench, ours: list[Seen], pools: list[Seen], serial: Seen) -> None:
    best = sorted(ours, key=lambda seen: seen.over)[len(ours) // 2]
    peer = sorted(pools, key=lambda seen: seen.over)[len(pools) // 2]
    bench.add(f"12 stages, 4 branches / bound, median of {len(ours)}", best.over, "x", target=TARGET,
              peer="process pool / its bound", peer_value=peer.over)  # fmt: skip
    bench.add("same, worst", max(seen.over for seen in ours), "x", peer="process pool, worst",
              peer_value=max(seen.over for seen in pools))  # fmt: skip
    bench.add("run to finished", best.took_s, "s", peer="process pool", peer_value=peer.took_s)
    bench.add("run to finished, beside a plain loop", best.took_s, "s", peer="one after the other",
              peer_value=serial.took_s)  # fmt: skip
    bench.add("bound", best.bound_s, "s", peer="of the pool's run", peer_value=peer.bound_s)
    shortest = min(each["cpu_s"] for seen in ours for each in seen.stages.values())
    bench.add("shortest stage, processor time", shortest, "s", target=f">= {LEAST_S:g}")
    pauses = [pause for seen in ours for pause in seen.pauses_s]
    theirs = [pause for seen in pools for pause in seen.pauses_s]
    bench.add("a core between two stages, median", statistics.median(pauses), "s", peer="process pool",
              peer_value=statistics.median(theirs))  # fmt: skip
    bench.add("cores busy with anything but the stages", best.elsewhere, "cores", peer="during the pool's run",
              peer_value=peer.elsewhere)  # fmt: skip
    for name, seen in (("ours", ours), ("pool", pools), ("serial", [serial])):
        bench.details[name] = [{"took_s": each.took_s, "bound_s": each.bound_s, "stages": each.stages} for each in seen]


def _ours(running: Platform, size: float) -> Seen:
    begun_s, busy_s = time.time(), _busy_s()
    view = _run(running, "branches", size=size)
    busy_s = _busy_s() - busy_s
    return Seen((view.finished_s or 0.0) - begun_s, _times(running, view), busy_s)


def _chain(running: Platform) -> tuple[list[float], float]:
    """Pauses between stages of a chain, and the time to its first."""
    begun_s = time.time()
    ran = list(_times(running, _run(running, "chain", links=LINKS)).values())
    pauses = [after["began_s"] - before["ended_s"] for before, after in pairwise(ran)]
    return pauses, ran[0]["began_s"] - begun_s


def _run(running: Platform, name: str, **params: Any) -> PipelineDetail:
    what = f"{PROGRAMS / 'branches.py'}:{name}"
    made = running.client.run_pipeline(what, folder=PROGRAMS, tenant="bench", **params).wait(GIVE_UP_S)
    if made.state != "succeeded":
        raise RuntimeError(f"{made.id} {made.state}: {made.view.message}")
    return made.view


def _times(running: Platform, view: PipelineDetail) -> dict[str, dict[str, float]]:
    """When each stage's function ran: the numbers that it gave stand beside its job."""
    found = {}
    for stage in view.stages:
        numbers = running.client.detail(stage.job or "").metrics
        found[stage.name] = {name: numbers[name] for name in ("began_s", "ended_s", "cpu_s")}
    return found


def _peer(way: str, size: float) -> Seen:
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, str(PROGRAMS / "branches_peers.py"), way, str(size), str(CORES)]
    environment = {**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    busy_s = _busy_s()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=GIVE_UP_S, check=True)
    said = json.loads(done.stdout)
    return Seen(said["took_s"], said["stages"], _busy_s() - busy_s)


def _busy_s() -> float:
    """Processor seconds that this machine has spent on anything, since it was started."""
    spent = psutil.cpu_times()
    return float(sum(spent) - spent.idle - getattr(spent, "iowait", 0.0))


def _data() -> str:
    file = Path(os.environ.get("FAIRLEAD_DATA", ""), "kdd99", "kddcup_10_percent.parquet")
    return "KDD 99" if "FAIRLEAD_DATA" in os.environ and file.is_file() else "made up"


if __name__ == "__main__":
    main("pipelines", run, peers=["scikit-learn", "numpy"])
