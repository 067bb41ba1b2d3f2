"""Samples per second of a Training on one worker, against the loop that people write and against torchrun with DDP."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.platform import PROGRAMS, Platform, platform, wait_until
from benchmarks.reporter import Bench, main
from benchmarks.torchrun import torchrun

GIVE_UP_S = 300.0
SAMPLES = {"mlp": 40_000, "cnn": 4_000}
EPOCHS = {"mlp": 10, "cnn": 6}


@dataclass(frozen=True, slots=True)
class Speed:
    """One training: in the loop, without its first epoch; and all of it, from the command to the end."""

    samples_per_s: float
    whole_s: float


def run(bench: Bench) -> None:
    """Samples per second in the loop and seconds end to end, of the same model, data and batch."""
    times = 1 if bench.quick else 3
    sys.path.insert(0, str(PROGRAMS))
    from workloads import load  # type: ignore[import-not-found]

    for kind in ("mlp", "cnn"):
        work, short = load(kind, SAMPLES[kind]), kind.upper()
        samples, epochs = len(work.x), max(3, EPOCHS[kind] // 2) if bench.quick else EPOCHS[kind]
        with bench.step(f"{work.name}: Fairlead"), platform("2") as running:
            _fairlead(running, kind, epochs, samples, "warm-up")
            own = [_fairlead(running, kind, epochs, samples, f"{kind}-{turn}") for turn in range(times)]
            two = [_fairlead(running, kind, epochs, samples, f"{kind}-two-{turn}", 2) for turn in range(times)]
        with bench.step(f"{work.name}: a plain loop"):
            plain = [_plain(kind, epochs, samples) for _ in range(times)]
        with bench.step(f"{work.name}: torchrun, DDP, 2 processes"):
            ddp = [_ddp(kind, epochs, samples) for _ in range(times)]
        _compare(bench, f"{short}, 1 worker", own, "plain loop, DataLoader", plain)
        _compare(bench, f"{short}, 2 workers", two, "torchrun DDP, 2 procs", ddp)
        bench.add(f"{short}, 1 worker, loop", _loop(own), "samples/s", peer="torchrun DDP, 2 procs",
                  peer_value=_loop(ddp))  # fmt: skip
        bench.note(f"{short}: {work.name}, {samples:,} samples, batches of {work.batch_size}, {epochs} epochs")
    bench.note("one thread per process: one worker and the plain loop use one core, DDP two; on a busy machine the "
               "platform's control group weighs as much as its cores, a plain process less")  # fmt: skip
    bench.note("loop: from the end of the first epoch to the end of the last; whole: from the command to its end")


def _compare(bench: Bench, name: str, own: list[Speed], peer: str, theirs: list[Speed]) -> None:
    bench.add(f"{name}, loop", _loop(own), "samples/s", peer=peer, peer_value=_loop(theirs), target="ratio >= 1")
    ours, other = (statistics.median(s.whole_s for s in speeds) for speeds in (own, theirs))
    bench.add(f"{name}, whole", ours, "s", peer=peer, peer_value=other)


def _loop(speeds: list[Speed]) -> float:
    return statistics.median(speed.samples_per_s for speed in speeds)


def _fairlead(running: Platform, kind: str, epochs: int, samples: int, name: str, workers: int = 1) -> Speed:
    begun = time.time()
    job = running.train("workloads.py:training", name, str(workers), kind=kind, epochs=epochs, samples=samples)
    job.result(timeout=GIVE_UP_S)
    whole_s = time.time() - begun
    rows = job.metrics()
    first = max(row["time_s"] for row in rows if row["epoch"] == 0)
    return Speed((epochs - 1) * samples / (rows[-1]["time_s"] - first), whole_s)


def _plain(kind: str, epochs: int, samples: int) -> Speed:
    with tempfile.TemporaryDirectory(prefix="fairlead-loop-") as folder:
        begun = time.time()
        command = [sys.executable, str(PROGRAMS / "loops.py"), folder, kind, str(epochs), str(samples)]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
        ends = [float(line.split()[0]) for line in (Path(folder) / "steps-0").read_text().splitlines()]
        return Speed((epochs - 1) * samples / (ends[-1] - ends[0]), time.time() - begun)


def _ddp(kind: str, epochs: int, samples: int) -> Speed:
    with torchrun("loops.py", (kind, epochs, samples), workers=2) as gang:
        wait_until(lambda: gang.ended, GIVE_UP_S, "torchrun ends", every_s=0.05)
        whole_s = time.time() - gang.begun_s
        ends = [step.time_s for step in gang.steps(0)]
        if len(ends) < epochs:
            raise RuntimeError("torchrun failed")
        return Speed((epochs - 1) * samples / (ends[-1] - ends[0]), whole_s)


if __name__ == "__main__":
    main("training_speed", run)
