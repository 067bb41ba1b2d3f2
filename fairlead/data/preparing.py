"""Preparing a data set: a source through a fitted recipe into blocks, in parallel, in bounded memory."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fairlead.data.landing import Put, empty_columns, key_range, land, row_bytes, write
from fairlead.data.manifest import BlockRef, Column, Flagged, Manifest, RowPolicy, said, version_of
from fairlead.data.parts import Part
from fairlead.data.recipes.fitted import FittedRecipe
from fairlead.data.recipes.frame import Array, Frame
from fairlead.data.spool import Readable, Spool, in_order, threads
from fairlead.errors import InvalidSpec

if TYPE_CHECKING:
    from fairlead.grid import Grid

BLOCK_BYTES = 256 << 20
"""Of a block, and so of what is held before it is put: a data set that fits is one block, and a batch one gather."""

FLAGGED_ROWS, FLAGGED_TOLD = 100_000, 1_000


def prepare(
    source: Readable,
    fitted: FittedRecipe,
    put: Put | Grid,
    *,
    name: str = "data",
    part: Part | None = None,
    workers: int | None = None,
    block_bytes: int = BLOCK_BYTES,
    parent: Manifest | None = None,
    key: str | None = None,
) -> Manifest:
    """Replay a fitted recipe on a source (or a part of it) and put what comes out; returns the data set's manifest.

    With a ``parent`` the source holds what came since: the child has the parent's blocks and the new ones.
    """
    fitted.check(source.schema)
    if parent is not None:
        _follows(parent, source, fitted)
    before = parent.rows if parent else 0
    run = _Run(fitted, put, f"dataset/{name}", before, max(1, block_bytes // row_bytes(fitted.outputs)), key)
    frames = in_order(lambda each: _frame(fitted, part, *each), _numbered(source, parent), threads(workers))
    with ThreadPoolExecutor(threads(workers), thread_name_prefix="landing") as pool:
        for frame, batch, rows in frames:
            run.take(pool, frame, batch, rows)
        run.finish()
    return _manifest(run, source, fitted, name, part, parent)


def _frame(fitted: FittedRecipe, part: Part | None, first: int, batch: pa.RecordBatch) -> tuple[Frame, Any, int]:
    rows, places = batch.num_rows, np.arange(first, first + batch.num_rows)
    if part is not None:
        mask = part.mask(first, batch)
        batch, places = batch.filter(pa.array(mask)), places[mask]
    frame = fitted.run(batch, places)
    strange = _strange(batch, places, frame) if frame.flagged else None
    return frame, strange, rows


def _strange(batch: pa.RecordBatch, places: Array, frame: Frame) -> pa.RecordBatch:
    """The flagged rows as they came, with their numbers and scores."""
    chosen = np.flatnonzero(np.isin(places, list(frame.flagged)))
    rows = batch.take(pa.array(chosen))
    numbers = places[chosen]
    scores = pa.array([frame.flagged[int(row)] for row in numbers], pa.float64())
    return rows.append_column("source_row", pa.array(numbers, pa.int64())).append_column("score", scores)


def _numbered(source: Readable, parent: Manifest | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    first = parent.source_rows if parent else 0
    for batch in source.batches():
        yield first, batch
        first += batch.num_rows


@dataclass
class _Run:
    """The block that is being filled, and what was put already."""

    fitted: FittedRecipe
    put: Any
    label: str
    before: int
    capacity: int
    key: str | None
    blocks: list[BlockRef] = field(default_factory=list)
    rows: int = 0  # of the data set so far
    source_rows: int = 0
    flagged: dict[int, float] = field(default_factory=dict)
    strange: list[pa.RecordBatch] = field(default_factory=list)
    _columns: dict[str, Array] | None = None
    _filled: int = 0
    _writes: deque[Future[None]] = field(default_factory=deque)
    _begun_s: float = field(default_factory=time.monotonic)

    def take(self, pool: ThreadPoolExecutor, frame: Frame, strange: pa.RecordBatch | None, rows: int) -> None:
        """Give the rows of a frame their places; threads write them there."""
        self.source_rows += rows
        self.flagged |= frame.flagged
        if strange is not None and sum(each.num_rows for each in self.strange) < FLAGGED_ROWS:
            self.strange.append(strange)
        start = 0
        while start < frame.rows:
            if self._columns is None:
                self._columns = empty_columns(self.fitted.outputs, self.capacity)
            stop = min(frame.rows, start + self.capacity - self._filled)
            self._writes.append(pool.submit(write, frame, start, stop, self._columns, self._filled))
            self._filled += stop - start
            start = stop
            if self._filled == self.capacity:
                self._land()
        while len(self._writes) > 8:
            self._writes.popleft().result()

    def finish(self) -> None:
        if self._filled:
            self._land()

    def _land(self) -> None:
        assert self._columns is not None
        while self._writes:
            self._writes.popleft().result()
        rows, columns = self._filled, self._columns
        spent_s = time.monotonic() - self._begun_s
        block = land(columns, rows, self.put, self.label, spent_s)
        size = rows * row_bytes(self.fitted.outputs)
        keys = key_range(columns, rows, self.key)
        self.blocks.append(BlockRef(block, self.before + self.rows, rows, size, keys=keys))
        self.rows += rows
        self._columns, self._filled, self._begun_s = None, 0, time.monotonic()


def _follows(parent: Manifest, source: Readable, fitted: FittedRecipe) -> None:
    parent.check(source.schema)
    if parent.recipe != fitted.hash:
        raise InvalidSpec(f"was fitted anew ({fitted.hash[:12]}), {parent.name}@{parent.version} was prepared with "
                          f"{parent.recipe[:12]}", field="recipe",
                          fix="append with the recipe of the parent, or prepare a new data set")  # fmt: skip


def _manifest(run: _Run, source: Readable, fitted: FittedRecipe, name: str, part: Part | None,
              parent: Manifest | None) -> Manifest:  # fmt: skip
    drops = any(step.leaves_out for step in fitted.recipe.steps)
    policy = RowPolicy([part.begin, part.end] if part else None, part.seed if part else 0, part.key if part else None,
                       "drop" if drops else "keep")  # fmt: skip
    watermark = source.watermark
    told = sorted(run.flagged.items())[:FLAGGED_TOLD]
    kept = [Flagged(len(run.flagged), told, _kept_apart(run))] if run.flagged else []
    made_from = {
        "name": name, "recipe": fitted.hash, "source": said(source.schema), "watermark": watermark,
        "rows": run.rows, "parent": parent.version if parent else None, "policy": [policy.part, policy.part_seed],
        "blocks": [] if watermark else [block.id for block in run.blocks],
    }  # fmt: skip
    return Manifest(
        name=name, version=version_of(made_from), source_schema=said(source.schema), recipe=fitted.hash,
        schema=[Column(each.name, each.dtype, list(each.shape), list(each.labels)) for each in fitted.outputs],
        rows=run.before + run.rows, blocks=[*(parent.blocks if parent else []), *run.blocks], watermark=watermark,
        policy=policy, parent=parent.version if parent else None, target=fitted.recipe.target,
        flagged=[*(parent.flagged if parent else []), *kept],
        source_rows=(parent.source_rows if parent else 0) + run.source_rows,
    )  # fmt: skip


def _kept_apart(run: _Run) -> str | None:
    """The flagged rows as a block of their own, for whoever looks into them."""
    table = pa.Table.from_batches(run.strange).slice(0, FLAGGED_ROWS).combine_chunks()
    if hasattr(run.put, "put_table"):
        return str(run.put.put_table(table, label=f"{run.label}/flagged"))
    return str(run.put(table.to_batches()[0]))


def refine(source: Readable, recipe: Any, put: Put | Grid, *, part: Part | None = None, memory_bytes: int | None = None,
           **how: Any) -> tuple[FittedRecipe, Manifest]:  # fmt: skip
    """Read once, fit on the training part, prepare: what a person means by loading a data set."""
    spool = source if isinstance(source, Spool) else Spool(source, *([] if memory_bytes is None else [memory_bytes]))
    fitted = recipe.fit(spool, part=part, workers=how.get("workers"))
    return fitted, prepare(spool, fitted, put, part=part, **how)
