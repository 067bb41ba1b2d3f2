"""Parquet: PyArrow decodes it row group by row group; what a page unpacks to is weighed before it is spread out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fairlead.data.faults import BadData, shown
from fairlead.data.options import MIB, Options
from fairlead.data.source import Batches

_AGAIN = "get the file again and compare its checksum"


def look(path: Path, options: Options) -> tuple[pa.Schema, int]:
    """Schema and number of rows, from the footer."""
    with _open(path) as file:
        _weigh(path, file.metadata, options)
        return file.schema_arrow.remove_metadata(), int(file.metadata.num_rows)


def batches(path: Path, schema: pa.Schema, options: Options) -> Batches:
    """All rows of one file; columns of another type than the schema's are cast, where nothing is lost by it."""
    with _open(path) as file:
        rows = _batch_rows(file.metadata, options)
        packed = _spread(file)
    done, found = 0, _decoded(path, packed, rows)
    for batch in found:
        for piece in _unpacked(path, batch, done, options):
            yield _fitting(path, piece, schema, done)
            done += piece.num_rows


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
        raise BadData(path, f"is no whole Parquet file: {shown(str(error))}", fix=_AGAIN) from error


def _decoded(path: Path, packed: list[str], rows: int) -> Batches:
    with _open(path, packed) as file:
        yield from file.iter_batches(batch_size=rows, use_threads=False)


def _weigh(path: Path, meta: pq.FileMetaData, options: Options) -> None:
    unpacked = sum(meta.row_group(place).total_byte_size for place in range(meta.num_row_groups))
    packed = max(1, path.stat().st_size)
    if unpacked > options.unpacked_free_bytes and unpacked > packed * options.expansion:
        what = f"{packed:,} bytes unpack to {unpacked:,}: a decompression bomb?"
        raise BadData(path, what, fix="if it is genuine, read it with a higher expansion=")


def _batch_rows(meta: pq.FileMetaData, options: Options) -> int:
    """As many rows as were asked for, unless rows of that average length would not fit."""
    groups = [meta.row_group(place) for place in range(meta.num_row_groups)]
    widest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1.0)
    return max(1, min(options.batch_rows, int(options.memory_bytes / 8 / max(1.0, widest))))


def _spread(file: pq.ParquetFile) -> list[str]:
    """Text columns that are stored as dictionary and places: one long word many times must not be copied unseen."""
    found = set()
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            if column.physical_type == "BYTE_ARRAY" and any("DICTIONARY" in kind for kind in column.encodings):
                found.add(column.path_in_schema)
    return sorted(found)


def _unpacked(path: Path, batch: pa.RecordBatch, done: int, options: Options) -> Batches:
    """A batch with its dictionaries spread out, in as many pieces as the memory demands."""
    try:
        batch.validate(full=True)
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise BadData(path, f"is damaged: {shown(str(error))}", row=done + 1, fix=_AGAIN) from None
    size = 0
    for place, column in enumerate(batch.columns):
        size += _size(path, column, batch.schema.names[place], done, options)
    rows = max(1, int(batch.num_rows * min(1.0, options.memory_bytes / 8 / max(1, size))))
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)


def _size(path: Path, column: pa.Array, name: str, done: int, options: Options) -> int:
    """Bytes of a column once it is spread out; a cell that is too long is refused."""
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
        what = f"a cell has {longest:,} bytes, more than the {options.row_bytes:,} that are taken"
        fix = "read with a higher cell_bytes= (and memory_bytes=)"
        raise BadData(path, what, row=row, column=name, fix=fix)
    return int(pc.sum(lengths).as_py() or 0)


def _fitting(path: Path, batch: pa.RecordBatch, schema: pa.Schema, done: int) -> pa.RecordBatch:
    columns = []
    for field in schema:
        column = batch.column(field.name)
        if pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(field.type):
            column = column.dictionary_decode()
        if column.type != field.type:
            try:
                column = column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                what = f"does not fit {field.type}: {shown(str(error))}"
                fix = "read it with the type that it has"
                raise BadData(path, what, row=done + 1, column=field.name, fix=fix) from None
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)
