"""The manifest of a data set version: its blocks, source, recipe, row policy and parent version."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from fairlead.data.recipes.array_json import content_hash
from fairlead.errors import FairleadError, InvalidSpec

FORMAT = "fairlead/data-set/1"
_TIME_KEYS = ("mtime_ns", "mtime")  # a copied file is the same data


class SchemaChanged(FairleadError):
    """Appended data has other columns than the data set."""

    code, status, exit_code = "schema-changed", 409, 4


class Column(msgspec.Struct, frozen=True, omit_defaults=True):
    """A column of the data set: type and shape of a row, and the labels of its numbers."""

    name: str
    dtype: str
    shape: list[int] = []
    labels: list[str] = []


class BlockRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A block and the rows that it holds. The hash is empty until the grid has computed it."""

    id: str
    first: int
    rows: int
    bytes: int
    hash: str = ""
    keys: list[Any] | None = None  # smallest and largest value of the key column


class RowPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rows of the source that the data set holds."""

    part: list[float] | None = None  # begin and end of the row fractions, for a training or test part
    part_seed: int = 0
    part_key: str | None = None
    flagged: str = "keep"


class FlaggedRows(msgspec.Struct, frozen=True, omit_defaults=True):
    """Anomalous rows: their count, the first ones by row and score, and a block with the original rows."""

    count: int = 0
    rows: list[tuple[int, float]] = []
    block: str | None = None


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version of a data set. The version is a hash of source, recipe and policy."""

    name: str
    version: str
    schema: list[Column]
    source_schema: dict[str, str]
    recipe: str
    rows: int
    blocks: list[BlockRef]
    watermark: dict[str, Any]
    policy: RowPolicy = RowPolicy()
    parent: str | None = None
    target: str | None = None
    flagged: list[FlaggedRows] = []
    source_rows: int = 0
    labels: list[str] = []  # of its blocks in the grid, one per load; empty in older manifests
    format: str = FORMAT

    @property
    def block_labels(self) -> list[str]:
        """The labels under which nodes count the blocks."""
        return self.labels or [f"dataset/{self.name}"]

    @property
    def nbytes(self) -> int:
        return sum(block.bytes for block in self.blocks)

    def to_json(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Manifest:
        try:
            read = msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise InvalidSpec(f"is not a data set manifest: {error}", field="manifest",
                              fix="prepare the data set again") from None  # fmt: skip
        if read.format != FORMAT:
            raise InvalidSpec(f"{read.format!r} is not a known format", field="format", fix=f"use {FORMAT}")
        return read

    def check(self, schema: pa.Schema) -> None:
        """Refuse to append data with other columns; the error names them."""
        now, then = schema_types(schema), self.source_schema
        gone, new = sorted(set(then) - set(now)), sorted(set(now) - set(then))
        other = [f"{name} ({then[name]} -> {now[name]})" for name in then if name in now and now[name] != then[name]]
        differences = [f"{what} {', '.join(names)}" for what, names in
                (("without", gone), ("with the new", new), ("with the changed", other)) if names]  # fmt: skip
        if differences:
            raise SchemaChanged(f"{self.name}: the source now comes {'; '.join(differences)}", field="schema",
                                fix="read it with the former schema, or prepare it as a new data set")  # fmt: skip


def schema_types(schema: pa.Schema) -> dict[str, str]:
    """Column names and types as a manifest stores them."""
    return {field.name: str(field.type) for field in schema}


def version_of(document: dict[str, Any]) -> str:
    """The version of a data set: a hash of the document that describes how it was made."""
    return content_hash(_without_times(document))[:16]


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _without_times(each) for key, each in value.items() if key not in _TIME_KEYS}
    if isinstance(value, list | tuple):
        return [_without_times(each) for each in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
