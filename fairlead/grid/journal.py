"""A journal in a memfd that outlives the process that writes it: the supervisor holds the descriptor.

Two halves, one of them valid. The first word names the valid half and its length and is written after the bytes it
covers, so that a process killed at any point leaves a consistent journal. It does not survive a power failure.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterable

_LENGTH = struct.Struct("<I")
_PAGE = 4096
_SECOND = 1 << 63


class JournalFull(Exception):
    """The entry does not fit into the journal."""


class Journal:
    """Entries as bytes, in order; only written pages take memory."""

    def __init__(self, descriptor: int) -> None:
        self._size = os.fstat(descriptor).st_size
        self._half = (self._size - _PAGE) // 2
        self._map = mmap.mmap(descriptor, self._size)
        self._word = memoryview(self._map)[:8].cast("Q")  # one 8-byte store; struct would write byte by byte
        word = self._word[0]
        self._second, self.length = bool(word & _SECOND), int(word & ~_SECOND)

    @property
    def is_half_full(self) -> bool:
        """True when the journal should be rewritten in its shortest form."""
        return bool(self.length > self._half // 2)

    def entries(self) -> list[bytes]:
        """All valid entries, oldest first."""
        place, end, found = self._begin(), self._begin() + self.length, []
        while place < end:
            (length,) = _LENGTH.unpack_from(self._map, place)
            found.append(self._map[place + _LENGTH.size : place + _LENGTH.size + length])
            place += _LENGTH.size + length
        return found

    def append(self, entry: bytes) -> None:
        """Append an entry; raises JournalFull."""
        need = _LENGTH.size + len(entry)
        if self.length + need > self._half:
            raise JournalFull("the catalogue of this tenant is full")
        place = self._begin() + self.length
        _LENGTH.pack_into(self._map, place, len(entry))
        self._map[place + _LENGTH.size : place + need] = entry
        self.length += need
        self._commit()

    def rewrite(self, entries: Iterable[bytes]) -> None:
        """Replace all entries by these; raises JournalFull and changes nothing when they do not fit."""
        data = b"".join(_LENGTH.pack(len(entry)) + entry for entry in entries)
        if len(data) > self._half:
            raise JournalFull("the catalogue of this tenant is full")
        begin = _PAGE + (0 if self._second else self._half)
        self._map[begin : begin + len(data)] = data
        self._second, self.length = not self._second, len(data)
        self._commit()

    def _begin(self) -> int:
        return _PAGE + (self._half if self._second else 0)

    def _commit(self) -> None:
        self._word[0] = self.length | (_SECOND if self._second else 0)

    def close(self) -> None:
        self._word.release()
        self._map.close()
