"""Options of `read`: what a caller may state about a source, and limits that hold for any content."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.data.memory_budget import reading_bytes

MIB = 1 << 20
NULLS = ("", " ", "NA", "N/A", "#N/A", "NULL", "null", "NaN", "nan")


def _cores() -> int:
    return min(4, len(os.sched_getaffinity(0)))


@dataclass(frozen=True, slots=True)
class Options:
    """Defaults suit files of unknown origin. An error caused by a limit names the limit."""

    schema: Any = None  # a pyarrow.Schema, or column -> type to override the inferred one
    batch_rows: int = 65_536
    memory_bytes: int = field(default_factory=reading_bytes)
    cell_bytes: int = 8 * MIB  # of one row of text, or one cell of a table
    expansion: float = 250.0  # unpacked over packed size, checked beyond `unpacked_free_bytes`
    unpacked_free_bytes: int = 256 * MIB
    sample_rows: int = 10_000
    threads: int = field(default_factory=_cores)
    encoding: str | None = None
    delimiter: str | None = None
    header: bool | None = None
    columns: Sequence[str] | None = None  # names, for a file without a header
    nulls: Sequence[str] = NULLS
    size: tuple[int, int] | None = None  # height and width to which images are scaled
    query: str | None = None
    table: str | None = None
    order: str | None = None  # a growing column: SQL reads the rows above its high-water value
    parameters: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] | None = None  # the watermark of an earlier read
    window: tuple[int, int | None] = (0, None)  # the byte range of a plain file to read

    @property
    def chunk_bytes(self) -> int:
        """Bytes of text parsed at a time: up to two chunks per thread are in memory, and numbers may be 4x as large."""
        return max(64 << 10, min(4 * MIB, self.memory_bytes // (16 * (self.threads + 2))))

    @property
    def row_bytes(self) -> int:
        """The longest accepted row: `cell_bytes`, bounded by a sixteenth of the memory."""
        return max(4 << 10, min(self.cell_bytes, self.memory_bytes // 16))
