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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import async_save

from benchmarks.reporter import Bench, main
from fairlead.grid import Grid
from fairlead.grid.standalone import StandaloneGrid
from fairlead.training.snapshots.grid_snapshots import GridSnapshots
from fairlead.training.snapshots.snapshotter import Snapshots

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
        while (least_s := min(self._timed() for _ in range(3))) < STEP_S:  # others may have used the machine before
            self._batch = torch.randn(int(len(self._batch) * 1.05 * STEP_S / least_s), WIDTH)

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
        shelf, tell = GridSnapshots("bench", shelved), self._told
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
        self._ours.wait()
        self._files.wait()
        if self._saving is not None:
            self._saving.result()
            self._saving = None


@dataclass(frozen=True, slots=True)
class Window:
    """Some steps with one snapshot, or with none."""

    way: str
    took_s: float
    cpu_s: float  # of the whole process, with the threads behind
    waited_s: float
    behind_s: float  # of cpu time, that other threads than the one that trains have used
    bare_s: float = 0.0  # what the window without a snapshot beside it took
    bare_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Turns:
    """What was measured."""

    windows: list[Window] = field(default_factory=list)

    def of(self, way: str) -> list[Window]:
        return [window for window in self.windows if window.way == way]

    def cost(self, way: str) -> float:
        """Percent of the throughput, the median of what it was beside a window without snapshots."""
        return 100 * statistics.median(1 - each.bare_s / each.took_s for each in self.of(way))

    def cpu_cost(self, way: str) -> float:
        """The same by cpu time: what it would be if nobody else used the machine, and all behind shared the core."""
        return 100 * statistics.median(1 - each.bare_cpu_s / each.cpu_s for each in self.of(way))

    def apart(self, way: str) -> tuple[float, float]:
        """The quartiles of what :meth:`cost` is the median of: how much the machine's other users have a say in it."""
        low, _, high = statistics.quantiles((100 * (1 - each.bare_s / each.took_s) for each in self.of(way)), n=4)
        return low, high

    def counted(self, way: str) -> float:
        """Percent of the time that steps waited, or threads behind them computed: all but caches and bandwidth."""
        spent_s = sum(each.waited_s + each.behind_s for each in self.of(way))
        return 100 * spent_s / sum(each.took_s for each in self.of(way))

    def wait_ms(self, way: str) -> float:
        return 1e3 * statistics.median(each.waited_s for each in self.of(way))


def run(bench: Bench) -> None:
    """Throughput with and without snapshots, by turns, and the wait for each; torch's own ways in the same run."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    with tempfile.TemporaryDirectory(prefix="fairlead-snapshots-") as made, _shared_memory() as memory:
        folder = Path(made)
        (folder / "grid").mkdir()
        alone = StandaloneGrid(folder / "grid")
        try:
            os.environ |= alone.admit(quota=QUOTA)
            assert Grid.of_this_worker() is not None  # its process is started before this one is held to a core
            ways = Ways(folder, memory)
            with _one_core():
                with bench.step("a model and steps of half a second"):
                    trainee = Trainee()
                turns = _turns(bench, trainee, ways, 1 if bench.quick else 7)
            hashed_s = _cpu_s(alone.supervisor.pid)
        finally:
            alone.close()
    _tell(bench, turns)
    where = Counter(said[1] for said in ways.told)
    step_s = statistics.median(each.took_s for each in turns.of(NONE)) / EVERY
    bench.note(f"{trainee.state_bytes / 1e6:.0f} MB of state, steps of {step_s:.2f} s, one snapshot every {EVERY}; one "
               "core, which all that happens behind the training shares with it")  # fmt: skip
    bench.note(
        f"of {where['memory']} snapshots in the grid {where['disk']} went on to the disk: as many as 1.5 % allow"
    )
    hash_s, window_s = hashed_s / where["memory"], EVERY * step_s
    bench.add("the grid process hashes, of a core of its own", 100 * hash_s / window_s, "%")
    bench.add("a step waits for the very first", 1e3 * next(said[4] for said in ways.told if said[1] == "memory"), "ms")
    bench.note(
        "the hash is not in what is lost: the grid process has the other core. Where all cores train it comes on top"
    )
    bench.details |= asdict(turns) | {"grid_cpu_s": hashed_s, "told": ways.told}


def _turns(bench: Bench, trainee: Trainee, ways: Ways, times: int) -> Turns:
    """Groups of windows side by side: without snapshots, with ours, with a peer's; another one begins each time."""
    found, peers = Turns(), [way for way in ways.take if way != OURS]
    for turn in range(-1, times):  # the first time memory is taken from the machine, whichever way
        with bench.step(f"turn {turn + 1} of {times}"):
            for place, peer in enumerate(peers):
                group, first = [NONE, OURS, peer], (turn + place) % 3
                seen = [_window(trainee, ways, way, turn + 1) for way in group[first:] + group[:first]]
                bare = next(each for each in seen if each.way == NONE)
                beside = [replace(each, bare_s=bare.took_s, bare_cpu_s=bare.cpu_s) for each in seen]
                found.windows.extend(beside if turn >= 0 else ())
    return found


def _window(trainee: Trainee, ways: Ways, way: str, step: int) -> Window:
    take, waited_s = ways.take.get(way), 0.0
    ways.clock.run(way == OURS)
    begun_s, cpu_s, own_s = time.perf_counter(), time.process_time(), time.thread_time()
    for place in range(EVERY):
        trainee.step_once()
        if place == 0 and take is not None:
            asked_s = time.perf_counter()
            take(step, trainee.state())
            waited_s = time.perf_counter() - asked_s
    took_s = time.perf_counter() - begun_s
    ways.settle()
    cpu_s = time.process_time() - cpu_s
    return Window(way, took_s, cpu_s, waited_s, max(0.0, cpu_s - (time.thread_time() - own_s)))


def _tell(bench: Bench, turns: Turns) -> None:
    peers = {FILES: "as files in tmpfs, and to disk", TORCH: "torch.save to tmpfs",
             DCP: "torch dcp.async_save to tmpfs"}  # fmt: skip
    bench.add("throughput lost, median of turns", turns.cost(OURS), "%", target=TARGET)
    bench.add("throughput lost, by cpu time", turns.cpu_cost(OURS), "%", target=TARGET)
    bench.add("waited and computed behind, of the time", turns.counted(OURS), "%", target=TARGET)
    for way, peer in peers.items():
        bench.add("throughput lost", turns.cost(OURS), "%", peer=peer, peer_value=turns.cost(way))
        bench.add("waited and behind", turns.counted(OURS), "%", peer=peer, peer_value=turns.counted(way))
        bench.add("throughput lost, cpu time", turns.cpu_cost(OURS), "%", peer=peer, peer_value=turns.cpu_cost(way))
    bench.add("longest wait of a step", 1e3 * max(each.waited_s for each in turns.of(OURS)), "ms")
    for way, peer in peers.items():
        bench.add("a step waits, median", turns.wait_ms(OURS), "ms", peer=peer, peer_value=turns.wait_ms(way))
    low, high = turns.apart(OURS)
    bench.note(f"throughput lost: half of the {len(turns.of(OURS))} turns lay between {low:+.1f} and {high:+.1f} %; "
               "where that is wider than the target, believe what was counted")  # fmt: skip
    bare = turns.of(NONE)
    for what, windows in (("time", [each.took_s for each in bare]), ("cpu time", [each.cpu_s for each in bare])):
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
