"""Best-fit allocator for the byte ranges of an arena; adjacent free ranges are merged. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from fairlead.grid.values import aligned


class FreeRanges:
    """The free ranges of ``[0, end)``. Allocates from the smallest range that fits; of equal ones, the lowest."""

    def __init__(self, end: int = 0, taken: Iterable[tuple[int, int]] = ()) -> None:
        """All is free except ``taken``: (offset, bytes) pairs in any order. Raises ValueError when two overlap."""
        self.end = 0
        self._size_at: dict[int, int] = {}
        self._at_end: dict[int, int] = {}  # end of a free range -> its begin
        self._by_size: list[tuple[int, int]] = []
        place = 0
        for offset, nbytes in sorted(taken):
            if offset < place:
                raise ValueError(f"the range at {offset} overlaps another")
            self._add(place, offset - place)
            place = offset + aligned(nbytes)
        self._add(place, end - place)
        self.end = max(end, place)

    @property
    def free_bytes(self) -> int:
        """Bytes in all free ranges."""
        return sum(self._size_at.values())

    @property
    def largest_bytes(self) -> int:
        """Bytes of the largest free range."""
        return self._by_size[-1][0] if self._by_size else 0

    def ranges(self) -> list[tuple[int, int]]:
        """The free ranges as (offset, bytes), in order."""
        return sorted(self._size_at.items())

    def allocate(self, nbytes: int) -> int | None:
        """Allocate a range and return its offset; None when no free range is large enough."""
        wanted = max(aligned(nbytes), aligned(1))
        place = bisect_left(self._by_size, (wanted, 0))
        if place == len(self._by_size):
            return None
        size, offset = self._by_size[place]
        self._remove(offset)
        self._add(offset + wanted, size - wanted)
        return offset

    def release(self, offset: int, nbytes: int) -> None:
        """Free a range and merge it with adjacent free ranges."""
        size = max(aligned(nbytes), aligned(1))
        before = self._at_end.get(offset)
        if before is not None:
            size += self._remove(before)
            offset = before
        if offset + size in self._size_at:
            size += self._remove(offset + size)
        self._add(offset, size)

    def grow(self, end: int) -> None:
        """Extend the arena to this end."""
        if end > self.end:
            begin, self.end = self.end, end
            self.release(begin, end - begin)

    @property
    def used_end(self) -> int:
        """End of the last allocated range."""
        return self._at_end.get(self.end, self.end)

    def shrink(self, end: int) -> None:
        """Cut the arena to this end; raises ValueError when something is allocated beyond it."""
        if end < self.used_end:
            raise ValueError(f"the arena is in use up to {self.used_end}")
        if end < self.end:
            begin = self.used_end
            self._remove(begin)
            self._add(begin, end - begin)
            self.end = end

    def _add(self, offset: int, size: int) -> None:
        if size > 0:
            self._size_at[offset] = size
            self._at_end[offset + size] = offset
            insort(self._by_size, (size, offset))

    def _remove(self, offset: int) -> int:
        size = self._size_at.pop(offset)
        del self._at_end[offset + size]
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        return size
