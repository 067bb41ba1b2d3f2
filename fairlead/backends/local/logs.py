"""Reads what the workers of a job wrote, from where the reader stopped the last time."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO

from fairlead.backends.protocol import LogChunk, LogCursor


def read_logs(folder: Path, after: LogCursor, limit_bytes: int, worker: str | None = None) -> list[LogChunk]:
    """New text per worker, or of one, at most this many bytes in all; a character cut in two waits for its rest.

    Bytes that are no text are kept as surrogates, so that a place in the text can be told as a place in the file.
    Where the oldest was dropped to keep the log within its limit, a line of its own says how much is missing.
    """
    chunks: list[LogChunk] = []
    for path in sorted((folder / "logs").glob("*.log"), key=lambda path: (len(path.name), path.name)):
        if limit_bytes <= 0:
            break
        if worker not in (None, path.stem):
            continue
        with path.open("rb") as file:
            offset = after.get(path.stem, 0)
            begin = _where_data_begins(file, offset)
            file.seek(begin)
            data = file.read(limit_bytes)
        if begin > offset:
            begin, data = _from_a_whole_line(begin, data)
        data = whole_characters(data)
        if data:
            missing = _missing(begin - offset) if begin > offset else ""
            chunks.append(LogChunk(path.stem, missing + data.decode(errors="surrogateescape"), begin + len(data)))
            limit_bytes -= len(data)
    return chunks


def _where_data_begins(file: BinaryIO, offset: int) -> int:
    """The first place at or after the offset that was not dropped: a dropped part is a hole in the file."""
    try:
        return os.lseek(file.fileno(), offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno not in (errno.ENXIO, errno.EINVAL):  # nothing beyond this place; a file system without holes
            raise
        return offset


def _from_a_whole_line(begin: int, data: bytes) -> tuple[int, bytes]:
    """What is left of a line that was dropped in part goes as well."""
    end = data.find(b"\n") + 1
    return (begin + end, data[end:]) if end < len(data) else (begin, data)


def _missing(size_bytes: int) -> str:
    return (
        f"fairlead: {size_bytes} bytes are missing here: only the newest of a log are kept (the tenant's policy.log)\n"
    )


def whole_characters(data: bytes) -> bytes:
    """The data without the beginning of a UTF-8 character at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:  # inside a character: look further back
            continue
        length = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
        return data[:-back] if length > back and len(data) > back else data
    return data
