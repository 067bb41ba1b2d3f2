"""Finds which of many byte strings may occur in a text, at a cost independent of their number."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Literal

_WIDTHS: Mapping[int, Literal["Q", "I"]] = {8: "Q", 4: "I"}
"""Widths of the prefix that is looked up as a number: set intersection tests all positions of a text in C, so a secret
of thousands of lines is searched for as fast as one of a single line."""


class MultiMatch:
    """A filter with false positives but no false negatives."""

    def __init__(self, needles: Iterable[bytes]) -> None:
        self._short: list[bytes] = []
        self._starting: dict[int, dict[int, list[bytes]]] = {width: {} for width in _WIDTHS}
        for needle in dict.fromkeys(needles):
            width = next((width for width in _WIDTHS if len(needle) >= width), 0)
            if width:
                self._starting[width].setdefault(_number(needle[:width]), []).append(needle)
            else:
                self._short.append(needle)
        self._numbers = {width: frozenset(starting) for width, starting in self._starting.items() if starting}

    def candidates(self, data: bytes) -> list[bytes]:
        """The strings whose prefix occurs in the data."""
        found = [needle for needle in self._short if needle in data]
        view = memoryview(data)
        for width, numbers in self._numbers.items():
            seen: set[int] = set()
            for shift in range(min(width, len(data) - width + 1)):
                whole = (len(data) - shift) // width * width
                seen |= numbers.intersection(view[shift : shift + whole].cast(_WIDTHS[width]))
            for number in seen:
                found += self._starting[width][number]
        return found


def lookup_prefix(needle: bytes) -> bytes:
    """The prefix that is looked up; the whole of a short string."""
    return needle[: next((width for width in _WIDTHS if len(needle) >= width), len(needle))]


def _number(data: bytes) -> int:
    return int.from_bytes(data, sys.byteorder)
