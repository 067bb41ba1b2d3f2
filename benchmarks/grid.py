"""The grid against memcpy, Ray's object store and Redis: put, map, first touch; floods and kills do no harm."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import grid_kills
from benchmarks.grid_peers import Times, ray_times, redis, redis_program, redis_times, redis_version
from benchmarks.reporter import Bench, main
from fairlead.grid import Grid
from fairlead.grid.standalone import StandaloneGrid

KB, MB = 1 << 10, 1 << 20
LARGE = 256 * MB
NAMES = {4 * KB: "4 KB", MB: "1 MB", LARGE: "256 MB"}
QUOTA = 1024 * MB
TENANTS, EACH = 10, 32 * MB


def run(bench: Bench) -> None:
    """Put, map, first touch, encryption, neighbours and kills."""
    sizes = {4 * KB: 50, MB: 20, LARGE: 5} if bench.quick else {4 * KB: 500, MB: 200, LARGE: 25}
    with tempfile.TemporaryDirectory(prefix="fairlead-grid-") as made:
        folder = Path(made)
        with _alone(folder / "plain") as alone:
            variables = alone.admit(quota=QUOTA)
            with alone.connect() as grid, _reader(variables) as reader:
                with bench.step("put and memcpy, by turns"):
                    ours, copied = _puts(grid, sizes)
                with bench.step("map in another process"):
                    _opens(grid, reader, sizes, ours)
                    touches = [_touch(grid, reader) for _ in range(3 if bench.quick else 9)]
        _tell_own(bench, ours, copied, touches)
        _peers(bench, sizes, {size: (times["put"], times["open"]) for size, times in ours.items()}, folder)
        with bench.step("encrypted in memory"):
            _encrypted(bench, folder / "sealed", ours, times=2 if bench.quick else 5)
        with bench.step(f"{TENANTS} tenants at their quota, and one that floods"):
            _flood(bench, folder / "flood")
        with bench.step("kills"):
            _kills(bench, folder / "kills", 10 if bench.quick else 50)
    bench.note("put: an array of this process into the arena, to the answer that it is a block; its hash comes later")
    bench.note("map: open in another worker, to the views of its parts; Redis copies to the reader, Ray maps")
    bench.note("the reader has had the arena mapped from its start, as workers have; its first touch is of a new block")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[StandaloneGrid]:
    folder.mkdir()
    alone = StandaloneGrid(folder)
    try:
        yield alone
    finally:
        alone.close()


class Reader:
    """Another worker of the tenant."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline()))


@contextlib.contextmanager
def _reader(variables: dict[str, str]) -> Iterator[Reader]:
    program = Path(__file__).parent / "programs" / "grid_reader.py"
    environment = {**os.environ, **variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, str(program)], env=environment, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True)  # fmt: skip
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield Reader(process)
    finally:
        process.kill()
        process.wait()


def _puts(grid: Grid, sizes: dict[int, int]) -> tuple[dict[int, dict[str, float]], list[float]]:
    """Median seconds of a put by size; for the largest, the ratios to a memcpy beside it."""
    found: dict[int, dict[str, float]] = {}
    ratios: list[float] = []
    for size, times in sizes.items():
        data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
        target = data.copy()  # faulted, as is the arena
        puts, copies = [], []
        for _ in range(times + 3):
            begun = time.perf_counter()
            np.copyto(target, data)
            copies.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            block = grid.put([data.data], kind="bench", meta={})
            puts.append(time.perf_counter() - begun)
            grid.drop(block)
        found[size] = {"put": statistics.median(puts[3:]), "memcpy": statistics.median(copies[3:])}
        ratios = [copied / put for copied, put in zip(copies[3:], puts[3:], strict=True)]
    return found, ratios


def _opens(grid: Grid, reader: Reader, sizes: dict[int, int], ours: dict[int, dict[str, float]]) -> None:
    for size, times in sizes.items():
        block = grid.put([np.ones(size, np.uint8).data], kind="bench", meta={})
        reader.ask(settle=True)
        spent = reader.ask(open=block, times=max(times, 50) + 3)["open"][3:]
        ours[size]["open"] = statistics.median(spent)
        grid.drop(block)


def _touch(grid: Grid, reader: Reader) -> float:
    """How much longer a first read of all pages takes than the next."""
    block = grid.put([np.random.default_rng(1).integers(0, 256, LARGE, np.uint8).data], kind="bench", meta={})
    reader.ask(settle=True)
    seen = reader.ask(touch=block)
    grid.drop(block)
    return float(seen["first"] / seen["again"])


def _tell_own(bench: Bench, ours: dict[int, dict[str, float]], ratios: list[float], touches: list[float]) -> None:
    large = ours[LARGE]
    bench.add("put 256 MB, part of memcpy's speed (median of pairs)", statistics.median(ratios), "x", target=">= 0.9")
    bench.add("put 256 MB", LARGE / large["put"] / 1e9, "GB/s", peer="memcpy, both buffers faulted",
              peer_value=LARGE / large["memcpy"] / 1e9)  # fmt: skip
    bench.add("map 256 MB in another worker, median", large["open"] * 1e6, "us", target="< 200")
    bench.add("first touch of every page / reading again", statistics.median(touches), "x", target="<= 1.2")
    bench.details["put_to_memcpy"], bench.details["first_touch"] = ratios, touches


def _peers(bench: Bench, sizes: dict[int, int], ours: Times, folder: Path) -> None:
    theirs: dict[str, Times] = {}
    program = redis_program()
    if program is None:
        bench.note("no Redis: it is not installed, and only root can install it")
    else:
        with bench.step("Redis"), redis(program, folder) as line:
            theirs[f"Redis {redis_version(program)}"] = redis_times(line, sizes)
    with bench.step("Ray's object store"):
        try:
            version, times = ray_times(sizes)
            theirs[f"Ray {version}"] = times
        except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
            bench.note(f"no Ray: {error}")
    for peer, measured in theirs.items():
        for size, name in NAMES.items():
            for place, what in enumerate(("put", "map")):
                target = "ratio < 1" if size == LARGE else None
                bench.add(f"{what} {name}", ours[size][place] * 1e6, "us", peer=peer,
                          peer_value=measured[size][place] * 1e6, target=target)  # fmt: skip


def _encrypted(bench: Bench, folder: Path, ours: dict[int, dict[str, float]], times: int) -> None:
    with _alone(folder) as alone:
        alone.admit(quota=QUOTA, encrypted=True)
        data = np.random.default_rng(0).integers(0, 256, LARGE, np.uint8)
        puts, opens = [], []
        with alone.connect() as grid:
            for _ in range(times + 1):
                begun = time.perf_counter()
                block = grid.put([data.data], kind="bench", meta={})
                puts.append(time.perf_counter() - begun)
                begun = time.perf_counter()
                grid.open(block).close()
                opens.append(time.perf_counter() - begun)
                grid.drop(block)
    plain = "not encrypted in memory"
    bench.add("put 256 MB, encrypted in memory", statistics.median(puts[1:]) * 1e3, "ms", peer=plain,
              peer_value=ours[LARGE]["put"] * 1e3)  # fmt: skip
    bench.add("open 256 MB, encrypted in memory", statistics.median(opens[1:]) * 1e3, "ms", peer=plain,
              peer_value=ours[LARGE]["open"] * 1e3)  # fmt: skip


def _flood(bench: Bench, folder: Path) -> None:
    """What ten tenants at their quota lose while an eleventh puts many times its own."""
    piece = np.ones(4 * MB - 64 * KB, np.uint8).data
    with _alone(folder) as alone:
        grids = {}
        for number in range(TENANTS):
            alone.admit(f"quiet{number}", EACH)
            grids[number] = grid = alone.connect(f"quiet{number}")
            while grid.usage().used + len(piece) + KB <= EACH:
                grid.put([piece], kind="bench", meta={})
        before = {number: grid.usage().used for number, grid in grids.items()}
        alone.admit("flood", EACH, spill_bytes=0)
        with alone.connect("flood") as flood:
            for _ in range(100):
                flood.put([piece], kind="bench", meta={})
            went = flood.usage().evictions
        lost = sum(before[number] - grid.usage().used for number, grid in grids.items())
        full = min(used / EACH for used in before.values())
    bench.add(f"bytes of {TENANTS} tenants evicted by a flood", lost, "bytes", target="<= 0")
    bench.note(f"the ten had at least {full:.0%} of their quota in use; the flood evicted {went} blocks of its own")


def _kills(bench: Bench, folder: Path, kills: int) -> None:
    folder.mkdir()
    seen = grid_kills.run(folder, kills)
    bench.add(f"corrupted reads of {seen.reads:,} with {kills} kills", seen.wrong, "reads", target="<= 0")
    bench.add("leaked after the kills", seen.pinned + seen.unaccounted, "bytes", target="<= 0")
    bench.add("shared memory left after the end", seen.left, "arenas", target="<= 0")
    bench.details["kills"] = asdict(seen)


if __name__ == "__main__":
    main("grid", run)
