"""Files with holes: a backup holds their bytes and not the zeros between, of which a tenant can claim any number."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import IO

HEADER = "FAIRLEAD.extents"  # of a member that holds only these parts of its file: begin+length,...;size of the file
_SHORTEST_HOLE = 1 << 16  # shorter ones are not worth the words

Extents = Sequence[tuple[int, int]]  # begin and length of each part that holds bytes


def extents(descriptor: int, seen: os.stat_result) -> Extents | None:
    """The parts of an open file that hold bytes; None: the whole of it."""
    size = seen.st_size
    if seen.st_blocks * 512 + _SHORTEST_HOLE >= size:
        return None
    found: list[tuple[int, int]] = []
    end = 0
    while end < size:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
            end = min(size, os.lseek(descriptor, begin, os.SEEK_HOLE))
        except OSError:  # a hole up to its end; or it was cut meanwhile
            break
        if found and begin - sum(found[-1]) < _SHORTEST_HOLE:
            begin = found.pop()[0]
        found.append((begin, end - begin))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return found


def format_extents(parts: Extents, size: int) -> str:
    """The parts as a member's header has them."""
    return ",".join(f"{begin}+{length}" for begin, length in parts) + f";{size}"


def parse_extents(text: str) -> tuple[Extents, int]:
    """And back; raises ValueError for what is none."""
    listed, _, size = text.partition(";")
    pairs = [part.partition("+") for part in listed.split(",") if part]
    parts = [(int(begin), int(length)) for begin, _, length in pairs]
    place = 0
    for begin, length in parts:
        if begin < place or length < 0 or begin + length > int(size):
            raise ValueError("parts that overlap, or lie beyond the end")
        place = begin + length
    return parts, int(size)


class ExtentReader:
    """An open file, read as if it had no holes."""

    def __init__(self, source: IO[bytes], parts: Extents) -> None:
        self._source, self._left = source, list(reversed(parts))

    def read(self, size: int) -> bytes:
        pieces: list[bytes] = []
        while size > 0 and self._left:
            begin, length = self._left.pop()
            taken = min(size, length)
            self._source.seek(begin)
            data = self._source.read(taken)
            pieces.append(data + bytes(taken - len(data)))  # it was cut meanwhile
            size -= taken
            if taken < length:
                self._left.append((begin + taken, length - taken))
        return b"".join(pieces)


class SparseWriter:
    """A new file, written as if it had no holes, and with them in the end."""

    def __init__(self, target: IO[bytes], text: str) -> None:
        parts, size = parse_extents(text)
        self._target, self._left = target, list(reversed(parts))
        target.truncate(size)

    def write(self, data: bytes) -> None:
        while data:
            if not self._left:
                raise ValueError("more bytes than parts")
            begin, length = self._left.pop()
            piece, data = data[:length], data[length:]
            self._target.seek(begin)
            self._target.write(piece)
            if len(piece) < length:
                self._left.append((begin + len(piece), length - len(piece)))
