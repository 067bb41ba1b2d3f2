"""What snapshots cost a training: 200 MB of state every 10 steps of half a second, and for how long a step waits."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import async_save

from benchmarks.reporter import Bench, main
from fairlead.grid import Grid
from fairlead.grid.alone import Alone
from fairlead.training.shelf import Shelf
from fairlead.training.snapshots import Snapshots

WIDTH, LAYERS = 1024, 16  # with AdamW's two moments 200 MB
STEP_S, EVERY = 0.5, 10
QUOTA = 1 << 30
NONE, OURS, FILES, TORCH, DCP = "none", "grid", "files", "torch.save", "dcp.async_save"
TARGET = "< 3"


Take = Callable[[int, dict[str, Any]], None]
"""Puts a state away; the step waits until it returns."""


class Trainee:
    """A model that is trained on one core, as a worker with one core does."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(LAYERS)]
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self._batch = torch.randn(64, WIDTH)
        self.step_once()
        self._batch = torch.randn(self._fitting(), WIDTH)

    def _fitting(self) -> int:
        """How many samples make a step of the length that is wanted, at least."""
        least_s = min(self._timed() for _ in range(3))
        self._batch = torch.randn(512, WIDTH)
        per_sample_s = (min(self._timed() for _ in range(3)) - least_s) / (512 - 64)
        return int(64 + max(0.0, 1.1 * STEP_S - least_s) / max(per_sample_s, 1e-6))

    def _timed(self) -> float:
        begun_s = time.perf_counter()
        self.step_once()
        return time.perf_counter() - begun_s

    def step_once(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.model(self._batch).square().mean().backward()
        self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": 1}

    @property
    def state_bytes(self) -> int:
        return 3 * sum(p.numel() * p.element_size() for p in self.model.parameters())


class Clock:
    """Stands still while it is not this way's turn: how many snapshots reach the disk is a matter of time."""

    def __init__(self) -> None:
        self._past_s, self._since_s = 0.0, time.monotonic()
        self._runs = True

    def __call__(self) -> float:
        return self._past_s + (time.monotonic() - self._since_s if self._runs else 0.0)

    def run(self, on: bool) -> None:
        self._past_s, self._since_s, self._runs = self(), time.monotonic(), on


class Ways:
    """How a state is put away: each takes it while the step waits, and may go on behind until it is settled."""

    def __init__(self, folder: Path, memory: Path) -> None:
        self._folder, self._memory = folder, memory
        self.told: list[tuple[Any, ...]] = []  # by the grid
        shelved, plain = memory / "job" / "n0", memory / "plain" / "n0"
        self.clock = Clock()
        shelf, tell = Shelf("bench", shelved), self._told
        self._ours = Snapshots(folder / "ours", shelved, tell, shelf, clock=self.clock)
        self._files = Snapshots(folder / "files", plain, lambda *_: None)
        self._saving: Future[Any] | None = None
        self.take: dict[str, Take] = {
            OURS: self._ours.write, FILES: self._files.write, TORCH: self._torch, DCP: self._dcp,
        }  # fmt: skip

    def _told(self, *said: Any) -> None:
        self.told.append(said)

    def _torch(self, step: int, state: dict[str, Any]) -> None:
        torch.save(state, self._memory / f"state-{step % 2}.pt")

    def _dcp(self, step: int, state: dict[str, Any]) -> None:
        place = self._memory / f"dcp-{step % 2}"
        shutil.rmtree(place, ignore_errors=True)
        found = async_save(state, storage_writer=FileSystemWriter(place, sync_files=False), no_dist=True)
        self._saving = found if isinstance(found, Future) else None

    def settle(self) -> None:
        self._ours.finish()
        self._files.finish()
        if self._saving is not None:
            self._saving.result()
            self._saving = None


@dataclass(slots=True)
class Turns:
    """What was measured, by the way in which snapshots were taken: a figure for each window of steps."""

    took_s: dict[str, list[float]] = field(default_factory=dict)
    cpu_s: dict[str, list[float]] = field(default_factory=dict)  # of the whole process, with the threads behind
    waited_s: dict[str, list[float]] = field(default_factory=dict)

    def add(self, way: str, took_s: float, cpu_s: float, waited_s: float) -> None:
        for kept, value in ((self.took_s, took_s), (self.cpu_s, cpu_s), (self.waited_s, waited_s)):
            kept.setdefault(way, []).append(value)

    def cost(self, way: str) -> float:
        """Percent of the throughput, the median of what it was beside a window without snapshots."""
        pairs = zip(self.took_s[way], self.took_s[NONE], strict=True)
        return 100 * statistics.median(1 - bare / took for took, bare in pairs)

    def cpu_cost(self, way: str) -> float:
        """The same by cpu time: what it would be if nobody else used the machine, and all behind shared the core."""
        return 100 * (1 - statistics.median(self.cpu_s[NONE]) / statistics.median(self.cpu_s[way]))

    def wait_ms(self, way: str) -> float:
        return 1e3 * statistics.median(self.waited_s[way])


def run(bench: Bench) -> None:
    """Throughput with and without snapshots, by turns, and the wait for each; torch's own ways in the same run."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    with tempfile.TemporaryDirectory(prefix="fairlead-snapshots-") as made, _shared_memory() as memory:
        folder = Path(made)
        (folder / "grid").mkdir()
        alone = Alone(folder / "grid")
        try:
            os.environ |= alone.admit(quota=QUOTA)
            assert Grid.of_this_worker() is not None  # its process is started before this one is held to a core
            ways = Ways(folder, memory)
            with _one_core():
                with bench.step("a model and steps of half a second"):
                    trainee = Trainee()
                turns = _turns(bench, trainee, ways, 2 if bench.quick else 12)
            hashed_s = _cpu_s(alone.keeper.pid)
        finally:
            alone.close()
    _tell(bench, turns)
    where = Counter(said[1] for said in ways.told)
    step_s = statistics.median(turns.took_s[NONE]) / EVERY
    bench.note(f"{trainee.state_bytes / 1e6:.0f} MB of state, steps of {step_s:.2f} s, one snapshot every {EVERY}; one "
               "core, which all that happens behind the training shares with it")  # fmt: skip
    bench.note(
        f"of {where['memory']} snapshots in the grid {where['disk']} went on to the disk: as many as 1.5 % allow"
    )
    bench.note(
        f"the grid process has another core here; it took {hashed_s / where['memory']:.2f} s of it for each, to hash it"
    )
    bench.details |= asdict(turns) | {"grid_cpu_s": hashed_s, "told": ways.told}


def _turns(bench: Bench, trainee: Trainee, ways: Ways, times: int) -> Turns:
    """Windows of steps with one snapshot each, and without, each time beginning with another."""
    found, order = Turns(), [NONE, *ways.take]
    for turn in range(-1, times):  # the first time memory is taken from the machine, whichever way
        with bench.step(f"turn {turn + 1} of {times}"):
            for way in order[turn % len(order) :] + order[: turn % len(order)]:
                ways.clock.run(way == OURS)
                cpu_s = time.process_time()
                took_s, waited_s = _window(trainee, ways.take.get(way), turn + 1)
                ways.settle()
                if turn >= 0:
                    found.add(way, took_s, time.process_time() - cpu_s, waited_s)
    return found


def _window(trainee: Trainee, take: Take | None, step: int) -> tuple[float, float]:
    """Seconds that the steps took, and those that one of them waited."""
    waited_s, begun_s = 0.0, time.perf_counter()
    for place in range(EVERY):
        trainee.step_once()
        if place == 0 and take is not None:
            asked_s = time.perf_counter()
            take(step, trainee.state())
            waited_s = time.perf_counter() - asked_s
    return time.perf_counter() - begun_s, waited_s


def _tell(bench: Bench, turns: Turns) -> None:
    peers = {FILES: "as files in tmpfs, and to disk", TORCH: "torch.save to tmpfs",
             DCP: "torch dcp.async_save to tmpfs"}  # fmt: skip
    bench.add("throughput lost, median of turns", turns.cost(OURS), "%", target=TARGET)
    bench.add("throughput lost, by cpu time", turns.cpu_cost(OURS), "%", target=TARGET)
    for way, peer in peers.items():
        bench.add("throughput lost", turns.cost(OURS), "%", peer=peer, peer_value=turns.cost(way))
        bench.add("throughput lost, cpu time", turns.cpu_cost(OURS), "%", peer=peer, peer_value=turns.cpu_cost(way))
    bench.add("longest wait of a step", 1e3 * max(turns.waited_s[OURS]), "ms")
    for way, peer in peers.items():
        bench.add("a step waits, median", turns.wait_ms(OURS), "ms", peer=peer, peer_value=turns.wait_ms(way))
    for what, windows in (("time", turns.took_s[NONE]), ("cpu time", turns.cpu_s[NONE])):
        apart = [100 * (each / statistics.median(windows) - 1) for each in windows]
        bench.note(f"{what} of windows without snapshots: {min(apart):+.1f} to {max(apart):+.1f} % around the median")


def _cpu_s(pid: int | None) -> float:
    """Cpu time of a process so far."""
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _one_core() -> Iterator[None]:
    """Hold this thread, and those it starts, to one core: the quota of a worker."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _shared_memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fairlead-snapshots-", dir="/dev/shm") as made:
        yield Path(made)


if __name__ == "__main__":
    main("snapshots", run)
