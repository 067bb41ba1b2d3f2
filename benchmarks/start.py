"""From submit to the first step of a gang of four, warm; cold processes and torchrun in the same run."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.platform import PROGRAMS, Platform, platform, wait_until
from benchmarks.reporter import Bench, main
from benchmarks.torchrun import first_step_s, torchrun

WORKERS = 4
SAMPLE_S = 0.0003
PAUSE_S = 0.005  # of the peer's step: the same for its part of the batch
GIVE_UP_S = 60.0

COLD = """
import torch
layer = torch.nn.Linear(16, 2)
optimizer = torch.optim.Adam(layer.parameters())
layer(torch.randn(8, 16)).sum().backward()
optimizer.step()
"""


def run(bench: Bench) -> None:
    """Seconds from submit to the first step of a gang of four workers."""
    times = 2 if bench.quick else 5
    with bench.step("four cold processes that import torch"):
        cold_s = _median(_cold, 1 if bench.quick else 3)
    with bench.step("torchrun with four workers"):
        peer_s = _median(_torchrun, 1 if bench.quick else 3)
    with platform(str(WORKERS)) as running:
        with bench.step("a gang of four"):
            seen = [_gang(running, turn) for turn in range(times)]
        with bench.step("fairlead run"):
            command_s = _median(lambda: _command(running), times)
    first, joined = (statistics.median(column) for column in zip(*seen, strict=True))
    bench.add(f"submit to first step of {WORKERS}, median of {times}", first, "s", target="ratio < 1",
              peer=f"torchrun {WORKERS} workers", peer_value=peer_s)  # fmt: skip
    bench.add("same, worst", max(first_step for first_step, _ in seen), "s")
    bench.add(f"gang decided to all {WORKERS} workers joined", joined, "s", target="ratio < 1",
              peer=f"{WORKERS} x python, import torch", peer_value=cold_s)  # fmt: skip
    bench.add("fairlead submit --watch, to the end of a 10-step job", command_s, "s")
    bench.note("warm: the platform is up and its fork servers are loaded; torchrun has no such state to keep")
    bench.note("cold: four processes at once, each to its first optimiser step; user code is loaded in all of them")


def _median(once: Callable[[], float], times: int) -> float:
    return statistics.median(once() for _ in range(times))


def _gang(running: Platform, turn: int) -> tuple[float, float]:
    """Seconds from submit to the first step, and from the decision to the gang's joining."""
    begun_s = time.time()
    job = running.train("steady.py:training", f"start-{turn}", workers=str(WORKERS), sample_s=SAMPLE_S)
    wait_until(lambda: bool(job.metrics()), GIVE_UP_S, "a first step", every_s=0.02)
    stepped_s = job.metrics()[0]["time_s"]
    generation = job.detail().generations[0]
    running.end(job)
    running.warm(WORKERS)
    return stepped_s - begun_s, (generation.running_s or stepped_s) - generation.created_s


def _command(running: Platform) -> float:
    """What a person waits for, with a process of its own for the command."""
    begun = time.perf_counter()
    spec = ["submit", "steady.yaml", "--tenant", "bench", "--watch"]
    subprocess.run(running.command(*spec), cwd=PROGRAMS, env=running.environment, capture_output=True, check=True)
    return time.perf_counter() - begun


def _cold() -> float:
    """Four processes as a launcher without a fork server starts them: all at once, one thread each."""
    begun = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    started = [subprocess.Popen([sys.executable, "-c", COLD], env=environment) for _ in range(WORKERS)]
    if any(process.wait() for process in started):
        raise RuntimeError("a cold process failed")
    return time.perf_counter() - begun


def _torchrun() -> float:
    with torchrun("steady_ddp.py", (100_000, PAUSE_S), workers=WORKERS) as gang:
        return first_step_s(gang, WORKERS, GIVE_UP_S)


if __name__ == "__main__":
    main("start", run)
