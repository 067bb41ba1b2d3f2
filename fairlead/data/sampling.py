"""Draws a uniform sample of rows from a stream, and counts distinct values exactly while they are few."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

EXACT = 1_000  # distinct values up to which they are counted
ROWS = 20_000
PREFIX_LENGTH = 60  # characters of a text that are kept


@dataclass(slots=True)
class DistinctCounts:
    """Counts of the values of one column, given up (``exact`` false) beyond ``EXACT`` distinct ones."""

    values: Counter[Any] = field(default_factory=Counter)
    exact: bool = True

    def add(self, column: pa.Array) -> None:
        if not self.exact:
            return
        found = pc.value_counts(column)
        if len(found) > 2 * EXACT:
            self.exact = False
            return
        for value, count in zip(found.field(0).to_pylist(), found.field(1).to_pylist(), strict=True):
            self.values[value] += count
        self.exact = len(self.values) <= EXACT


class RowSample:
    """A uniform sample of ``ROWS`` rows: those with the smallest random keys."""

    def __init__(self, schema: pa.Schema, seed: int = 0) -> None:
        self._columns = [f.name for f in schema if not pa.types.is_nested(f.type) and not pa.types.is_binary(f.type)]
        self._random = np.random.default_rng(seed)
        self._kept: list[tuple[np.ndarray, pa.Table]] = []
        self._highest = 1.0
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Sample a batch: at first all of its rows, later ever fewer."""
        keys = self._random.random(batch.num_rows)
        chosen = np.flatnonzero(keys <= self._highest)
        if not len(chosen) or not self._columns:
            return
        rows = pa.Table.from_batches([batch.select(self._columns).take(pa.array(chosen))])
        self._kept.append((keys[chosen], _shortened(rows)))
        self._rows += len(chosen)
        if self._rows > 2 * ROWS:
            self._prune()

    def _prune(self) -> None:
        keys = np.concatenate([keys for keys, _ in self._kept])
        table = pa.concat_tables([table for _, table in self._kept])
        if len(keys) > ROWS:
            best = np.argpartition(keys, ROWS)[:ROWS]
            keys, table = keys[best], table.take(pa.array(best))
            self._highest = float(keys.max())
        self._kept, self._rows = [(keys, table)], len(keys)

    def table(self) -> pa.Table | None:
        """The sampled rows; None without rows."""
        if not self._kept:
            return None
        self._prune()
        return self._kept[0][1]


def _shortened(rows: pa.Table) -> pa.Table:
    """Cut texts to their first characters, so that the sample stays small."""
    columns = [
        pc.utf8_slice_codeunits(column, 0, PREFIX_LENGTH) if pa.types.is_string(column.type) else column
        for column in rows.columns
    ]
    return pa.table(columns, names=rows.column_names)
