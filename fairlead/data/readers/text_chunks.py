"""Splits text into UTF-8 chunks that end at the end of a row, whatever the encoding of the file."""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fairlead.data.errors import BadData
from fairlead.data.options import Options
from fairlead.data.readers.streams import blocks

_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_UTF8 = ("utf-8", "utf8", "us-ascii", "ascii")


def utf8_blocks(path: Path, options: Options) -> Iterator[bytes]:
    """The text as UTF-8 without a byte order mark; the caller or such a mark names another encoding."""
    source = blocks(path, options)
    first = next(source, b"")
    marked = next((name for mark, name in _MARKS.items() if not options.window[0] and first.startswith(mark)), None)
    encoding = (options.encoding or marked or "utf-8").lower()
    if encoding == "utf-8-sig" or (marked == "utf-8-sig" and encoding in _UTF8):
        first, encoding = first.removeprefix(codecs.BOM_UTF8), "utf-8"
    if b"\0" in first and encoding in _UTF8:
        fix = "if it is text in another encoding, give it: encoding='utf-16'"
        raise BadData(path, "holds NUL bytes: it is not text, or not UTF-8", fix=fix)
    if encoding in _UTF8:
        yield first
        yield from source
        return
    yield from _transcoded(path, first, source, encoding)


def _transcoded(path: Path, first: bytes, source: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    try:
        decoder = codecs.getincrementaldecoder(encoding)()
    except LookupError:
        raise BadData(path, f"{encoding!r} is not a known encoding", fix="use one such as utf-8 or latin-1") from None
    block, seen = first, 0
    try:
        while block:
            yield decoder.decode(block).encode()
            seen += len(block)
            block = next(source, b"")
        yield decoder.decode(b"", final=True).encode()
    except UnicodeError as error:
        what = f"near byte {seen:,}: this is not {encoding} ({str(error).partition(':')[2].strip() or error})"
        raise BadData(path, what, fix="give its encoding: encoding='latin-1'") from None


def chunks(path: Path, options: Options, *, separators: str = "", least: int = 0) -> Iterator[bytes]:
    """Whole rows, about ``chunk_bytes`` at a time; with ``separators``, line breaks in quotes do not end a row."""
    rest, pieces, size, done, least = b"", list[bytes](), 0, 0, least or options.chunk_bytes
    for block in utf8_blocks(path, options):
        pieces.append(block)
        size += len(block)
        if size < least:
            continue
        text = b"".join([rest, *pieces])
        cut = _end_of_last_row(text, separators)
        if len(text) - cut > options.row_bytes + len(block):  # one row exceeds the limit
            raise row_too_long(path, options, _line_count(path, options, done + cut) + 1)
        if cut:
            yield text[:cut]
            done += cut
        rest, pieces, size = text[cut:], [], (0 if cut else size)
    if text := b"".join([rest, *pieces]):
        yield text


def _line_count(path: Path, options: Options, before: int) -> int:
    """Lines in the first ``before`` bytes; counted only for an error message."""
    count = 0
    for block in utf8_blocks(path, options):
        count += block.count(b"\n", 0, max(0, before))
        before -= len(block)
        if before <= 0:
            break
    return count


def row_too_long(path: Path, options: Options, line: int | None = None, **place: Any) -> BadData:
    at = f"line {line:,} on, " if line is not None else ""
    what = f"{at}more than {options.row_bytes:,} bytes in one row: a huge cell, an unclosed quote, or not a table"
    return BadData(path, what, **place, fix="correct the row, or read with a higher cell_bytes= (and memory_bytes=)")


@lru_cache(maxsize=16)
def quoted_values(separators: str) -> re.Pattern[bytes]:
    """Matches quoted values. A quote counts at the start or end of a value; inside a plain value it is literal."""
    return re.compile(rb'(?:\A|(?<=[\n%b]))"(?:[^"]++|"")*+("?)' % re.escape(separators.encode()))


def has_open_quote(text: bytes, separators: str) -> bool:
    """True if the last quoted value is never closed."""
    last = deque(quoted_values(separators).finditer(text), maxlen=1)
    return bool(last) and not last[0][1]


def _end_of_last_row(text: bytes, separators: str) -> int:
    """The position after the last line break outside quoted values; 0 without one."""
    cut = text.rfind(b"\n") + 1
    if not separators or not cut or b'"' not in text:  # a search for one quote is much faster than matching them
        return cut
    if _no_literal_quotes(text, separators):
        return _end_with_even_quotes(text, cut)
    for begin, end in reversed([found.span() for found in quoted_values(separators).finditer(text)]):
        if end < cut:
            break
        if begin < cut:
            cut = text.rfind(b"\n", 0, begin) + 1
    return cut


def _no_literal_quotes(text: bytes, separators: str) -> bool:
    """True if no quote is literal, as in nearly all files: every other quote stands at the start of a value.

    Or after a quote, where two of them mean one. Vectorised: far faster than matching each.
    """
    letters = np.frombuffer(text, np.uint8)
    opening = np.flatnonzero(letters == ord('"'))[::2]
    before = letters[opening[opening > 0] - 1]
    return bool(np.isin(before, np.frombuffer(f'\n"{separators}'.encode(), np.uint8)).all())


def _end_with_even_quotes(text: bytes, cut: int) -> int:
    """The position after the last line break up to ``cut`` with an even number of quotes before it."""
    odd = text.count(b'"', 0, cut) % 2
    while odd and cut:
        last = text.rfind(b'"', 0, cut)
        before = text.rfind(b"\n", 0, last) + 1
        odd = (odd + text.count(b'"', before, cut)) % 2
        cut = before
    return cut
