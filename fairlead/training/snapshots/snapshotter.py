"""Takes snapshots: a step waits while the state is copied into the grid; a thread commits it and writes it to disk.

A step waits for one copy of the tensors. Committing it, dropping older ones, and at times the copy to disk are the
thread's work. Without a grid, or without room in it, the state is written as a file into the node's memory instead.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from fairlead.errors import FairleadError
from fairlead.grid.values import BlockId
from fairlead.training.channel import log
from fairlead.training.snapshots.flat_state import flatten_state
from fairlead.training.snapshots.grid_snapshots import GridSnapshots, Staged
from fairlead.training.snapshots.snapshot_files import (
    FILE,
    FLAT,
    KEEP,
    SHARDS,
    StoredSnapshot,
    complete_shards,
    drop_old_snapshots,
    list_snapshots,
    write_file,
    write_flat,
    write_hashed,
)

MIN_INTERVAL_S = 1.0
MAX_COST = 0.03  # part of the running time that snapshots may cost
DISK_COST = MAX_COST / 2  # of this, the part for copies to disk: it decides how many snapshots reach the disk

HASHED_BYTES = 4 << 20  # from this size on the grid's hash is used, which costs the worker nothing

Report = Callable[[int, str, int, float, float], None]
"""Called with each snapshot: step, memory or disk, bytes, seconds it took, seconds that a step waited."""


class Snapshots:
    """The snapshots of one job. Only rank 0 writes them; every worker may read them."""

    def __init__(
        self, folder: Path, memory_folder: Path, report: Report, grid: GridSnapshots | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``grid`` None: nothing goes into the grid, and nothing is read from it."""
        self._clock = clock
        self._disk = folder / "snapshots"
        self._memory = memory_folder
        self._report, self._grid = report, grid
        self._writer: threading.Thread | None = None
        self._interval_s = self._disk_interval_s = MIN_INTERVAL_S
        self._sharded_step = -1  # of the last sharded snapshot
        self._last_s = self._clock()
        self._last_disk_s = float("-inf")
        self._dropped_unnamed = False
        self.waits_s: deque[float] = deque(maxlen=10_000)  # how long each snapshot held up its step

    def find(self) -> list[StoredSnapshot]:
        """All snapshots that exist, the most advanced first, memory before disk."""
        found = [stored for folder in self._memories() for stored in list_snapshots(folder, "memory", self._grid)]
        found += list_snapshots(self._disk, "disk")
        return sorted(found, key=lambda s: (s.step, s.where == "memory"), reverse=True)

    def _memories(self) -> set[Path]:
        """This node's memory folder and the readable ones of other nodes (layout: memory root / job / node)."""
        others = self._memory.parent.glob("*/")
        return {self._memory, *(path for path in others if os.access(path, os.R_OK | os.X_OK))}

    def begin_generation(self, *, writes: bool = True) -> None:
        """Restart the interval: no snapshot right at the start, when all ranks wait for the first step."""
        self._last_s = self._clock()
        if self._grid is not None and not writes:
            self._grid.clear()

    def due(self) -> bool:
        """Whether the next one is due: by interval, which follows from the cost of the last, and by the running one."""
        return self._clock() - self._last_s >= self._interval_s and not self._busy()

    def write(self, step: int, state: Mapping[str, Any], *, wait: bool = False) -> None:
        """Put the state into memory, and at times on disk, in the background. ``wait``: on both before this returns."""
        begun_s = self._clock()
        self.wait()
        if self._grid is None or not self._grid.usable or not self._stage(self._grid, step, state, begun_s, wait):
            self._write_file(step, state, begun_s, wait)
        self._last_s = self._clock()
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until the snapshot in progress is complete."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None

    def _busy(self) -> bool:
        return self._writer is not None and self._writer.is_alive()

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        self._writer = threading.Thread(target=work, args=arguments, name="fairlead-snapshot", daemon=True)
        self._writer.start()

    # ------------------------------------------------------------ into the grid

    def _stage(self, grid: GridSnapshots, step: int, state: Mapping[str, Any], begun_s: float, wait: bool) -> bool:
        """Copy the state while a step waits; False if there is no memory for the copy."""
        try:
            staged = grid.stage(step, flatten_state(state))
        except MemoryError as error:
            grid.back_off(error)
            return False
        waited_s = self._clock() - begun_s
        self.waits_s.append(waited_s)
        self._start(self._commit, grid, staged, begun_s, waited_s, wait)
        return True

    def _commit(self, grid: GridSnapshots, staged: Staged, begun_s: float, waited_s: float, wait: bool) -> None:
        """In the thread. Its CPU time counts as if a step had waited for it: it may share the training's core."""
        staged.layout.finish(staged.view)
        if wait:  # disk first: the worker is about to exit, and the disk needs no other process
            self._flat_to_disk(staged.step, staged.view, staged.header)
        try:
            block = grid.commit(staged)
        except (FairleadError, OSError) as error:
            grid.back_off(error)
            self._write_staged_file(staged, begun_s, waited_s, disk=not wait)
            grid.give_back(staged.room)
            return
        self._report(staged.step, "memory", staged.layout.nbytes, self._clock() - begun_s, waited_s)
        self._drop_old(grid, wait)
        if wait:
            return
        before_s = time.thread_time()
        if self._clock() - self._last_disk_s >= self._disk_interval_s:
            self._block_to_disk(grid, staged, block)
        disk_s = time.thread_time() - before_s
        grid.reserve_next(staged.layout.nbytes)
        computed_s = time.thread_time() - disk_s
        self._interval_s = max(MIN_INTERVAL_S, (waited_s + computed_s) / (MAX_COST - DISK_COST))
        if disk_s > 0 and self._last_disk_s > begun_s:
            self._disk_interval_s = max(MIN_INTERVAL_S, disk_s / DISK_COST)

    def _drop_old(self, grid: GridSnapshots, wait: bool) -> None:
        """Drop older snapshots, also those of nodes where the job ran before."""
        if (
            not self._dropped_unnamed and not wait
        ):  # workers that leave without their peers do so at the same time as others
            self._dropped_unnamed = True
            grid.drop_unnamed_blocks()
        drop_old_snapshots(self._memory, grid)
        own = [stored.step for stored in list_snapshots(self._memory, "memory")]
        if len(own) >= KEEP:
            for folder in self._memories() - {self._memory}:
                for stored in list_snapshots(folder, "memory", grid):
                    if stored.step < min(own):
                        stored.remove()

    def _block_to_disk(self, grid: GridSnapshots, staged: Staged, block: BlockId) -> None:
        """Write to disk from the block, pinned meanwhile, or from this process's memory where it was staged."""
        if staged.outside_arena:
            self._flat_to_disk(staged.step, staged.view, staged.header)
            return
        try:
            whole, header = grid.whole_block(block)
            digest = grid.digest(block) if len(whole) >= HASHED_BYTES else ""
        except (FairleadError, OSError) as error:
            log(f"snapshot {staged.step} did not reach the disk: {error}")
            return
        self._flat_to_disk(staged.step, whole, header, digest)

    def _write_staged_file(self, staged: Staged, begun_s: float, waited_s: float, *, disk: bool) -> None:
        """The grid refused it: write it as a file into memory, and to disk."""
        path = self._memory / f"snapshot-{staged.step}{FLAT}"
        try:
            size = write_flat(path, staged.view, staged.header, sync=False)
            self._report(staged.step, "memory", size, self._clock() - begun_s, waited_s)
            drop_old_snapshots(self._memory, self._grid)
        except OSError as error:
            log(f"no snapshot in memory ({error.strerror}); writing to disk")
        if disk:
            self._flat_to_disk(staged.step, staged.view, staged.header)

    def _flat_to_disk(self, step: int, block: memoryview, header: int, digest: str = "") -> None:
        start, name = self._clock(), f"snapshot-{step}{FLAT}"
        try:
            if digest:
                size = write_hashed(self._disk / name, block, header, digest)
            else:
                size = write_flat(self._disk / name, block, header, sync=True)
        except OSError as error:
            log(f"snapshot {name} did not reach the disk: {error.strerror}")
            return
        self._record_disk_write(step, size, start)

    def _record_disk_write(self, step: int, size: int, start: float) -> None:
        drop_old_snapshots(self._disk)
        self._last_disk_s = self._clock()
        self._report(step, "disk", size, self._last_disk_s - start, 0.0)

    # ------------------------------------------------------------ as files

    def _write_file(self, step: int, state: Mapping[str, Any], begun_s: float, wait: bool) -> None:
        """Write a file into memory while the caller waits; a thread copies it to disk."""
        name = f"snapshot-{step}{FILE}"

        def save(file: Any) -> None:
            torch.save(state, file)

        try:
            size = write_file(self._memory / name, save, sync=False)
        except OSError as error:
            log(f"no snapshot in memory ({error.strerror}); writing to disk")
            self._record_disk_write(step, write_file(self._disk / name, save, sync=True), begun_s)
            waited_s = self._clock() - begun_s
        else:
            waited_s = self._clock() - begun_s
            self._report(step, "memory", size, waited_s, waited_s)
            held = (self._memory / name).open("rb")  # a newer snapshot may remove this one meanwhile
            self._start(self._copy_to_disk, step, held, name)
        self.waits_s.append(waited_s)
        self._interval_s = max(MIN_INTERVAL_S, waited_s / MAX_COST)

    def _copy_to_disk(self, step: int, file: BinaryIO, name: str) -> None:
        def pieces(out: Any) -> None:
            while piece := file.read(1 << 22):
                out.write(piece)

        drop_old_snapshots(self._memory, self._grid)
        start = self._clock()
        with file:
            try:
                size = write_file(self._disk / name, pieces, sync=True, trailer=False)
            except OSError as error:
                log(f"snapshot {name} did not reach the disk: {error.strerror}")
                return
        self._record_disk_write(step, size, start)

    # ------------------------------------------------------------ sharded

    def sharded_folder(self, step: int) -> Path:
        """The folder of this step's shards, once they are written."""
        return self._disk / f"snapshot-{step}{SHARDS}"

    def write_sharded(self, step: int, save: Callable[[Path], None], describe: Callable[[Any], None] | None) -> None:
        """On all ranks at once, to disk. ``describe``, which one rank has, writes the progress: then it is valid."""
        if self._sharded_step == step:
            return
        start, path = self._clock(), self.sharded_folder(step)
        beside = path.with_name(f".{path.name}.tmp")
        beside.mkdir(parents=True, exist_ok=True)
        save(beside)
        self._sharded_step = step
        if describe is not None:
            whole = complete_shards(beside, describe)
            if path.exists():
                shutil.rmtree(path)
            beside.replace(path)
            drop_old_snapshots(self._disk)
            took_s = self._clock() - start
            self._report(step, "disk", whole, took_s, took_s)
        self._last_s = self._clock()
        self._interval_s = max(MIN_INTERVAL_S, (self._last_s - start) / MAX_COST)
