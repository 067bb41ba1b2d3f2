"""Keeps the batches of a source in memory if they fit, so that fitting and preparing read it once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import pyarrow as pa

from fairlead.data.memory_budget import spool_bytes


class BatchSource(Protocol):
    """The input of fitting and preparing: a Source, or a Spool of one."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def rows(self) -> int | None: ...

    @property
    def watermark(self) -> dict[str, Any]: ...

    @property
    def watermark_identifies_content(self) -> bool: ...

    def batches(self) -> Iterator[pa.RecordBatch]: ...


class Spool:
    """A source that keeps its batches after the first pass, unless they exceed ``memory_bytes``."""

    def __init__(self, source: BatchSource, memory_bytes: int | None = None) -> None:
        self._source = source
        self._memory_bytes = spool_bytes() if memory_bytes is None else memory_bytes
        self._kept: list[pa.RecordBatch] | None = None
        self._first: tuple[pa.RecordBatch, Iterator[pa.RecordBatch]] | None = None
        self._rows: int | None = None

    @property
    def schema(self) -> pa.Schema:
        return self._source.schema

    @property
    def rows(self) -> int | None:
        return self._rows if self._rows is not None else self._source.rows

    @property
    def watermark(self) -> dict[str, Any]:
        return self._source.watermark

    @property
    def watermark_identifies_content(self) -> bool:
        return self._source.watermark_identifies_content

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, from memory after a first pass that fitted.

        Batches that fit are all read before the first is yielded: reading and computing side by side compete for the
        interpreter's lock, and took a fifth longer than one after the other.
        """
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[pa.RecordBatch] = []
        rows = size = 0
        reading = self._reading()
        for batch in reading:
            rows, size = rows + batch.num_rows, size + batch.nbytes
            kept.append(batch)
            if size > self._memory_bytes:
                break
        else:
            self._rows, self._kept = rows, kept
            yield from kept
            return
        while kept:
            yield kept.pop(0)
        for batch in reading:
            rows += batch.num_rows
            yield batch
        self._rows = rows

    def numbered(self) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Batches with their index and the number of their first row."""
        first = 0
        for place, batch in enumerate(self.batches()):
            yield place, first, batch
            first += batch.num_rows

    def replace_batch(self, place: int, batch: pa.RecordBatch) -> None:
        """Replace a kept batch by an equivalent that is cheaper to process again."""
        if self._kept is not None and place < len(self._kept):
            self._kept[place] = batch

    def first_batch(self) -> pa.RecordBatch | None:
        """The first batch with rows; the next pass continues behind it without reading it again."""
        if self._kept is not None:
            return next((batch for batch in self._kept if batch.num_rows), None)
        if self._first is None:
            following = self._source.batches()
            first = next((batch for batch in following if batch.num_rows), None)
            if first is None:
                return None
            self._first = first, following
        return self._first[0]

    def _reading(self) -> Iterator[pa.RecordBatch]:
        if self._first is None:
            yield from self._source.batches()
            return
        (batch, following), self._first = self._first, None
        yield batch
        yield from following
