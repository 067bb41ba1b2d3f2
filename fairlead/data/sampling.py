"""Rows drawn evenly from a stream of unknown length, and values counted exactly while they are few."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

EXACT = 1_000  # values of a column that are counted one by one
ROWS = 20_000
PREFIX_LENGTH = 60  # letters of a text by which it is told from others


@dataclass(slots=True)
class DistinctCounts:
    """Values of one column, until there are too many of them to be kept."""

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
    """The rows with the smallest of random numbers: every row is as likely to be among them as any other."""

    def __init__(self, schema: pa.Schema, seed: int = 0) -> None:
        self._columns = [f.name for f in schema if not pa.types.is_nested(f.type) and not pa.types.is_binary(f.type)]
        self._random = np.random.default_rng(seed)
        self._kept: list[tuple[np.ndarray, pa.Table]] = []
        self._highest = 1.0
        self._rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes part of a batch: all of it in the beginning, ever less later on."""
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
        """The rows drawn; None when there were none."""
        if not self._kept:
            return None
        self._prune()
        return self._kept[0][1]


def _shortened(rows: pa.Table) -> pa.Table:
    """Long texts by their beginning, so that a sample of them stays small."""
    columns = [
        pc.utf8_slice_codeunits(column, 0, PREFIX_LENGTH) if pa.types.is_string(column.type) else column
        for column in rows.columns
    ]
    return pa.table(columns, names=rows.column_names)
