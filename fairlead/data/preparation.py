"""Prepares a data set: runs a source through a fitted recipe into blocks, in parallel and bounded memory."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fairlead.data.column_buffers import (
    ContentHash,
    PutBlock,
    empty_columns,
    key_range,
    put_block,
    row_bytes,
    write_rows,
)
from fairlead.data.errors import BadData
from fairlead.data.manifest import BlockRef, Column, FlaggedRows, Manifest, RowPolicy, schema_types, version_of
from fairlead.data.recipes.batch_columns import Array, Frame
from fairlead.data.recipes.recipe import FittedRecipe
from fairlead.data.spool import BatchSource, Spool
from fairlead.data.thread_map import map_in_order, thread_count
from fairlead.data.train_test_split import Part
from fairlead.errors import InvalidSpec

if TYPE_CHECKING:
    from fairlead.grid import Grid

BLOCK_BYTES = 256 << 20
"""Size of a block that is buffered before it is put. A data set of one block needs one gather per batch."""

DIRECT_BYTES = 1 << 30
"""Size of a block that is computed in the grid itself, without a buffer."""
FLAGGED_ROWS, FLAGGED_LISTED = 100_000, 1_000
_PENDING_WRITES = 8  # as many batches are in memory
_BYTES_PER_S = 1e8  # at which blocks can be prepared again: the grid evicts the cheapest first


def prepare(
    source: BatchSource,
    fitted: FittedRecipe,
    put: PutBlock | Grid,
    *,
    name: str = "data",
    part: Part | None = None,
    workers: int | None = None,
    block_bytes: int | None = None,
    parent: Manifest | None = None,
    key: str | None = None,
) -> Manifest:
    """Replay a fitted recipe on a source, or a part of it, and put the blocks; returns the data set's manifest.

    With a ``parent`` the source holds only the rows added since: the child has the parent's blocks and the new ones,
    restricted to the parent's part of the rows. So a row of the test part never enters the training part.
    """
    fitted.check(source.schema)
    if parent is not None:
        _check_same_recipe(parent, source, fitted)
        part = _inherited_part(parent, part)
    content = None if source.watermark_identifies_content else ContentHash()
    label = f"dataset/{name}@{secrets.token_hex(4)}"  # one per load: a version is dropped by its loads
    run = _BlockWriter(fitted, put, label, parent.rows if parent else 0, key, content)
    frames = map_in_order(
        lambda each: _prepared_frame(fitted, part, *each), _numbered_batches(source, parent), thread_count(workers)
    )
    with ThreadPoolExecutor(thread_count(workers), thread_name_prefix="prepare") as pool:
        stream = _FrameStream(frames, pool)
        run.write_all(stream, _expected_rows(source, fitted, part, parent), block_bytes)
    return _manifest(run, stream, source, fitted, name, part, parent)


def _expected_rows(source: BatchSource, fitted: FittedRecipe, part: Part | None, parent: Manifest | None) -> int | None:
    """The number of rows to come, or None if unknown. Known rows are computed in the grid's own memory."""
    if source.rows is None or any(step.drops_rows for step in fitted.recipe.steps):
        return None
    return source.rows if part is None else part.count(parent.source_rows if parent else 0, source.rows)


def _prepared_frame(
    fitted: FittedRecipe, part: Part | None, first: int, batch: pa.RecordBatch
) -> tuple[Frame, Any, int]:
    rows, places = batch.num_rows, np.arange(first, first + batch.num_rows)
    if part is not None:
        mask = part.mask(first, batch)
        batch, places = batch.filter(pa.array(mask)), places[mask]
    frame = fitted.replay(batch, places)
    flagged_rows = _flagged_rows(batch, places, frame) if frame.flagged else None
    return frame, flagged_rows, rows


def _flagged_rows(batch: pa.RecordBatch, places: Array, frame: Frame) -> pa.RecordBatch:
    """The flagged rows in their original form, with row numbers and scores."""
    chosen = np.flatnonzero(np.isin(places, list(frame.flagged)))
    rows = batch.take(pa.array(chosen))
    numbers = places[chosen]
    scores = pa.array([frame.flagged[int(row)] for row in numbers], pa.float64())
    return rows.append_column("source_row", pa.array(numbers, pa.int64())).append_column("score", scores)


def _numbered_batches(source: BatchSource, parent: Manifest | None) -> Iterator[tuple[int, pa.RecordBatch]]:
    first = parent.source_rows if parent else 0
    for batch in source.batches():
        yield first, batch
        first += batch.num_rows


class _FrameStream:
    """Prepared frames in order, copied into column buffers by several threads."""

    def __init__(self, frames: Iterator[tuple[Frame, pa.RecordBatch | None, int]], pool: ThreadPoolExecutor) -> None:
        self._frames, self._pool = frames, pool
        self._frame: Frame | None = None
        self._start = self.source_rows = 0
        self.flagged: dict[int, float] = {}
        self.flagged_rows: list[pa.RecordBatch] = []

    def fill(self, columns: Mapping[str, Array], capacity: int) -> int:
        """Write up to ``capacity`` rows; returns how many there were."""
        filled, writes = 0, deque[Future[None]]()
        while filled < capacity:
            frame = self.current()
            if frame is None:
                break
            stop = min(frame.rows, self._start + capacity - filled)
            writes.append(self._pool.submit(write_rows, frame, self._start, stop, columns, filled))
            filled, self._start = filled + stop - self._start, stop
            while len(writes) > _PENDING_WRITES:
                writes.popleft().result()
        while writes:
            writes.popleft().result()
        return filled

    def current(self) -> Frame | None:
        """The frame with the next row; None at the end."""
        while self._frame is None or self._start == self._frame.rows:
            following = next(self._frames, None)
            if following is None:
                return None
            self._frame, flagged_rows, rows = following
            self._start = 0
            self.source_rows += rows
            self.flagged |= self._frame.flagged
            if flagged_rows is not None and sum(each.num_rows for each in self.flagged_rows) < FLAGGED_ROWS:
                self.flagged_rows.append(flagged_rows)
        return self._frame


@dataclass
class _BlockWriter:
    """Writes a stream of frames block by block and keeps the references to the blocks."""

    fitted: FittedRecipe
    put: Any
    label: str
    before: int
    key: str | None
    content: ContentHash | None
    blocks: list[BlockRef] = field(default_factory=list)
    rows: int = 0

    def write_all(self, stream: _FrameStream, expected: int | None, block_bytes: int | None) -> None:
        each = row_bytes(self.fitted.outputs)
        direct = expected is not None and hasattr(self.put, "make_tensors")
        capacity = max(1, (block_bytes or (DIRECT_BYTES if direct else BLOCK_BYTES)) // each)
        while expected is None or self.rows < expected:
            rows = capacity if expected is None else min(capacity, expected - self.rows)
            if not (self._write_in_grid(stream, rows) if direct else self._write_buffered(stream, rows)):
                break
        if stream.current() is not None:
            raise _row_count_changed("more")

    def _write_in_grid(self, stream: _FrameStream, rows: int) -> bool:
        """Compute a block in the grid's own memory, without a buffer or a copy."""
        keys: list[Any] = []

        def fill(columns: dict[str, Array]) -> None:
            if stream.fill(columns, rows) != rows:
                raise _row_count_changed("fewer")
            keys.append(self._key_range(columns, rows))

        shapes = {each.name: (each.dtype, (rows, *each.shape)) for each in self.fitted.outputs}
        size = rows * row_bytes(self.fitted.outputs)
        block = self.put.make_tensors(shapes, fill, label=self.label, cost_s=size / _BYTES_PER_S)
        self._record_block(str(block), rows, keys[0])
        return True

    def _write_buffered(self, stream: _FrameStream, rows: int) -> bool:
        columns = empty_columns(self.fitted.outputs, rows)
        filled = stream.fill(columns, rows)
        if filled:
            size = filled * row_bytes(self.fitted.outputs)
            block = put_block(columns, filled, self.put, self.label, size / _BYTES_PER_S)
            self._record_block(block, filled, self._key_range(columns, filled))
        return filled == rows

    def _key_range(self, columns: Mapping[str, Array], rows: int) -> list[Any] | None:
        """Hash the rows, if needed, and return the range of their keys, while they are in the cache."""
        if self.content is not None:
            self.content.add(columns, rows)
        return key_range(columns, rows, self.key)

    def _record_block(self, block: str, rows: int, keys: list[Any] | None) -> None:
        size = rows * row_bytes(self.fitted.outputs)
        self.blocks.append(BlockRef(block, self.before + self.rows, rows, size, keys=keys))
        self.rows += rows


def _row_count_changed(how: str) -> BadData:
    return BadData("the source", f"has {how} rows than announced", fix="it changed during the read: load it again")


def _check_same_recipe(parent: Manifest, source: BatchSource, fitted: FittedRecipe) -> None:
    parent.check(source.schema)
    if parent.recipe != fitted.hash:
        raise InvalidSpec(f"is {fitted.hash[:12]}, but {parent.name}@{parent.version} was prepared with "
                          f"{parent.recipe[:12]}", field="recipe",
                          fix="append with the recipe of the parent, or prepare a new data set")  # fmt: skip


def _inherited_part(parent: Manifest, part: Part | None) -> Part | None:
    """The parent's part of the rows, which also applies to the child."""
    policy = parent.policy
    own = None if policy.part is None else Part(policy.part[0], policy.part[1], policy.part_seed, policy.part_key)
    if part is not None and part != own:
        raise InvalidSpec(f"differs from the part of {parent.name}@{parent.version}", field="part",
                          fix="leave it out: appended rows use the parent's part")  # fmt: skip
    return own


def _manifest(
    run: _BlockWriter, stream: _FrameStream, source: BatchSource, fitted: FittedRecipe, name: str, part: Part | None,
    parent: Manifest | None,
) -> Manifest:  # fmt: skip
    drops = any(step.drops_rows for step in fitted.recipe.steps)
    policy = RowPolicy([part.begin, part.end] if part else None, part.seed if part else 0, part.key if part else None,
                       "drop" if drops else "keep")  # fmt: skip
    watermark = source.watermark
    first_flagged = sorted(stream.flagged.items())[:FLAGGED_LISTED]
    kept = [FlaggedRows(len(stream.flagged), first_flagged, _put_flagged_rows(run, stream))] if stream.flagged else []
    made_from = {
        "name": name, "recipe": fitted.hash, "source": schema_types(source.schema), "watermark": watermark,
        "rows": run.rows, "parent": parent.version if parent else None, "policy": [policy.part, policy.part_seed],
        "blocks": [],
    }  # fmt: skip
    if policy.part_key is not None:
        made_from["part_key"] = policy.part_key
    if run.content is not None:
        made_from["content"] = run.content.digest()
    return Manifest(
        name=name, version=version_of(made_from), source_schema=schema_types(source.schema), recipe=fitted.hash,
        schema=[Column(each.name, each.dtype, list(each.shape), list(each.labels)) for each in fitted.outputs],
        rows=run.before + run.rows, blocks=[*(parent.blocks if parent else []), *run.blocks], watermark=watermark,
        policy=policy, parent=parent.version if parent else None, target=fitted.recipe.target,
        flagged=[*(parent.flagged if parent else []), *kept],
        source_rows=(parent.source_rows if parent else 0) + stream.source_rows,
        labels=[*(parent.block_labels if parent else []), run.label],
    )  # fmt: skip


def _put_flagged_rows(run: _BlockWriter, stream: _FrameStream) -> str | None:
    """Put the flagged rows into a block of their own, for inspection; returns its id."""
    table = pa.Table.from_batches(stream.flagged_rows).slice(0, FLAGGED_ROWS).combine_chunks()
    if hasattr(run.put, "put_table"):
        return str(run.put.put_table(table, label=f"{run.label}/flagged"))
    return str(run.put(table.to_batches()[0]))


def fit_and_prepare(source: BatchSource, recipe: Any, put: PutBlock | Grid, *, part: Part | None = None,
           memory_bytes: int | None = None,
           **how: Any) -> tuple[FittedRecipe, Manifest]:  # fmt: skip
    """Load a data set: read it once, fit the recipe on the training part, and prepare the blocks."""
    spool = source if isinstance(source, Spool) else Spool(source, memory_bytes)
    fitted = recipe.fit(spool, part=part, workers=how.get("workers"))
    return fitted, prepare(spool, fitted, put, part=part, **how)
