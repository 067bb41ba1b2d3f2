"""One job's snapshots in the grid of its node: room reserved for the next one, and a note for each that exists.

A note is a small file in the job's memory folder that names a block. It is written after the block was committed and
removed after the block, so that finding the newest snapshot of any node means listing a few folders.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from fairlead.errors import FairleadError, InvalidSpec, Refused, TooLarge
from fairlead.grid.client import Grid
from fairlead.grid.copying import copy
from fairlead.grid.layout import Layout
from fairlead.grid.reserved_room import ReservedRoom
from fairlead.grid.values import VARIABLE, BlockId, aligned, snapshot_label
from fairlead.training.channel import log
from fairlead.training.snapshots.flat_state import KIND, FlatState, flat_state_from_parts
from fairlead.training.snapshots.snapshot_files import NOTE, StoredSnapshot, list_snapshots

COST_S = 24 * 3600.0
"""The cost of recomputing a state, as told to the grid: it is evicted last."""
BACKOFF_S, MOST_BACKOFF_S = 60.0, 3600.0
"""How long the grid is not tried again after a failure; doubles with each failure in a row."""
_HASHED_WITHIN_S, _LOOK_S = 10.0, 0.1
_SLACK_BYTES, _SLACK_PART = 64 << 10, 64  # extra room for the next snapshot, whose history is longer


@dataclass(frozen=True, slots=True)
class Staged:
    """A state that was copied and is yet to be committed: in reserved room, or in this process's memory."""

    step: int
    view: memoryview
    layout: Layout
    room: ReservedRoom | None

    @property
    def header(self) -> int:
        return len(self.layout.header)

    @property
    def outside_arena(self) -> bool:
        """Whether it lies in memory of this process, which the grid cannot evict."""
        return self.room is None or not self.room.in_arena


class GridSnapshots:
    """Stages and commits snapshots. A training step waits for the staging only."""

    def __init__(self, job: str, folder: Path) -> None:
        """``folder``: this node's part of the job's memory, which holds the notes."""
        self._label, self._folder = snapshot_label(job), folder
        self._room: ReservedRoom | None = None
        self._unfit_room: ReservedRoom | None = None
        self._back_off_until_s, self._failures = 0.0, 0

    @property
    def usable(self) -> bool:
        """Whether the worker has a grid and no back-off is running."""
        return bool(os.environ.get(VARIABLE)) and time.monotonic() >= self._back_off_until_s

    def back_off(self, error: Exception) -> None:
        """Record a failure: log the first one, and do not use the grid for a while."""
        rest_s = inf if isinstance(error, TooLarge) else min(MOST_BACKOFF_S, BACKOFF_S * 2.0**self._failures)
        self._back_off_until_s = time.monotonic() + rest_s
        self.clear()
        if not self._failures:
            log(f"snapshots cannot go into the grid ({error}); they are written as files, for which the training waits")
        self._failures += 1

    def clear(self) -> None:
        """Give back the room that is reserved for the next snapshot."""
        room, self._room = self._room, None
        self.give_back(room)

    def give_back(self, room: ReservedRoom | None) -> None:
        if room is not None:
            room.give_back()

    # ------------------------------------------------------------ writing

    def stage(self, step: int, flat: FlatState) -> Staged:
        """Copy the state: into reserved room if there is any, else into memory of this process."""
        room, self._room = self._room, None
        if room is not None:
            try:
                layout = Layout(flat.lengths, flat.meta, room.nbytes)
            except ValueError:
                self._unfit_room, room = room, None
        if room is None:
            layout = Layout(flat.lengths, flat.meta)
            layout = Layout(flat.lengths, flat.meta, _with_slack(layout.nbytes))
        view = np.empty(layout.nbytes, np.uint8).data if room is None else room.view
        flat.write(view, layout.parts)
        return Staged(step, view, layout, room)

    def commit(self, staged: Staged) -> BlockId:
        """Make it a block with a note; raises FairleadError or OSError."""
        grid = _grid()
        unfit, self._unfit_room = self._unfit_room, None
        self.give_back(unfit)
        room = staged.room
        if room is None:
            room = self._reserve(grid, staged.layout.nbytes)
            copy(room.view, staged.view)
        block = room.commit(staged.layout, kind=KIND, label=self._label, cost_s=COST_S)
        try:
            self._write_note(staged.step, block)
        except OSError:
            with contextlib.suppress(FairleadError):
                grid.drop(block)
            raise
        if self._failures:
            log("snapshots go into the grid again")
            self._failures = 0
        return block

    def reserve_next(self, nbytes: int) -> None:
        """Reserve room for the next snapshot; without success it is requested when the snapshot is taken."""
        with contextlib.suppress(FairleadError, OSError):
            self._room = self._reserve(_grid(), nbytes)

    def _reserve(self, grid: Grid, nbytes: int) -> ReservedRoom:
        """Reserve room; if there is none, drop all snapshots but the newest and try again."""
        try:
            return grid.reserve(nbytes)
        except Refused:
            own = sorted(self._own(), key=lambda stored: stored.step)
            if len(own) < 2:
                raise
            for stored in own[:-1]:
                stored.remove()
            return grid.reserve(nbytes)

    def _write_note(self, step: int, block: BlockId) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        note = self._folder / f"snapshot-{step}{NOTE}"
        beside = note.with_name(f".{note.name}.{os.getpid()}.tmp")
        before = _block_of(note) if note.exists() else None
        beside.write_text(json.dumps({"block": block}))
        beside.replace(note)
        if before is not None:  # of the same step, from a worker that left without its peers, as this one did
            with contextlib.suppress(FairleadError):
                _grid().drop(before)

    def whole_block(self, block: BlockId) -> tuple[memoryview, int]:
        """All bytes of a block, pinned while the view is in use, and how many of them are its header."""
        with _grid().open(block) as opened:
            return opened.whole()

    def digest(self, block: BlockId) -> str:
        """The hash of a block, computed by the grid process; empty if that takes too long."""
        until_s = time.monotonic() + _HASHED_WITHIN_S
        while time.monotonic() < until_s:
            found = next((info for info in _grid().blocks() if info.id == block), None)
            if found is None or found.digest:
                return "" if found is None else found.digest
            time.sleep(_LOOK_S)
        return ""

    # ------------------------------------------------------------ reading, dropping

    def read(self, note: Path) -> FlatState | None:
        """The state, copied out of its block on any node; None if it is damaged."""
        grid, block = _grid(), _block_of(note)
        with grid.open(block) as opened:
            found = flat_state_from_parts(opened.meta, opened.parts()) if opened.intact() else None
        if note.parent != self._folder:  # it was fetched from another node only for this
            with contextlib.suppress(FairleadError):
                grid.drop(block)
        return found

    def drop(self, note: Path) -> None:
        """Drop the block of a note; one that is open elsewhere goes later, with its job at the latest."""
        with contextlib.suppress(FairleadError, OSError):
            _grid().drop(_block_of(note))

    def drop_unnamed_blocks(self) -> None:
        """Drop blocks that no note of this node names: their writer died before it wrote one."""
        with contextlib.suppress(FairleadError, OSError):
            grid = _grid()
            named = {_block_of(stored.path) for stored in self._own()}
            for info in grid.blocks():
                if info.label == self._label and info.id not in named:
                    with contextlib.suppress(FairleadError):
                        grid.drop(info.id)

    def _own(self) -> list[StoredSnapshot]:
        return [stored for stored in list_snapshots(self._folder, "memory", self) if stored.path.suffix == NOTE]


def _block_of(note: Path) -> BlockId:
    """The block that a note names; raises OSError if the note is damaged."""
    try:
        return BlockId(str(json.loads(note.read_text())["block"]))
    except (ValueError, LookupError, TypeError):
        raise OSError(0, "the note names no block") from None


def _grid() -> Grid:
    grid = Grid.of_this_worker()
    if grid is None:
        raise InvalidSpec("this worker has no grid")
    return grid


def _with_slack(nbytes: int) -> int:
    """The size plus some slack, because the history grows."""
    return aligned(nbytes + max(_SLACK_BYTES, nbytes // _SLACK_PART), _SLACK_BYTES)
