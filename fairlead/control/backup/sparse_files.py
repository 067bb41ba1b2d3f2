"""Stores sparse files without their holes: a tenant can create holes of any size for free."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO

HEADER = "FAIRLEAD.extents"  # extents in a member's header: begin+length,...;file size
_SHORTEST_HOLE = 1 << 16  # shorter holes are stored as zeros

Extents = Sequence[tuple[int, int]]  # begin and length of each part with data


def extents(descriptor: int, seen: os.stat_result) -> Extents | None:
    """The parts of an open file that hold data; None: the whole file."""
    size = seen.st_size
    if seen.st_blocks * 512 + _SHORTEST_HOLE >= size:
        return None
    found: list[tuple[int, int]] = []
    end = 0
    while end < size:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
            end = min(size, os.lseek(descriptor, begin, os.SEEK_HOLE))
        except OSError:  # a hole up to the end, or the file was truncated meanwhile
            break
        if found and begin - sum(found[-1]) < _SHORTEST_HOLE:
            begin = found.pop()[0]
        found.append((begin, end - begin))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return found


def format_extents(parts: Extents, size: int) -> str:
    """The extents as written to a member's header."""
    return ",".join(f"{begin}+{length}" for begin, length in parts) + f";{size}"


def parse_extents(text: str) -> tuple[Extents, int]:
    """The extents and file size from a header; raises ValueError if it is invalid."""
    listed, _, size = text.partition(";")
    pairs = [part.partition("+") for part in listed.split(",") if part]
    parts = [(int(begin), int(length)) for begin, _, length in pairs]
    place = 0
    for begin, length in parts:
        if begin < place or length < 0 or begin + length > int(size):
            raise ValueError("its extents overlap or lie beyond the end")
        place = begin + length
    return parts, int(size)


class ExtentReader:
    """Reads the extents of a file as one stream."""

    def __init__(self, source: IO[bytes], parts: Extents) -> None:
        self._source, self._left = source, list(reversed(parts))

    def read(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while size > 0 and self._left:
            begin, length = self._left.pop()
            taken = min(size, length)
            self._source.seek(begin)
            data = self._source.read(taken)
            pieces.append(data + bytes(taken - len(data)))  # truncated meanwhile
            size -= taken
            if taken < length:
                self._left.append((begin + taken, length - taken))
        return b"".join(pieces)


class SparseWriter:
    """Writes one stream into the extents of a new file, leaving holes."""

    def __init__(self, target: IO[bytes], text: str) -> None:
        parts, size = parse_extents(text)
        self._target, self._left = target, list(reversed(parts))
        target.truncate(size)

    def write(self, data: bytes) -> None:
        while data:
            if not self._left:
                raise ValueError("it has more data than extents")
            begin, length = self._left.pop()
            piece, data = data[:length], data[length:]
            self._target.seek(begin)
            self._target.write(piece)
            if len(piece) < length:
                self._left.append((begin + len(piece), length - len(piece)))
