"""How something is read: what a caller may say about a source, and the limits that hold whatever it contains."""

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
    """Defaults are for files of unknown origin. Every limit names itself in the refusal that it causes."""

    schema: Any = None  # a pyarrow.Schema, or column -> type where the inferred one shall not count
    batch_rows: int = 65_536
    memory_bytes: int = field(default_factory=reading_bytes)
    cell_bytes: int = 8 * MIB  # of one row of text, or one cell of a table
    expansion: float = 250.0  # of what is unpacked over what is packed, once it is more than `unpacked_free_bytes`
    unpacked_free_bytes: int = 256 * MIB
    sample_rows: int = 10_000
    threads: int = field(default_factory=_cores)
    encoding: str | None = None
    delimiter: str | None = None
    header: bool | None = None
    columns: Sequence[str] | None = None  # names, for a file that has none
    nulls: Sequence[str] = NULLS
    size: tuple[int, int] | None = None  # height and width that images are brought to
    query: str | None = None
    table: str | None = None
    order: str | None = None  # the column that grows: SQL reads what lies above its high-water value
    parameters: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] | None = None  # the watermark of an earlier read
    window: tuple[int, int | None] = (0, None)  # the bytes of a plain file that count: from what is known to what is

    @property
    def chunk_bytes(self) -> int:
        """Text that is parsed at a time: up to two chunks a thread are under way, and numbers may be 4x as large."""
        return max(64 << 10, min(4 * MIB, self.memory_bytes // (16 * (self.threads + 2))))

    @property
    def row_bytes(self) -> int:
        """The longest row that is taken: what was said, and what the memory allows."""
        return max(4 << 10, min(self.cell_bytes, self.memory_bytes // 16))
