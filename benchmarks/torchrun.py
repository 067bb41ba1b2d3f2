"""The peer that everybody has: torchrun on this machine, with its steps read from the files that its ranks write."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.platform import PROGRAMS, wait_until

TORCHRUN = Path(sys.executable).parent / "torchrun"


@dataclass(frozen=True, slots=True)
class Step:
    time_s: float
    step: int
    pid: int


@dataclass(frozen=True, slots=True)
class Torchrun:
    """One running gang of torchrun."""

    process: subprocess.Popen[bytes]
    folder: Path
    begun_s: float

    def steps(self, rank: int = 0) -> list[Step]:
        """What this rank finished so far."""
        try:
            text = (self.folder / f"steps-{rank}").read_text()
        except FileNotFoundError:
            return []
        rows = [line.split() for line in text.split("\n")[:-1]]
        return [Step(float(time_s), int(step), int(pid)) for time_s, step, pid in rows]

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None


@contextmanager
def torchrun(
    program: str, arguments: Sequence[object], workers: int, restarts: int = 0, env: dict[str, str] | None = None
) -> Iterator[Torchrun]:
    """Start the program with so many workers; the folder is its first argument. All of it is ended afterwards."""
    with tempfile.TemporaryDirectory(prefix="fairlead-torchrun-") as name:
        command = [str(TORCHRUN), "--standalone", f"--nproc-per-node={workers}", f"--max-restarts={restarts}",
                   str(PROGRAMS / program), name, *map(str, arguments)]  # fmt: skip
        begun_s = time.time()
        process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        try:
            yield Torchrun(process, Path(name), begun_s)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The agent and its workers, of which only it knows."""
    try:
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    except psutil.NoSuchProcess:
        family = []
    for member in family:
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()


def first_step_s(running: Torchrun, workers: int, timeout_s: float = 60) -> float:
    """Seconds from the start of torchrun to the first step that all workers have finished."""
    wait_until(lambda: running.ended or all(running.steps(rank) for rank in range(workers)), timeout_s, "a first step")
    return max(running.steps(rank)[0].time_s for rank in range(workers)) - running.begun_s
