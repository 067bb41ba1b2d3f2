"""Splits a source into training and test parts by a hash of each row's number or key."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fairlead.data.recipes.batch_columns import Array
from fairlead.data.recipes.statistics import splitmix64
from fairlead.errors import InvalidSpec

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a source, such as (0.0, 0.8) for training: the rows whose fraction lies between begin and end.

    The fraction is a hash of the row's number, or of its ``key``: all rows of one customer are then in one part.
    """

    begin: float = 0.0
    end: float = 1.0
    seed: int = 0
    key: str | None = None

    def mask(self, first: int, batch: pa.RecordBatch) -> Array:
        """A mask of the rows of a batch in this part; ``first`` is the number of its first row."""
        if self.key is None:
            numbers = np.arange(first, first + batch.num_rows, dtype=np.uint64)
        else:
            numbers = _key_hashes(batch.column(self.key))
        lots = _row_fractions(numbers, self.seed)
        return np.asarray((lots >= self.begin) & (lots < self.end))

    def count(self, first: int, rows: int) -> int | None:
        """How many of ``rows`` rows from ``first`` on are in this part; None if that depends on keys."""
        if self.key is not None:
            return None
        total = 0
        for begin in range(first, first + rows, _CHUNK):
            lots = _row_fractions(np.arange(begin, min(begin + _CHUNK, first + rows), dtype=np.uint64), self.seed)
            total += int(((lots >= self.begin) & (lots < self.end)).sum())
        return total


def split(train: float = 0.8, *, seed: int = 0, key: str | None = None) -> tuple[Part, Part]:
    """The training part and the rest; no row, and no key, is in both."""
    if not 0.0 < train < 1.0:
        raise InvalidSpec(f"{train!r} is not between 0 and 1", field="train", value=train, fix="use 0.8")
    return Part(0.0, train, seed, key), Part(train, 1.0, seed, key)


def _row_fractions(numbers: Array, seed: int) -> Array:
    return np.asarray((splitmix64(numbers, seed) >> np.uint64(11)).astype(np.float64) / float(1 << 53))


def _key_hashes(column: Any) -> Array:
    coded = column if hasattr(column, "dictionary") else column.dictionary_encode()
    digests = [int.from_bytes(hashlib.blake2b(str(value).encode(), digest_size=8).digest(), "little")
               for value in coded.dictionary.to_pylist()]  # fmt: skip
    places = coded.indices.fill_null(len(digests)).to_numpy(zero_copy_only=False)
    return np.asarray(np.array([*digests, 0], np.uint64)[places])
