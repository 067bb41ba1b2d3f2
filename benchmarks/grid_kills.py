"""Workers and grid processes that are killed at random: counts what is read wrong and what is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from fairlead.errors import NotFound
from fairlead.grid.standalone import StandaloneGrid

PROGRAM = Path(__file__).parent / "programs" / "grid_worker.py"
WORKERS, QUOTA = 2, 12 << 20
TENANT = f"kills-{os.getpid()}"  # that its arena be told from all others
_GIVE_UP_S = 120.0


@dataclass(frozen=True, slots=True)
class Outcome:
    kills: int
    puts: int
    reads: int
    wrong: int
    pinned: int  # bytes, when nobody is left who could read
    unaccounted: int  # bytes that are used by no block
    left: int  # arenas that are mapped or open after the end


class Worker:
    """One process, and what it last said."""

    def __init__(self, number: int, variables: dict[str, str]) -> None:
        environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(number)], env=environment, stdout=subprocess.PIPE, text=True
        )

    def hear(self) -> dict[str, int]:
        """Its next words; says so when it ended by itself."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended by itself with {self.process.wait()}")
        return dict(json.loads(line))

    def kill(self) -> dict[str, int]:
        """End it at once; returns the last whole line that it said."""
        self.process.kill()
        assert self.process.stdout is not None
        lines = [line for line in self.process.stdout.read().splitlines() if line.endswith("}")]
        self.process.wait()
        return dict(json.loads(lines[-1])) if lines else {}


def run(folder: Path, kills: int, seed: int = 0) -> Outcome:
    """Kill so many; nobody waits for anybody in between but for a first sign of life."""
    rng, sums = random.Random(seed), {"puts": 0, "reads": 0, "wrong": 0}
    alone = StandaloneGrid(folder)
    try:
        variables = alone.admit(TENANT, quota=QUOTA, spill_bytes=4 * QUOTA)
        numbers = iter(range(seed * 1000, seed * 1000 + kills + WORKERS))
        workers = [Worker(next(numbers), variables) for _ in range(WORKERS)]
        for _ in range(kills):
            for worker in workers:
                for _ in range(rng.randrange(2, 20)):
                    worker.hear()
            if rng.random() < 0.5 and (pid := alone.supervisor.pid) is not None:
                os.kill(pid, signal.SIGKILL)
            else:
                chosen = rng.randrange(WORKERS)
                _add(sums, workers[chosen].kill())
                workers[chosen] = Worker(next(numbers), variables)
        for worker in workers:
            _add(sums, worker.kill())
        pinned, unaccounted, wrong = _look(alone)
    finally:
        alone.close()
    return Outcome(kills, sums["puts"], sums["reads"], sums["wrong"] + wrong, pinned, unaccounted, arenas_open())


def _add(sums: dict[str, int], said: dict[str, int]) -> None:
    for name in sums:
        sums[name] += said.get(name, 0)


def _look(alone: StandaloneGrid) -> tuple[int, int, int]:
    """With everybody dead: bytes that are pinned, bytes that nobody has, and blocks that are not as they were put."""
    with alone.connect(TENANT) as grid:
        deadline = time.monotonic() + _GIVE_UP_S
        while grid.usage().pinned and time.monotonic() < deadline:
            time.sleep(0.05)
        pinned = grid.usage().pinned
        blocks, wrong = grid.blocks(), 0
        for block in blocks:
            with contextlib.suppress(NotFound), grid.open(block.id) as found:  # lost, where the disk is full as well
                wrong += zlib.crc32(found.parts()[0]) != found.meta["crc"]
        for block in grid.blocks():
            grid.drop(block.id)
        return pinned, grid.usage().used + grid.usage().spilled, wrong


def arenas_open() -> int:
    """Files of arenas that any process of ours still has."""
    found = 0
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            found += str(link.readlink()).startswith(f"/memfd:fairlead-{TENANT}")
        except OSError:  # not ours, or gone
            continue
    return found
