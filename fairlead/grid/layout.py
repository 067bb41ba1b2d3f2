"""How the parts of a block lie behind each other, each aligned, with a header at the end that says what they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from fairlead.grid.values import aligned


class Header(msgspec.Struct, frozen=True):
    """The last bytes of a block."""

    meta: dict[str, Any]
    parts: list[tuple[int, int]]  # offset in the block, bytes


class Layout:
    """Where everything goes before anything is written."""

    def __init__(self, lengths: Sequence[int], meta: Mapping[str, object], nbytes: int | None = None) -> None:
        """As long as need be, or exactly so long, with a gap before the header; raises ValueError if that is short."""
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
        """Of bytes that bring everything with them."""
        made = cls([], {})
        made.body, made.header, made.nbytes, made._end = nbytes, b"", nbytes, nbytes
        return made

    def finish(self, block: memoryview) -> None:
        """Write what lies around the parts: equal blocks are equal in every byte."""
        for begin, length in self.parts:
            after = aligned(begin + length)
            block[begin + length : after] = bytes(after - begin - length)
        block[self._end : self.body] = bytes(self.body - self._end)
        block[self.body :] = self.header


def read_header(data: bytes | memoryview) -> Header:
    return msgspec.msgpack.decode(data, type=Header)
