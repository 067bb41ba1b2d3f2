"""Reads what the workers of a job wrote, from where the reader stopped the last time."""

from __future__ import annotations

from pathlib import Path

from fairlead.backends.protocol import LogChunk, LogCursor


def read_logs(folder: Path, after: LogCursor, limit_bytes: int, worker: str | None = None) -> list[LogChunk]:
    """New text per worker, or of one, at most this many bytes in all; a character cut in two waits for its rest.

    Bytes that are no text are kept as surrogates, so that a place in the text can be told as a place in the file.
    """
    chunks: list[LogChunk] = []
    for path in sorted((folder / "logs").glob("*.log"), key=lambda path: (len(path.name), path.name)):
        if limit_bytes <= 0:
            break
        if worker not in (None, path.stem):
            continue
        with path.open("rb") as file:
            offset = after.get(path.stem, 0)
            file.seek(offset)
            data = whole_characters(file.read(limit_bytes))
        if data:
            chunks.append(LogChunk(path.stem, data.decode(errors="surrogateescape"), offset + len(data)))
            limit_bytes -= len(data)
    return chunks


def whole_characters(data: bytes) -> bytes:
    """The data without the beginning of a UTF-8 character at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:  # inside a character: look further back
            continue
        length = 1 + (byte >= 0xC0) + (byte >= 0xE0) + (byte >= 0xF0)
        return data[:-back] if length > back and len(data) > back else data
    return data
