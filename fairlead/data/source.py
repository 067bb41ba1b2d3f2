"""A source: a schema, and batches that are read lazily and repeatably."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Data that was inspected but not read yet. ``watermark`` records where it ends."""

    name: str
    format: str
    schema: pa.Schema
    start: Callable[[], Batches]
    mark: Callable[[], dict[str, Any]]
    rows: int | None = None
    notes: tuple[str, ...] = ()  # remarks from inferring the schema
    watermark_identifies_content: bool = True  # true for file hashes; false for queries and memory

    def batches(self) -> Batches:
        """All rows from the first on, in batches of exactly this schema."""
        return self.start()

    def reader(self) -> pa.RecordBatchReader:
        """The batches as an Arrow reader, for DuckDB, Polars and Parquet writers."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def table(self) -> pa.Table:
        """All rows at once, for small sources."""
        return pa.Table.from_batches(list(self.batches()), self.schema)

    @property
    def watermark(self) -> dict[str, Any]:
        """Size, time and hash of files, or the high-water value of a query; pass it to the next read as `after`."""
        return self.mark()

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        return f"Source({self.name}, {self.format}, rows={self.rows}, {columns})"


def sliced(batch: pa.RecordBatch, rows: int) -> Batches:
    """Slices of a batch with at most ``rows`` rows, without a copy."""
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)
