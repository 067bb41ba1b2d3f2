"""Lays out the parts of a block one after another, each aligned, with a header at the end that describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fairlead.grid.values import aligned


class Header(msgspec.Struct, frozen=True):
    """The last bytes of a block: its metadata and the position of each part."""

    meta: dict[str, Any]
    parts: list[tuple[int, int]]  # offset in the block, bytes


class Layout:
    """The positions of parts and header, computed before anything is written."""

    def __init__(self, lengths: Sequence[int], meta: Mapping[str, object], nbytes: int | None = None) -> None:
        """As short as possible, or exactly ``nbytes`` with a gap before the header; raises ValueError if too short."""
        self.parts: list[tuple[int, int]] = []
        place = 0
        for length in lengths:
            self.parts.append((place, length))
            place = aligned(place + length)
        self._end = place
        self.header = msgspec.msgpack.encode(Header(dict(meta), self.parts))
        self.nbytes = place + len(self.header) if nbytes is None else nbytes
        self.body = self.nbytes - len(self.header)
        if self.body < place:
            raise ValueError(f"{place + len(self.header)} bytes do not fit into {nbytes}")

    @classmethod
    def opaque(cls, nbytes: int) -> Layout:
        """The layout of encrypted bytes, which contain their own header."""
        made = cls([], {})
        made.body, made.header, made.nbytes, made._end = nbytes, b"", nbytes, nbytes
        return made

    def finish(self, block: memoryview) -> None:
        """Write zero padding and the header: equal content gives equal bytes and digests."""
        for begin, length in self.parts:
            after = aligned(begin + length)
            block[begin + length : after] = bytes(after - begin - length)
        block[self._end : self.body] = bytes(self.body - self._end)
        block[self.body :] = self.header


def read_header(data: bytes | memoryview) -> Header:
    return msgspec.msgpack.decode(data, type=Header)
