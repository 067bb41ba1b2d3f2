"""Reads the logs of a job's workers from a cursor."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fairlead.agent.protocol import LogChunk, LogCursor

_BLOCK = 1 << 16
_LINE_END = re.compile(rb"\r\n|[\n\r\x0b\x0c\x1c\x1d\x1e]|\xc2\x85|\xe2\x80[\xa8\xa9]")


def read_logs(folder: Path, after: LogCursor, limit_bytes: int, worker: str | None = None) -> list[LogChunk]:
    """New text of all workers, or one, at most this many bytes in total; an incomplete character waits for its rest.

    Bytes that are not UTF-8 become surrogates, so that offsets in text and file correspond. Where old output was
    dropped to keep the log within its limit, an extra line says how many bytes are missing.
    """
    chunks: list[LogChunk] = []
    for path in _files(folder, worker):
        if limit_bytes <= 0:
            break
        with path.open("rb") as file:
            offset = after.get(path.stem, 0)
            begin = _first_data(file, offset)
            file.seek(begin)
            data = file.read(limit_bytes)
        if begin > offset:
            begin, data = _skip_partial_line(begin, data)
        data = whole_characters(data)
        if data:
            missing = _missing(begin - offset) if begin > offset else ""
            chunks.append(LogChunk(path.stem, missing + data.decode(errors="surrogateescape"), begin + len(data)))
            limit_bytes -= len(data)
    return chunks


def last_lines(
    folder: Path, lines: int, after: LogCursor, worker: str | None = None, *, whole: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """Cursors to the begin and end of the last lines of all workers, or one, not before ``after``.

    ``whole`` excludes a last line without an end. Files are read backwards, only as far as needed.
    """
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    for path in reversed(_files(folder, worker)):
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            end = _end_of_last_line(file, size) if whole else size
            low = min(after.get(path.stem, 0), end)
            begins[path.stem], found = _scan_back(file, low, end, lines)
            ends[path.stem] = end
            lines -= found
    return dict(reversed(begins.items())), dict(reversed(ends.items()))


def _files(folder: Path, worker: str | None) -> list[Path]:
    """The log files in natural order, w2 before w10."""
    every = sorted((folder / "logs").glob("*.log"), key=lambda path: (len(path.name), path.name))
    return [path for path in every if worker in (None, path.stem)]


def _end_of_last_line(file: BinaryIO, size: int) -> int:
    """End of the last complete line; of a line longer than a block, the last block boundary."""
    data = os.pread(file.fileno(), _BLOCK, max(0, size - _BLOCK))
    at = data.rfind(b"\n") + 1
    return size - len(data) + at if at or len(data) < _BLOCK else size // _BLOCK * _BLOCK


def _scan_back(file: BinaryIO, low: int, end: int, lines: int) -> tuple[int, int]:
    """Begin of the last lines before ``end``, not before ``low``, and their number."""
    begin = max(low, _first_data(file, low))
    if lines <= 0 or begin >= end:
        return end, 0
    found = 0
    upper = end
    while upper > begin:
        lower = max(begin, upper - _BLOCK)
        for place in reversed(list(_ends(file, lower, upper))):
            if place < end:
                found += 1
                if found == lines:
                    return place, found
        upper = lower
    return low, found + 1


def _ends(file: BinaryIO, lower: int, upper: int) -> Iterator[int]:
    """Line ends in (lower, upper], as ``str.splitlines`` defines them; an end may cross a block boundary."""
    start = max(0, lower - 2)
    data = os.pread(file.fileno(), upper + 1 - start, start)
    for match in _LINE_END.finditer(data):
        if lower < start + match.end() <= upper:
            yield start + match.end()


def _first_data(file: BinaryIO, offset: int) -> int:
    """The first offset at or after this one that was not dropped: dropped output is a hole in the file."""
    try:
        return os.lseek(file.fileno(), offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.EINVAL):  # no data beyond; no support for holes
            raise
        return offset


def _skip_partial_line(begin: int, data: bytes) -> tuple[int, bytes]:
    """Skip the rest of a line whose begin was dropped."""
    end = data.find(b"\n") + 1
    return (begin + end, data[end:]) if end < len(data) else (begin, data)


def _missing(size_bytes: int) -> str:
    return (
        f"fairlead: {size_bytes} bytes are missing here: a log keeps its newest bytes only (the tenant's policy.log)\n"
    )


def whole_characters(data: bytes) -> bytes:
    """The data without an incomplete UTF-8 character at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:  # inside a character: look further back
            continue
        length = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
        return data[:-back] if length > back and len(data) > back else data
    return data
