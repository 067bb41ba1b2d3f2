"""One job's snapshots in the grid of its node: room for the next one ready and warm, and a note for each that is there.

A note is a small file in the job's memory folder that names a block. It is written after the block was committed and
goes after the block has gone, so that finding the newest snapshot of any node is a look into a few folders.
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
from fairlead.training.snapshots.flat_state import KIND, FlatState, put_together
from fairlead.training.snapshots.snapshot_files import NOTE, Stored, listed

COST_S = 24 * 3600.0
"""What a state is said to cost to make again: the last thing that a tenant in need of room loses."""
REST_S, MOST_REST_S = 60.0, 3600.0
"""For so long nothing is tried after the grid had no room, or did not answer; twice as long each time that follows."""
_HASHED_WITHIN_S, _LOOK_S = 10.0, 0.1
_SLACK_BYTES, _SLACK_PART = 64 << 10, 64  # a history grows; by so much the room for the next one is larger


@dataclass(frozen=True, slots=True)
class Staged:
    """A state that was copied and is yet to be put away: into the room that was ready for it, or beside."""

    step: int
    view: memoryview
    layout: Layout
    room: ReservedRoom | None

    @property
    def header(self) -> int:
        return len(self.layout.header)

    @property
    def beside(self) -> bool:
        """Whether it lies in memory of this process, which nobody else can take."""
        return self.room is None or not self.room.in_arena


class GridSnapshots:
    """Staging is all that a training step does with it; the rest may take as long as the grid process likes."""

    def __init__(self, job: str, folder: Path) -> None:
        """The folder is this node's part of the job's memory, where the notes are."""
        self._label, self._folder = snapshot_label(job), folder
        self._room: ReservedRoom | None = None
        self._unfit: ReservedRoom | None = None
        self._rests_until_s, self._failures = 0.0, 0

    @property
    def usable(self) -> bool:
        """Whether it is worth trying."""
        return bool(os.environ.get(VARIABLE)) and time.monotonic() >= self._rests_until_s

    def rest(self, error: Exception) -> None:
        """It did not work: say so once, and leave it alone for a while."""
        rest_s = inf if isinstance(error, TooLarge) else min(MOST_REST_S, REST_S * 2.0**self._failures)
        self._rests_until_s = time.monotonic() + rest_s
        self.clear()
        if not self._failures:
            log(f"snapshots do not go into the grid ({error}); they are written as files, while the training waits")
        self._failures += 1

    def clear(self) -> None:
        """Let go of the room for a next one."""
        room, self._room = self._room, None
        self.give_back(room)

    def give_back(self, room: ReservedRoom | None) -> None:
        if room is not None:
            room.give_back()

    # ------------------------------------------------------------ writing

    def stage(self, step: int, flat: FlatState) -> Staged:
        """Copy the state, into room that is ready where there is, else into memory of this process."""
        room, self._room = self._room, None
        if room is not None:
            try:
                layout = Layout(flat.lengths, flat.meta, room.nbytes)
            except ValueError:
                self._unfit, room = room, None
        if room is None:
            layout = Layout(flat.lengths, flat.meta)
            layout = Layout(flat.lengths, flat.meta, _roomy(layout.nbytes))
        view = np.empty(layout.nbytes, np.uint8).data if room is None else room.view
        flat.write(view, layout.parts)
        return Staged(step, view, layout, room)

    def keep(self, staged: Staged) -> BlockId:
        """Make it a block with a note; raises FairleadError or OSError."""
        grid = _grid()
        unfit, self._unfit = self._unfit, None
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

    def prepare(self, nbytes: int) -> None:
        """Have room for the next one, of this size, at hand; where there is none it is asked for when it comes."""
        with contextlib.suppress(FairleadError, OSError):
            self._room = self._reserve(_grid(), nbytes)

    def _reserve(self, grid: Grid, nbytes: int) -> ReservedRoom:
        """If need be, in place of all snapshots but the newest."""
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
        before = _named(note) if note.exists() else None
        beside.write_text(json.dumps({"block": block}))
        beside.replace(note)
        if before is not None:  # of the same step, by a worker that left alone as this one did
            with contextlib.suppress(FairleadError):
                _grid().drop(before)

    def pinned(self, block: BlockId) -> tuple[memoryview, int]:
        """All bytes of a block, held in memory as long as they are used, and how many of them are its header."""
        with _grid().open(block) as opened:
            return opened.whole()

    def digest(self, block: BlockId) -> str:
        """The hash of a block's bytes, which the grid process computes beside; empty if it takes too long."""
        until_s = time.monotonic() + _HASHED_WITHIN_S
        while time.monotonic() < until_s:
            found = next((info for info in _grid().blocks() if info.id == block), None)
            if found is None or found.digest:
                return "" if found is None else found.digest
            time.sleep(_LOOK_S)
        return ""

    # ------------------------------------------------------------ reading, dropping

    def read(self, note: Path) -> FlatState | None:
        """The state, copied out of its block, wherever that is; None if it is damaged."""
        grid, block = _grid(), _named(note)
        with grid.open(block) as opened:
            found = put_together(opened.meta, opened.parts()) if opened.intact() else None
        if note.parent != self._folder:  # it was brought here from another node for this alone
            with contextlib.suppress(FairleadError):
                grid.drop(block)
        return found

    def drop(self, note: Path) -> None:
        """Its block is not needed; one that is open elsewhere goes with :meth:`tidy`, or with the job."""
        with contextlib.suppress(FairleadError, OSError):
            _grid().drop(_named(note))

    def tidy(self) -> None:
        """Drop blocks that no note of this node names: their writer died between one and the other."""
        with contextlib.suppress(FairleadError, OSError):
            grid = _grid()
            named = {_named(stored.path) for stored in self._own()}
            for info in grid.blocks():
                if info.label == self._label and info.id not in named:
                    with contextlib.suppress(FairleadError):
                        grid.drop(info.id)

    def _own(self) -> list[Stored]:
        return [stored for stored in listed(self._folder, "memory", self) if stored.path.suffix == NOTE]


def _named(note: Path) -> BlockId:
    """The block that a note names; raises OSError if it is none."""
    try:
        return BlockId(str(json.loads(note.read_text())["block"]))
    except (ValueError, LookupError, TypeError):
        raise OSError(0, "it names no block") from None


def _grid() -> Grid:
    grid = Grid.of_this_worker()
    if grid is None:
        raise InvalidSpec("this worker has no grid")
    return grid


def _roomy(nbytes: int) -> int:
    """As much and a little more, for a history that grows."""
    return aligned(nbytes + max(_SLACK_BYTES, nbytes // _SLACK_PART), _SLACK_BYTES)
