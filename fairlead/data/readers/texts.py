"""Reads text: a file line by line, or a folder with one subfolder of documents per label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import pyarrow as pa

from fairlead.data.errors import BadData
from fairlead.data.options import Options
from fairlead.data.readers.streams import read_whole
from fairlead.data.readers.text_chunks import chunks, row_too_long
from fairlead.data.source import Batches, sliced

LINES = pa.schema([("text", pa.string())])
LABELLED = pa.schema([("text", pa.string()), ("label", pa.string())])


def line_batches(path: Path, options: Options) -> Batches:
    """One row per line, without line breaks."""
    done = 0
    for chunk in chunks(path, options):
        lines = chunk.removesuffix(b"\n").split(b"\n")
        if len(chunk) > options.row_bytes and max(map(len, lines)) > options.row_bytes:
            raise row_too_long(path, options, done + 1 + max(range(len(lines)), key=lambda at: len(lines[at])))
        column = pa.array([line.removesuffix(b"\r") for line in lines], pa.binary())
        yield from sliced(_as_text(path, column, done), options.batch_rows)
        done += len(lines)


def _as_text(path: Path, column: pa.Array, done: int) -> pa.RecordBatch:
    try:
        return pa.RecordBatch.from_arrays([column.cast(pa.string())], schema=LINES)
    except pa.ArrowInvalid:
        row = next(place for place, line in enumerate(column.to_pylist()) if not _is_utf8(line))
        fix = "give its encoding: encoding='latin-1'"
        raise BadData(path, "is not UTF-8", row=done + row + 1, column="text", fix=fix) from None


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def folder_batches(files: Sequence[Path], options: Options) -> Batches:
    """One row per document: its text, and the name of its folder as label."""
    waiting, most = iter(files), options.memory_bytes // 8
    while some := list(islice(_read(waiting, options, most), options.batch_rows)):
        texts, labels = zip(*some, strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(texts, pa.string()), pa.array(labels, pa.string())], schema=LABELLED)


def _read(files: Iterator[Path], options: Options, most: int) -> Iterator[tuple[str, str]]:
    for path in files:
        data = read_whole(path, options)
        try:
            yield data.decode(options.encoding or "utf-8"), path.parent.name
        except (UnicodeDecodeError, LookupError):
            fix = "give its encoding: encoding='latin-1'"
            raise BadData(path, f"is not {options.encoding or 'UTF-8'}", fix=fix) from None
        most -= len(data)
        if most <= 0:
            return
