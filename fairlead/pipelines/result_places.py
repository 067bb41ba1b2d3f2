"""Chooses where this worker's results are stored: the grid of its node or, without a grid, a folder in memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairlead.errors import NotFound, Unavailable
from fairlead.grid.client import Grid
from fairlead.grid.values import BlockId
from fairlead.local_wire import PlacedSpec
from fairlead.pipelines.results import FolderStore, ResultStore


class GridStore:
    """Stores results as grid blocks under the label of their stage."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def put(self, parts: Sequence[Any], label: str, cost_s: float = 0.0) -> str:
        return str(self._grid.put(parts, kind="stage", meta={}, label=label, cost_s=cost_s))

    def open(self, block: str) -> list[memoryview]:
        if not block.isalnum():
            raise NotFound(f"there is no block {block!r} in the grid")
        try:
            return self._grid.open(BlockId(block)).parts()
        except Unavailable as error:
            self._grid.usage()  # raises if the grid itself is unreachable
            raise NotFound(f"the block {block} is damaged: {error.message}") from None  # its stage runs again


class LazyStore:
    """Connects on first use: a stage with only plain values connects to nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: ResultStore | None = None

    def put(self, parts: Sequence[Any], label: str, cost_s: float = 0.0) -> str:
        return self._place().put(parts, label, cost_s)

    def open(self, block: str) -> list[memoryview]:
        return self._place().open(block)

    def _place(self) -> ResultStore:
        if self._found is None:
            grid = Grid.of_this_worker()
            self._found = FolderStore(self._folder) if grid is None else GridStore(grid)
        return self._found


def worker_result_store(spec: PlacedSpec) -> ResultStore:
    """The store for this worker's results and those of other stages."""
    return LazyStore(Path(spec.memory_folder))
