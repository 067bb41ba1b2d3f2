"""A source: a schema, and batches that are read when they are asked for, as often as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Something that was looked at, but not read yet. ``watermark`` says up to where this source goes."""

    name: str
    format: str
    schema: pa.Schema
    start: Callable[[], Batches]
    mark: Callable[[], dict[str, Any]]
    rows: int | None = None
    notes: tuple[str, ...] = ()  # what was noticed while the schema was inferred
    watermark_identifies_content: bool = (
        True  # other content has another watermark, as hashes of files do; a query's text does not
    )

    def batches(self) -> Batches:
        """All rows from the first on, a batch at a time; each of them has exactly this source's schema."""
        return self.start()

    def reader(self) -> pa.RecordBatchReader:
        """The same, as Arrow's own reader: what DuckDB, Polars and Parquet writers take."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def table(self) -> pa.Table:
        """Everything at once, for what is known to be small."""
        return pa.Table.from_batches(list(self.batches()), self.schema)

    @property
    def watermark(self) -> dict[str, Any]:
        """Files with size, time and hash, or the high-water value of a query: give it to the next read as `after`."""
        return self.mark()

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        return f"Source({self.name}, {self.format}, rows={self.rows}, {columns})"


def sliced(batch: pa.RecordBatch, rows: int) -> Batches:
    """A batch in pieces of at most so many rows, without a copy."""
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)
