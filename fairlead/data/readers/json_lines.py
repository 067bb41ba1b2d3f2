"""Reads JSON lines, plain or compressed: one object per line, parsed by PyArrow in chunks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.json as pajson

from fairlead.data.errors import BadData, printable
from fairlead.data.options import Options
from fairlead.data.readers.streams import compression_of
from fairlead.data.readers.text_chunks import chunks, row_too_long
from fairlead.data.source import Batches, sliced
from fairlead.data.thread_map import map_in_order

_ROW = re.compile(r"in row (\d+)")
_COLUMN = re.compile(r"Column\(/?([^)]*)\)")
_DEPTH = 200
_QUOTE = 2
_KINDS = np.zeros(256, np.int8)
_KINDS[[ord("["), ord("{")]], _KINDS[[ord("]"), ord("}")]], _KINDS[ord('"')] = 1, -1, _QUOTE
_SAMPLE = 1 << 20


def inspect(path: Path, options: Options) -> pa.Schema:
    """The schema of the first lines; a field that is never set in them counts as text."""
    sample = next(_chunks(path, options, least=_SAMPLE), b"")
    if not sample.strip():
        raise BadData(path, "is empty", fix="give a file with rows")
    if sample.lstrip()[:1] == b"[":
        fix = f"write one object per line: jq -c '.[]' {path.name} > {path.stem}.jsonl"
        raise BadData(path, "is one JSON array, not one object per line", fix=fix)
    try:
        found = _parse(sample, None, options, path).schema
    except pa.ArrowInvalid as error:
        raise _as_bad_data(path, error, 0) from None
    return pa.schema([pa.field(f.name, pa.string() if pa.types.is_null(f.type) else f.type) for f in found])


def batches(path: Path, schema: pa.Schema, options: Options) -> Batches:
    """All lines of one file; refuses unknown fields and fields of another type."""
    work = partial(_parse, schema=schema, options=options, path=path)
    done, parsed = 0, map_in_order(work, _chunks(path, options), options.threads)
    while True:
        try:
            batch = next(parsed, None)
        except pa.ArrowInvalid as error:
            raise _as_bad_data(path, error, done, schema) from None
        if batch is None:
            return
        assert isinstance(batch, pa.RecordBatch)
        yield from sliced(batch, options.batch_rows)
        done += batch.num_rows


def _chunks(path: Path, options: Options, least: int = 0) -> Iterator[bytes]:
    lines = 0
    for chunk in chunks(path, options, least=least):
        if len(chunk) > options.row_bytes and max(map(len, chunk.split(b"\n"))) > options.row_bytes:
            raise row_too_long(path, options, lines + 1)
        lines += chunk.count(b"\n")
        if not chunk.isspace():
            yield chunk


def _parse(text: bytes, schema: pa.Schema | None, options: Options, path: Path) -> pa.RecordBatch:
    if nesting_depth(text) > _DEPTH:
        raise BadData(path, f"values are nested more than {_DEPTH} deep", fix="flatten them")
    table = pajson.read_json(
        pa.BufferReader(text),
        read_options=pajson.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pajson.ParseOptions(
            explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "error"
        ),
    )  # fmt: skip
    table = table if schema is None else table.select(schema.names)
    merged = [column.combine_chunks() for column in table.columns]
    batch = pa.RecordBatch.from_arrays(merged, schema=schema or table.schema)
    batch.validate(full=True)  # the parser accepts invalid UTF-8
    return batch


def nesting_depth(text: bytes) -> int:
    """Nesting depth of brackets outside strings: the parser recurses, and would exhaust its stack."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"__").replace(b'\\"', b"__")
    kinds = _KINDS[np.frombuffer(text, np.uint8)]
    marks = kinds[np.flatnonzero(kinds)]
    outside = np.cumsum(marks == _QUOTE, dtype=np.int32) % 2 == 0
    steps = np.where(outside & (marks != _QUOTE), marks, 0)
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))


def _as_bad_data(path: Path, error: pa.ArrowInvalid, done: int, schema: pa.Schema | None = None) -> BadData:
    if schema is not None and "unexpected field" in str(error):
        return _unknown_field(path, done, schema)
    text = printable(str(error).removeprefix("JSON parse error: ").splitlines()[0])
    row, column = _ROW.search(text), _COLUMN.search(text)
    fix = "correct the line: each line is one object with fields of the same types; or give the type: schema={...}"
    return BadData(
        path, _ROW.sub("", text).strip(), row=done + int(row[1]) + 1 if row else None,
        column=column[1] if column else None, fix=fix,
    )  # fmt: skip


def _unknown_field(path: Path, done: int, schema: pa.Schema) -> BadData:
    """Name the unknown field, which the parser does not tell: search the rows after the last good one."""
    known = set(schema.names)
    fix = "it is missing in the first rows; give its type: schema={...}, or remove it"
    with path.open("rb") if path.is_file() and compression_of(path) is None else nullcontext(None) as file:
        for row, line in enumerate(file or ()):
            if row >= done and (new := set(_fields(line)) - known):
                return BadData(path, "is a field that the schema does not have", row=row + 1, column=min(new), fix=fix)
    return BadData(path, "holds a field that the schema does not have", fix=f"from row {done + 1:,} on; {fix}")


def _fields(line: bytes) -> list[str]:
    try:
        found = json.loads(line) if len(line) < _SAMPLE else None
    except (ValueError, RecursionError):
        return []
    return list(found) if isinstance(found, dict) else []
