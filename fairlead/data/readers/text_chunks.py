"""Text as chunks that end where a line ends, in UTF-8 whatever it was written in, parsed side by side in order."""

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
    """The text as UTF-8 without a byte order mark; another encoding is said by the caller or by such a mark."""
    source = blocks(path, options)
    first = next(source, b"")
    marked = next((name for mark, name in _MARKS.items() if not options.window[0] and first.startswith(mark)), None)
    encoding = (options.encoding or marked or "utf-8").lower()
    if encoding == "utf-8-sig" or (marked == "utf-8-sig" and encoding in _UTF8):
        first, encoding = first.removeprefix(codecs.BOM_UTF8), "utf-8"
    if b"\0" in first and encoding in _UTF8:
        fix = "if it is text in another encoding, say so: encoding='utf-16'"
        raise BadData(path, "holds NUL bytes: this is no text, or not in UTF-8", fix=fix)
    if encoding in _UTF8:
        yield first
        yield from source
        return
    yield from _transcoded(path, first, source, encoding)


def _transcoded(path: Path, first: bytes, source: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    try:
        decoder = codecs.getincrementaldecoder(encoding)()
    except LookupError:
        raise BadData(path, f"{encoding!r} is no known encoding", fix="write it like utf-8 or latin-1") from None
    block, seen = first, 0
    try:
        while block:
            yield decoder.decode(block).encode()
            seen += len(block)
            block = next(source, b"")
        yield decoder.decode(b"", final=True).encode()
    except UnicodeError as error:
        what = f"near byte {seen:,}: this is not {encoding} ({str(error).partition(':')[2].strip() or error})"
        raise BadData(path, what, fix="say the encoding that it has: encoding='latin-1'") from None


def chunks(path: Path, options: Options, *, separators: str = "", least: int = 0) -> Iterator[bytes]:
    """Whole lines, about ``chunk_bytes`` at a time; of separated values, a line break in a quoted one ends no line."""
    rest, pieces, size, done, least = b"", list[bytes](), 0, 0, least or options.chunk_bytes
    for block in utf8_blocks(path, options):
        pieces.append(block)
        size += len(block)
        if size < least:
            continue
        text = b"".join([rest, *pieces])
        cut = _end_of_last_row(text, separators)
        if len(text) - cut > options.row_bytes + len(block):  # this much of one row, and still no end of it
            raise row_too_long(path, options, _line_count(path, options, done + cut) + 1)
        if cut:
            yield text[:cut]
            done += cut
        rest, pieces, size = text[cut:], [], (0 if cut else size)
    if text := b"".join([rest, *pieces]):
        yield text


def _line_count(path: Path, options: Options, before: int) -> int:
    """Lines in the first so many bytes: counted when there is something to say about the next one, not before."""
    count = 0
    for block in utf8_blocks(path, options):
        count += block.count(b"\n", 0, max(0, before))
        before -= len(block)
        if before <= 0:
            break
    return count


def row_too_long(path: Path, options: Options, line: int | None = None, **place: Any) -> BadData:
    at = f"line {line:,} on, " if line is not None else ""
    what = f"{at}more than {options.row_bytes:,} bytes in one row: a huge cell, a quote never closed, or no table"
    return BadData(path, what, **place, fix="mend the row, or read with a higher cell_bytes= (and memory_bytes=)")


@lru_cache(maxsize=16)
def quoted_values(separators: str) -> re.Pattern[bytes]:
    """Finds values between quotes. A quote counts where a value begins or ends; within a plain one it is a letter."""
    return re.compile(rb'(?:\A|(?<=[\n%b]))"(?:[^"]++|"")*+("?)' % re.escape(separators.encode()))


def has_open_quote(text: bytes, separators: str) -> bool:
    """Whether the last value between quotes is never closed."""
    last = deque(quoted_values(separators).finditer(text), maxlen=1)
    return bool(last) and not last[0][1]


def _end_of_last_row(text: bytes, separators: str) -> int:
    """Just behind the last line break that lies in no quoted value."""
    cut = text.rfind(b"\n") + 1
    if not separators or not cut or b'"' not in text:  # to look for one is much faster than to follow them
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
    """Whether no quote is just a letter, as in nearly all files: every other one stands where a value begins.

    Or behind a quote, where two of them mean one. Seen for all at once: far faster than to follow each.
    """
    letters = np.frombuffer(text, np.uint8)
    opening = np.flatnonzero(letters == ord('"'))[::2]
    before = letters[opening[opening > 0] - 1]
    return bool(np.isin(before, np.frombuffer(f'\n"{separators}'.encode(), np.uint8)).all())


def _end_with_even_quotes(text: bytes, cut: int) -> int:
    """The last line break up to here that has an even number of quotes before it."""
    odd = text.count(b'"', 0, cut) % 2
    while odd and cut:
        last = text.rfind(b'"', 0, cut)
        before = text.rfind(b"\n", 0, last) + 1
        odd = (odd + text.count(b'"', before, cut)) % 2
        cut = before
    return cut
