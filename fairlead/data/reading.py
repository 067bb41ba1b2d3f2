"""`read`: turns a path, database, array or table into a Source; the format is detected unless given."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from fairlead.data import watermarks
from fairlead.data.errors import BadData
from fairlead.data.file_discovery import FoundFiles, find_files
from fairlead.data.memory_budget import reading_bytes
from fairlead.data.options import MIB, Options
from fairlead.data.readers import arrays, csv, images, json_lines, parquet, recorded, sql, texts
from fairlead.data.readers.streams import compression_of, split_archive_path
from fairlead.data.schema import check_same_columns, with_declared_types
from fairlead.data.source import Batches, Source, sliced
from fairlead.data.watermarks import Span
from fairlead.errors import InvalidSpec

ReadSpan = Callable[[Span], Batches]
_MINIMA = {
    "batch_rows": 1,
    "memory_bytes": MIB,
    "cell_bytes": 1,
    "unpacked_free_bytes": 0,
    "sample_rows": 1,
    "threads": 1,
}


def read(
    source: Any, *, format: str = "auto", schema: Any = None, batch_rows: int = 65_536,
    memory_bytes: int | None = None, **how: Any,
) -> Source:  # fmt: skip
    """Inspect a source and infer its schema; rows are read by ``batches()``, within ``memory_bytes``.

    ``source`` is a path, a pattern, a folder or several paths; a database URL with ``query=`` or ``table=``; arrays,
    tensors, or anything with the Arrow stream interface. ``how`` is any field of `fairlead.data.options.Options`.
    """
    if unknown := set(how) - {field.name for field in fields(Options)}:
        known = ", ".join(sorted(field.name for field in fields(Options)))
        raise InvalidSpec("is not an option of read()", field=min(unknown), fix=f"use {known}")
    memory_bytes = reading_bytes() if memory_bytes is None else memory_bytes
    options = Options(schema=schema, batch_rows=batch_rows, memory_bytes=memory_bytes, **how)
    _check(options)
    if isinstance(source, str) and (":/" in source or source.startswith("duckdb:")):
        return sql.source(source, options)
    if not isinstance(source, str | Path) and (made := _in_memory(source, options)) is not None:
        return made
    found = find_files(source, format)
    if found.format == "database":
        return sql.source(found.name, options)
    return _READERS[found.format](found, options)


def _check(options: Options) -> None:
    for name, least in _MINIMA.items():
        value = getattr(options, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidSpec(f"{value!r} is not a whole number of {least:,} or more", field=name, value=value,
                              fix=f"use {least:,} or more")  # fmt: skip
    size = options.size
    if size is not None and not (
        isinstance(size, tuple | list) and len(size) == 2 and all(isinstance(each, int) and each > 0 for each in size)
    ):
        raise InvalidSpec(f"{size!r} is not a height and width", field="size", fix="write it like [32, 32]")


def _in_memory(given: Any, options: Options) -> Source | None:
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    if hasattr(given, "__arrow_c_stream__"):  # Polars, pandas, DuckDB, PyArrow itself
        table = pa.table(given)
        table = (
            table.cast(with_declared_types("memory", table.schema, options.schema))
            if options.schema is not None
            else table
        )
        start = partial(_table_batches, table, options)
        return Source("memory", "arrow", table.schema, start, dict, table.num_rows, watermark_identifies_content=False)
    held = arrays.in_memory(given)
    return None if held is None else _array_source(held, options)


def _table_batches(table: pa.Table, options: Options) -> Batches:
    for batch in table.to_batches(max_chunksize=options.batch_rows):
        yield from sliced(batch, options.batch_rows)


def _array_source(held: arrays.Arrays, options: Options) -> Source:
    schema = arrays.schema_of("memory", held)
    start = partial(arrays.batches, held, schema, options)
    return Source("memory", "arrays", schema, start, dict, arrays.rows_of(held), watermark_identifies_content=False)


def _file_source(
    found: FoundFiles, options: Options, schema: pa.Schema, each: ReadSpan, *, grows: bool = False
) -> Source:
    """A source that reads files one after the other, and of each only what is new since ``after``."""
    every, fresh = watermarks.file_spans(found.files, options.after, grows=grows)
    mark = partial(watermarks.file_watermark, every, options.after)
    return Source(found.name, found.format, schema, partial(_batches_of_spans, fresh, each), mark)


def _batches_of_spans(fresh: Sequence[Span], each: ReadSpan) -> Batches:
    for span in fresh:
        try:
            yield from each(span)
        except MemoryError:
            fix = "give the process more memory, or read with a lower memory_bytes= or fewer threads="
            raise BadData(span.path, "needs more memory than this process may use", fix=fix) from None


def _windowed(options: Options, span: Span) -> Options:
    return replace(options, window=(span.start, span.stop))


def _is_uncompressed(found: FoundFiles) -> bool:
    return all(split_archive_path(path)[1] is None and compression_of(path) is None for path in found.files)


def _read_csv(found: FoundFiles, options: Options) -> Source:
    names = recorded.known_column_names(found.files[0])
    dialect, inferred = csv.inspect(found.files[0], options, names)
    schema = with_declared_types(found.files[0], inferred, options.schema)

    def each(span: Span) -> Batches:
        own = dialect
        if span.path != found.files[0]:
            unnamed = None if dialect.header else dialect.names
            own, _ = csv.inspect(span.path, replace(options, columns=unnamed), names)
            check_same_columns(span.path, schema, list(own.names), found.files[0])
        return csv.batches(span.path, own, schema, _windowed(options, span))

    return _file_source(found, options, schema, each, grows=_is_uncompressed(found))


def _read_json_lines(found: FoundFiles, options: Options) -> Source:
    schema = with_declared_types(found.files[0], json_lines.inspect(found.files[0], options), options.schema)
    each = lambda span: json_lines.batches(span.path, schema, _windowed(options, span))  # noqa: E731
    return _file_source(found, options, schema, each, grows=_is_uncompressed(found))


def _read_text(found: FoundFiles, options: Options) -> Source:
    each = lambda span: texts.line_batches(span.path, _windowed(options, span))  # noqa: E731
    return _file_source(found, options, texts.LINES, each, grows=_is_uncompressed(found))


def _read_parquet(found: FoundFiles, options: Options) -> Source:
    looks = [parquet.inspect(path, options) for path in found.files]
    schema = with_declared_types(found.files[0], looks[0][0], options.schema)
    for path, (own, _) in zip(found.files[1:], looks[1:], strict=True):
        check_same_columns(path, schema, own.names, found.files[0])
    made = _file_source(found, options, schema, lambda span: parquet.batches(span.path, schema, options))
    return made if options.after else replace(made, rows=sum(rows for _, rows in looks))


def _read_arrays(found: FoundFiles, options: Options) -> Source:
    """Files with the same arrays, one after the other. The first stays open, the others are opened in turn."""
    first, held = found.files[0], arrays.open_arrays(found.files[0], options)
    schema = arrays.schema_of(first, held)
    rows = {first: arrays.rows_of(held)}
    for path in found.files[1:]:
        own = arrays.open_arrays(path, options)
        arrays.check_same_arrays(path, schema, arrays.schema_of(path, own), first)
        rows[path] = arrays.rows_of(own)

    def each(span: Span) -> Batches:
        own = held if span.path == first else arrays.open_arrays(span.path, options)
        return arrays.batches(own, schema, options)

    _, fresh = watermarks.file_spans(found.files, options.after, grows=False)
    return replace(_file_source(found, options, schema, each), rows=sum(rows[span.path] for span in fresh))


def _read_cifar10(found: FoundFiles, options: Options) -> Source:
    return _file_source(found, options, recorded.CIFAR10_SCHEMA, lambda span: recorded.batches(span.path, options))


def _read_text_folders(found: FoundFiles, options: Options) -> Source:
    return _folder_source(found, options, texts.LABELLED, partial(texts.folder_batches, options=options))


def _read_image_folders(found: FoundFiles, options: Options) -> Source:
    schema, size = images.inspect(found.files, options)
    return _folder_source(found, options, schema, partial(images.batches, schema=schema, size=size, options=options))


def _folder_source(
    found: FoundFiles, options: Options, schema: pa.Schema, all_of: Callable[[list[Path]], Batches]
) -> Source:
    every, fresh = watermarks.file_spans(found.files, options.after, grows=False)

    def start() -> Iterator[pa.RecordBatch]:
        return all_of([span.path for span in fresh])

    return Source(
        found.name, found.format, schema, start, partial(watermarks.file_watermark, every, options.after), len(fresh)
    )


_READERS: dict[str, Callable[[FoundFiles, Options], Source]] = {
    "csv": _read_csv, "json": _read_json_lines, "text": _read_text, "parquet": _read_parquet, "arrays": _read_arrays,
    "cifar10": _read_cifar10, "texts": _read_text_folders, "images": _read_image_folders,
}  # fmt: skip
