"""The state of a job outside its workers: copied into the grid while a step waits, and to disk behind its back.

A step waits for one copy of the tensors. Committing it, dropping older ones, and at times the copy to disk are a
thread's business. Without a grid, or without room in it, the state is written as a file into the node's memory instead.
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
from fairlead.training.snapshots.flat_state import taken_apart
from fairlead.training.snapshots.grid_snapshots import GridSnapshots, Staged
from fairlead.training.snapshots.snapshot_files import (
    FILE,
    FLAT,
    KEEP,
    PARTS,
    Stored,
    drop_old,
    listed,
    write_file,
    write_flat,
    write_hashed,
    write_place,
)

MIN_INTERVAL_S = 1.0
MAX_COST = 0.03  # part of the time that snapshots may take
DISK_COST = MAX_COST / 2  # of which the copies to disk may take so much: it says how many snapshots reach it

HASHED_BYTES = 4 << 20  # from here on the grid's hash is waited for, which costs the worker nothing

Report = Callable[[int, str, int, float, float], None]
"""Told of each snapshot: step, memory or disk, bytes, seconds that it took, and seconds that a step waited for it."""


class Snapshots:
    """Where one job's snapshots are. Only rank 0 writes; every worker may read."""

    def __init__(
        self, folder: Path, memory_folder: Path, report: Report, shelf: GridSnapshots | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Without a shelf nothing goes into the grid, and nothing is read from it."""
        self._clock = clock
        self._disk = folder / "snapshots"
        self._memory = memory_folder
        self._report, self._shelf = report, shelf
        self._behind: threading.Thread | None = None
        self._interval_s = self._disk_interval_s = MIN_INTERVAL_S
        self._parts_step = -1  # of the last that was written in parts
        self._last_s = self._clock()
        self._last_disk_s = float("-inf")
        self._tidy = False
        self.waits_s: deque[float] = deque(maxlen=10_000)  # of the steps that a snapshot was taken after

    def find(self) -> list[Stored]:
        """All that is there, the furthest first, memory before disk."""
        found = [stored for folder in self._memories() for stored in listed(folder, "memory", self._shelf)]
        found += listed(self._disk, "disk")
        return sorted(found, key=lambda s: (s.step, s.where == "memory"), reverse=True)

    def _memories(self) -> set[Path]:
        """This node's memory and what can be seen of the others' (layout: memory root / job / node)."""
        others = self._memory.parent.glob("*/")
        return {self._memory, *(path for path in others if os.access(path, os.R_OK | os.X_OK))}

    def rearm(self, *, writes: bool = True) -> None:
        """A generation begins: its first snapshot is not due at once, when everybody waits for the next step."""
        self._last_s = self._clock()
        if self._shelf is not None and not writes:
            self._shelf.clear()

    def due(self) -> bool:
        """Whether it is time for the next one: not too often, and not too dear."""
        return self._clock() - self._last_s >= self._interval_s and not self._busy()

    def write(self, step: int, state: Mapping[str, Any], *, wait: bool = False) -> None:
        """Put the state into memory, and at times on disk, behind the caller's back; with ``wait`` it is on both."""
        begun_s = self._clock()
        self.finish()
        if self._shelf is None or not self._shelf.usable or not self._stage(self._shelf, step, state, begun_s, wait):
            self._as_file(step, state, begun_s, wait)
        self._last_s = self._clock()
        if wait:
            self.finish()

    def finish(self) -> None:
        """Let what is under way come to its end."""
        if self._behind is not None:
            self._behind.join()
            self._behind = None

    def _busy(self) -> bool:
        return self._behind is not None and self._behind.is_alive()

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        self._behind = threading.Thread(target=work, args=arguments, name="fairlead-snapshot", daemon=True)
        self._behind.start()

    # ------------------------------------------------------------ through the grid

    def _stage(self, shelf: GridSnapshots, step: int, state: Mapping[str, Any], begun_s: float, wait: bool) -> bool:
        """What a step waits for; false if there is not even memory to copy into."""
        try:
            staged = shelf.stage(step, taken_apart(state))
        except MemoryError as error:
            shelf.rest(error)
            return False
        waited_s = self._clock() - begun_s
        self.waits_s.append(waited_s)
        self._start(self._put_away, shelf, staged, begun_s, waited_s, wait)
        return True

    def _put_away(self, shelf: GridSnapshots, staged: Staged, begun_s: float, waited_s: float, wait: bool) -> None:
        """In a thread. What it computes counts as if a step had waited for it: it may share the training's core."""
        staged.layout.finish(staged.view)
        if wait:  # first to disk: it is asked for by those who go for good, and needs nobody else
            self._flat_to_disk(staged.step, staged.view, staged.header)
        try:
            block = shelf.keep(staged)
        except (FairleadError, OSError) as error:
            shelf.rest(error)
            self._staged_as_file(staged, begun_s, waited_s, disk=not wait)
            shelf.give_back(staged.room)
            return
        self._report(staged.step, "memory", staged.layout.nbytes, self._clock() - begun_s, waited_s)
        self._drop_old(shelf, wait)
        if wait:
            return
        before_s = time.thread_time()
        if self._clock() - self._last_disk_s >= self._disk_interval_s:
            self._kept_to_disk(shelf, staged, block)
        disk_s = time.thread_time() - before_s
        shelf.prepare(staged.layout.nbytes)
        computed_s = time.thread_time() - disk_s
        self._interval_s = max(MIN_INTERVAL_S, (waited_s + computed_s) / (MAX_COST - DISK_COST))
        if disk_s > 0 and self._last_disk_s > begun_s:
            self._disk_interval_s = max(MIN_INTERVAL_S, disk_s / DISK_COST)

    def _drop_old(self, shelf: GridSnapshots, wait: bool) -> None:
        """Newer ones are here: older ones may go, of nodes where the job was before, too."""
        if not self._tidy and not wait:  # those who leave alone do so beside others
            self._tidy = True
            shelf.tidy()
        drop_old(self._memory, shelf)
        own = [stored.step for stored in listed(self._memory, "memory")]
        if len(own) >= KEEP:
            for folder in self._memories() - {self._memory}:
                for stored in listed(folder, "memory", shelf):
                    if stored.step < min(own):
                        stored.remove()

    def _kept_to_disk(self, shelf: GridSnapshots, staged: Staged, block: BlockId) -> None:
        """From a block that is held in memory meanwhile, or from where it was staged beside."""
        if staged.beside:
            self._flat_to_disk(staged.step, staged.view, staged.header)
            return
        try:
            whole, header = shelf.pinned(block)
            digest = shelf.digest(block) if len(whole) >= HASHED_BYTES else ""
        except (FairleadError, OSError) as error:
            log(f"snapshot {staged.step} did not reach the disk: {error}")
            return
        self._flat_to_disk(staged.step, whole, header, digest)

    def _staged_as_file(self, staged: Staged, begun_s: float, waited_s: float, *, disk: bool) -> None:
        """The grid did not take it: as a file into memory, and on."""
        path = self._memory / f"snapshot-{staged.step}{FLAT}"
        try:
            size = write_flat(path, staged.view, staged.header, sync=False)
            self._report(staged.step, "memory", size, self._clock() - begun_s, waited_s)
            drop_old(self._memory, self._shelf)
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
        self._on_disk(step, size, start)

    def _on_disk(self, step: int, size: int, start: float) -> None:
        drop_old(self._disk)
        self._last_disk_s = self._clock()
        self._report(step, "disk", size, self._last_disk_s - start, 0.0)

    # ------------------------------------------------------------ as files

    def _as_file(self, step: int, state: Mapping[str, Any], begun_s: float, wait: bool) -> None:
        """Into memory while the caller waits, and its copy to disk behind."""
        name = f"snapshot-{step}{FILE}"

        def save(file: Any) -> None:
            torch.save(state, file)

        try:
            size = write_file(self._memory / name, save, sync=False)
        except OSError as error:
            log(f"no snapshot in memory ({error.strerror}); writing to disk")
            self._on_disk(step, write_file(self._disk / name, save, sync=True), begun_s)
            waited_s = self._clock() - begun_s
        else:
            waited_s = self._clock() - begun_s
            self._report(step, "memory", size, waited_s, waited_s)
            held = (self._memory / name).open("rb")  # a newer snapshot may push this one out meanwhile
            self._start(self._copy_held, step, held, name)
        self.waits_s.append(waited_s)
        self._interval_s = max(MIN_INTERVAL_S, waited_s / MAX_COST)

    def _copy_held(self, step: int, file: BinaryIO, name: str) -> None:
        def pieces(out: Any) -> None:
            while piece := file.read(1 << 22):
                out.write(piece)

        drop_old(self._memory, self._shelf)
        start = self._clock()
        with file:
            try:
                size = write_file(self._disk / name, pieces, sync=True, trailer=False)
            except OSError as error:
                log(f"snapshot {name} did not reach the disk: {error.strerror}")
                return
        self._on_disk(step, size, start)

    # ------------------------------------------------------------ in parts

    def parts(self, step: int) -> Path:
        """Where the parts of this step's snapshot lie once they are written."""
        return self._disk / f"snapshot-{step}{PARTS}"

    def write_parts(self, step: int, save: Callable[[Path], None], describe: Callable[[Any], None] | None) -> None:
        """By all ranks at once, on disk. Who has ``describe``, which says where it stands, makes it valid."""
        if self._parts_step == step:
            return
        start, path = self._clock(), self.parts(step)
        beside = path.with_name(f".{path.name}.tmp")
        beside.mkdir(parents=True, exist_ok=True)
        save(beside)
        self._parts_step = step
        if describe is not None:
            whole = write_place(beside, describe)
            if path.exists():
                shutil.rmtree(path)
            beside.replace(path)
            drop_old(self._disk)
            took_s = self._clock() - start
            self._report(step, "disk", whole, took_s, took_s)
        self._last_s = self._clock()
        self._interval_s = max(MIN_INTERVAL_S, (self._last_s - start) / MAX_COST)
