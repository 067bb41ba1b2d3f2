"""Which of many byte strings may stand in a text, at a cost that does not depend on how many they are."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Literal

_WIDTHS: Mapping[int, Literal["Q", "I"]] = {8: "Q", 4: "I"}
"""So many first bytes of a string are looked up, as a number: all of a text's in one go each, without a line of ours
per byte. A secret of thousands of lines is searched for as fast as one of a single line."""


class MultiMatch:
    """Strings to look for; one that is said to be there may not be, one that is not said to be there is not."""

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
        """Those whose beginning stands somewhere in the data."""
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
    """What of it is looked up; the whole of a short one."""
    return needle[: next((width for width in _WIDTHS if len(needle) >= width), len(needle))]


def _number(data: bytes) -> int:
    return int.from_bytes(data, sys.byteorder)
