"""What was read once is kept in memory as long as it fits, so that fitting and preparing do not read it again."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from fairlead.data.memory_budget import spool_bytes

A = TypeVar("A")
B = TypeVar("B")


class BatchSource(Protocol):
    """What recipes are fitted on and data sets are prepared from: a Source, or a spool of one."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def rows(self) -> int | None: ...

    @property
    def watermark(self) -> dict[str, Any]: ...

    @property
    def told_apart(self) -> bool: ...

    def batches(self) -> Iterator[pa.RecordBatch]: ...


class Spool:
    """A source whose batches are kept after the first reading; beyond ``memory_bytes`` it is read again instead."""

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
    def told_apart(self) -> bool:
        return self._source.told_apart

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All rows, from memory if they are there.

        What fits is read before the first of it is handed out: who reads and who computes would take turns at the
        interpreter's lock, and both together took a fifth longer than one after the other.
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
        """Batches with their place and the number of their first row."""
        first = 0
        for place, batch in enumerate(self.batches()):
            yield place, first, batch
            first += batch.num_rows

    def swap(self, place: int, batch: pa.RecordBatch) -> None:
        """Keep a batch in another form, which costs whoever reads it again less."""
        if self._kept is not None and place < len(self._kept):
            self._kept[place] = batch

    def peek(self) -> pa.RecordBatch | None:
        """The first batch that has rows; whoever reads next does not read it again."""
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


def threads(wanted: int | None) -> int:
    """How many threads work at a time: as many as there are cores, up to 8."""
    return max(1, wanted or min(8, len(os.sched_getaffinity(0))))


def in_order(work: Callable[[A], B], items: Iterable[A], workers: int) -> Iterator[B]:
    """What the work makes of each item, in their order, with only a few of them under way."""
    if workers == 1:
        yield from map(work, items)
        return
    feed = iter(items)
    with ThreadPoolExecutor(workers, thread_name_prefix="recipe") as pool:
        under_way: deque[Future[B]] = deque(pool.submit(work, item) for item in islice(feed, workers + 1))
        try:
            while under_way:
                done = under_way.popleft().result()
                under_way.extend(pool.submit(work, item) for item in islice(feed, 1))
                yield done
        finally:
            for future in under_way:
                future.cancel()
