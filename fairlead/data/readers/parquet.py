"""Reads Parquet by row groups; checks the size of dictionary-encoded text before it expands it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fairlead.data.errors import BadData, printable
from fairlead.data.options import MIB, Options
from fairlead.data.source import Batches

_GET_AGAIN = "get the file again and compare its checksum"


def inspect(path: Path, options: Options) -> tuple[pa.Schema, int]:
    """The schema and the number of rows, from the footer."""
    with _open(path) as file:
        _check_expansion(path, file.metadata, options)
        names = file.schema_arrow.names
        if twice := [name for name in names if names.count(name) > 1]:
            raise BadData(path, "two columns have this name", column=twice[0], fix="write it with a name for each")
        plain = [
            pa.field(f.name, f.type.value_type if pa.types.is_dictionary(f.type) else f.type) for f in file.schema_arrow
        ]
        return pa.schema(plain), int(file.metadata.num_rows)


def batches(path: Path, schema: pa.Schema, options: Options) -> Batches:
    """All rows of one file; columns of another type than the schema's are cast if that loses nothing."""
    with _open(path) as file:
        plan = _decoding_plan(file, options)
    done = 0
    for batch in _merge_small_batches(_expand_dictionaries(path, _decoded(path, plan), options), options):
        yield _cast_to_schema(path, batch, schema, done)
        done += batch.num_rows


@contextmanager
def _open(path: Path, packed: list[str] | None = None) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(
            path, read_dictionary=packed, buffer_size=MIB, pre_buffer=False, page_checksum_verification=True
        ) as file:
            yield file
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError) as error:
        raise BadData(path, f"is not a complete Parquet file: {printable(str(error))}", fix=_GET_AGAIN) from error


@dataclass(frozen=True, slots=True)
class _DecodingPlan:
    """How a file is decoded: rows per batch, and the columns that stay dictionary-encoded at first."""

    rows: int
    packed: tuple[str, ...]


def _decoded(path: Path, plan: _DecodingPlan) -> Batches:
    with _open(path, list(plan.packed)) as file:
        yield from file.iter_batches(batch_size=plan.rows, use_threads=False)


def _check_expansion(path: Path, meta: pq.FileMetaData, options: Options) -> None:
    unpacked = sum(meta.row_group(place).total_byte_size for place in range(meta.num_row_groups))
    packed = max(1, path.stat().st_size)
    if unpacked > options.unpacked_free_bytes and unpacked > packed * options.expansion:
        what = f"{packed:,} bytes unpack to {unpacked:,}: a decompression bomb?"
        raise BadData(path, what, fix="if it is genuine, read it with a higher expansion=")


def _decoding_plan(file: pq.ParquetFile, options: Options) -> _DecodingPlan:
    """Bound the memory of long words that a dictionary repeats in many rows.

    Columns with small dictionaries stay encoded until their expanded size is known. With a larger dictionary, few rows
    are decoded at a time, as if each row were as long as a usual dictionary.
    """
    meta, schema = file.metadata, file.schema_arrow
    groups = [meta.row_group(place) for place in range(meta.num_row_groups)]
    widest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1.0)
    rows = max(1, min(options.batch_rows, int(options.memory_bytes / 8 / max(1.0, widest))))
    words = [f.name for f in schema if pa.types.is_string(f.type) or pa.types.is_binary(f.type)]
    sizes = _dictionary_chunk_bytes(file, words)
    packed = tuple(sorted(name for name, size in sizes.items() if size <= options.memory_bytes // 16))
    if len(packed) < len(sizes):
        rows = max(1, min(rows, options.memory_bytes // MIB))
    return _DecodingPlan(rows, packed)


def _dictionary_chunk_bytes(file: pq.ParquetFile, words: list[str]) -> dict[str, int]:
    """Bytes of the largest chunk of each column that is stored with a dictionary."""
    found: dict[str, int] = {}
    for number in range(file.metadata.num_row_groups if words else 0):
        # Reading the statistics of a damaged chunk crashes the process (PyArrow 25); decoding a row first raises.
        next(file.iter_batches(batch_size=1, row_groups=[number], columns=words, use_threads=False), None)
        group = file.metadata.row_group(number)
        for place in range(group.num_columns):
            name = file.schema.column(place).path
            if name in words and (chunk := group.column(place)).has_dictionary_page:
                found[name] = max(found.get(name, 0), chunk.total_uncompressed_size)
    return found


def _expand_dictionaries(path: Path, batches: Batches, options: Options) -> Batches:
    """Batches with expanded dictionaries, cut into pieces that fit into memory."""
    done = 0
    for batch in batches:
        try:
            batch.validate(full=True)
        except (pa.ArrowInvalid, UnicodeDecodeError) as error:
            raise BadData(path, f"is damaged: {printable(str(error))}", row=done + 1, fix=_GET_AGAIN) from None
        size = 0
        for place, column in enumerate(batch.columns):
            size += _expanded_bytes(path, column, batch.schema.names[place], done, options)
        rows = max(1, int(batch.num_rows * min(1.0, options.memory_bytes / 8 / max(1, size))))
        for begin in range(0, batch.num_rows, rows):
            yield _without_dictionaries(batch.slice(begin, rows))
        done += batch.num_rows


def _without_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _merge_small_batches(batches: Batches, options: Options) -> Batches:
    """Merge small batches up to `batch_rows` and an eighth of the memory."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        more = [*waiting, batch]
        too_many = sum(each.num_rows for each in more) > options.batch_rows
        if waiting and (too_many or sum(each.nbytes for each in more) > options.memory_bytes // 8):
            yield pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]
            more = [batch]
        waiting = more
    if waiting:
        yield pa.concat_batches(waiting) if len(waiting) > 1 else waiting[0]


def _expanded_bytes(path: Path, column: pa.Array, name: str, done: int, options: Options) -> int:
    """Bytes of a column after expansion; refuses a cell beyond the limit."""
    kind = column.type
    words = column.dictionary if pa.types.is_dictionary(kind) else column
    if not (pa.types.is_string(words.type) or pa.types.is_binary(words.type) or pa.types.is_large_string(words.type)):
        return int(column.nbytes)
    lengths = pc.binary_length(words)
    if pa.types.is_dictionary(kind):
        lengths = lengths.take(column.indices)
    longest = pc.max(lengths).as_py() or 0
    if longest > options.row_bytes:
        row = done + 1 + pc.index(lengths, longest).as_py()
        what = f"a cell has {longest:,} bytes, more than the {options.row_bytes:,} allowed"
        fix = "read with a higher cell_bytes= (and memory_bytes=)"
        raise BadData(path, what, row=row, column=name, fix=fix)
    return int(pc.sum(lengths).as_py() or 0)


def _cast_to_schema(path: Path, batch: pa.RecordBatch, schema: pa.Schema, done: int) -> pa.RecordBatch:
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                what = f"does not fit {field.type}: {printable(str(error))}"
                fix = "read it with its own type"
                raise BadData(path, what, row=done + 1, column=field.name, fix=fix) from None
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
