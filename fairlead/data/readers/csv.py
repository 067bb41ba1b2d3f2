"""Reads delimited text, plain or compressed: PyArrow parses chunks of lines in parallel; errors name row and column."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from fairlead.data.errors import BadData, printable
from fairlead.data.options import Options
from fairlead.data.readers.dialect import SEPARATORS, Dialect, detect_dialect
from fairlead.data.readers.text_chunks import chunks, has_open_quote, row_too_long
from fairlead.data.source import Batches, sliced
from fairlead.data.thread_map import map_in_order

_SAMPLE = 1 << 20
_CONVERSION_ERROR = re.compile(
    r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to ([^:]+): (.*)", re.DOTALL
)
_COLUMN_COUNT_ERROR = re.compile(r"CSV parse error: (?:Row #(\d+): )?Expected (\d+) columns, got (\d+)")


def inspect(path: Path, options: Options, known: tuple[str, ...] = ()) -> tuple[Dialect, pa.Schema]:
    """The dialect of a file, and the schema inferred from its first rows."""
    sample = next(chunks(path, options, separators=options.delimiter or "".join(SEPARATORS), least=_SAMPLE), b"")
    if b"\n" not in sample and b"\r" in sample.strip():
        fix = f"give it line feeds: tr '\\r' '\\n' < {path.name} > unix-{path.name}"
        raise BadData(path, "its lines end with a carriage return only", fix=fix)
    try:
        text = sample.decode("utf-8")
    except UnicodeDecodeError as error:
        row = sample.count(b"\n", 0, error.start) + 1
        what = f"line {row:,} is not UTF-8 ({printable(sample[max(0, error.start - 10) : error.end + 10])})"
        raise BadData(path, what, fix="give its encoding: encoding='latin-1'") from None
    dialect = detect_dialect(path, text, options, known)
    body = _without_header(sample, dialect)
    try:
        found = _parse(body, None, dialect, options, path).schema if body.strip() else None
    except pa.ArrowInvalid as error:
        raise _as_bad_data(path, error, 0, dialect.names) from None
    types = [pa.string() if found is None or pa.types.is_null(t := found.field(i).type) else t
             for i in range(len(dialect.names))]  # fmt: skip
    return dialect, pa.schema(list(zip(dialect.names, types, strict=True)))


def batches(path: Path, dialect: Dialect, schema: pa.Schema, options: Options) -> Batches:
    """All rows of one file; a value that does not fit the schema is refused by row and column."""
    work = partial(_parse, schema=schema, dialect=dialect, options=options, path=path)
    done, parsed = 0, map_in_order(work, _chunks_without_header(path, dialect, options), options.threads)
    while True:
        try:
            batch = next(parsed, None)
        except pa.ArrowInvalid as error:
            raise _as_bad_data(path, error, done, dialect.names) from None
        except BadData as error:
            raise error.with_row_offset(done) from error.__cause__
        if batch is None:
            return
        assert isinstance(batch, pa.RecordBatch)
        yield from sliced(batch, options.batch_rows)
        done += batch.num_rows


def _chunks_without_header(path: Path, dialect: Dialect, options: Options) -> Iterator[bytes]:
    for place, chunk in enumerate(chunks(path, options, separators=dialect.delimiter)):
        body = _without_header(chunk, dialect) if place == 0 and not options.window[0] else chunk
        if body and not body.isspace():
            yield body


def _without_header(text: bytes, dialect: Dialect) -> bytes:
    at = 0
    for _ in range(dialect.skip):
        at = text.find(b"\n", at) + 1
    if not dialect.header:
        return text[at:]
    end = at
    while True:  # a name may hold a line break
        end = text.find(b"\n", end) + 1
        if not end:
            return b""
        if text.count(b'"', at, end) % 2 == 0:
            return text[end:] if text[at:end].strip() else _without_header(text[end:], dialect)


def _parse(text: bytes, schema: pa.Schema | None, dialect: Dialect, options: Options, path: Path) -> pa.RecordBatch:
    quoted = b'"' in text
    nulls = [*options.nulls, *(f" {word}" for word in options.nulls)] if dialect.padded else list(options.nulls)
    table = pacsv.read_csv(
        pa.BufferReader(text),
        read_options=pacsv.ReadOptions(
            column_names=list(dialect.names), use_threads=False, block_size=len(text) + 1
        ),  # one block, so that row numbers count from the chunk's start
        parse_options=pacsv.ParseOptions(
            delimiter=dialect.delimiter, quote_char='"' if quoted else False, newlines_in_values=quoted
        ),
        convert_options=pacsv.ConvertOptions(
            column_types=schema, null_values=nulls, strings_can_be_null=True, quoted_strings_can_be_null=True
        ),
    )  # fmt: skip
    if quoted:
        _check_last_quote(path, table, text, dialect)
    if len(text) > options.row_bytes:
        _check_cell_sizes(path, table, options)
    columns = [_strip_blanks(column) if dialect.padded else column for column in table.columns]
    merged = [column.chunk(0) if column.num_chunks == 1 else column.combine_chunks() for column in columns]
    return pa.RecordBatch.from_arrays(merged, schema=schema or table.schema)


def _strip_blanks(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.utf8_trim_whitespace(column) if pa.types.is_string(column.type) else column


def _check_last_quote(path: Path, table: pa.Table, text: bytes, dialect: Dialect) -> None:
    """Refuse an unclosed quote if the last row swallowed line breaks because of it; else it is harmless."""
    last = table.slice(max(0, table.num_rows - 1)).to_pylist()
    swallowed = bool(last) and any(isinstance(value, str) and "\n" in value for value in last[0].values())
    if swallowed and has_open_quote(text, dialect.delimiter):
        fix = "close the quote, or get the file again: it may be truncated"
        raise BadData(path, "a quote is opened and never closed", row=table.num_rows, fix=fix)


def _check_cell_sizes(path: Path, table: pa.Table, options: Options) -> None:
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_string(column.type):
            lengths = pc.binary_length(column)
            longest = pc.max(lengths).as_py() or 0
            if longest > options.row_bytes:
                raise row_too_long(path, options, row=pc.index(lengths, longest).as_py() + 1, column=name)


def _as_bad_data(path: Path, error: pa.ArrowInvalid, done: int, names: tuple[str, ...]) -> BadData:
    """Translate an error of PyArrow, with the row number in the whole file."""
    text = str(error)
    if found := _CONVERSION_ERROR.search(text):
        row = done + int(found[2]) if found[2] else None
        name = names[int(found[1])]
        if "UTF8" in found[4]:
            fix = "give its encoding: encoding='latin-1'"
            return BadData(path, "is not UTF-8", row=row, column=name, fix=fix)
        value = found[4].removeprefix("invalid value ")
        wider = "float64" if found[3].startswith("int") and _is_number(value) else "string"
        fix = f"correct it, or read this column as {wider}: schema={{{name!r}: {wider!r}}}"
        return BadData(path, f"{printable(value)} is no {found[3]}", row=row, column=name, fix=fix)
    if found := _COLUMN_COUNT_ERROR.search(text):
        row = done + int(found[1]) if found[1] else None
        what = f"has {found[3]} columns instead of {found[2]}"
        return BadData(path, what, row=row, fix="correct the row, or give the separator: delimiter=';'")
    return BadData(path, printable(text.splitlines()[0]), row=done + 1, fix="check the file from this row on")


def _is_number(value: str) -> bool:
    try:
        float(value.strip("'"))
    except ValueError:
        return False
    return True
