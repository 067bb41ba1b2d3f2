"""Indexes the free places for workers of one shape, so that the tightest node is found without a search."""

from __future__ import annotations

import heapq
from collections.abc import Mapping


class FreePlaces:
    """Free places by node, and nodes by how many they have."""

    def __init__(self, slots: Mapping[str, int], seen: int, rank: Mapping[str, int] | None = None) -> None:
        self.slots = {name: count for name, count in slots.items() if count > 0}
        self.total = sum(self.slots.values())
        self.seen = seen  # entries of the seating's log that are included
        self._rank = rank or {}  # of nodes with equally many places the lowest rank comes first, then by name
        self._heaps: dict[int, list[tuple[int, str]]] = {}
        for name, count in self.slots.items():
            self._heaps.setdefault(count, []).append((self._rank.get(name, 0), name))
        for names in self._heaps.values():
            heapq.heapify(names)

    def note(self, name: str, count: int) -> None:
        """Set the number of places of a node."""
        before = self.slots.pop(name, 0)
        self.total += count - before
        if count > 0:
            self.slots[name] = count
            if count != before:
                heapq.heappush(self._heaps.setdefault(count, []), (self._rank.get(name, 0), name))

    def pick(self, count: int, keep: tuple[str, ...]) -> tuple[str, ...]:
        """Choose so many places, which must exist: on kept nodes first, then the fullest node that takes the rest."""
        chosen: list[str] = []
        used: set[str] = set()
        for name in sorted(
            (name for name in set(keep) if name in self.slots), key=lambda name: (-self.slots[name], name)
        ):
            part = min(count - len(chosen), self.slots[name])
            chosen += [name] * part
            used.add(name)
        while len(chosen) < count:
            left = count - len(chosen)
            name = self._next(left, used)
            chosen += [name] * min(left, self.slots[name])
            used.add(name)
        return tuple(sorted(chosen))

    def _next(self, left: int, used: set[str]) -> str:
        sizes = sorted(self._heaps)
        order = [size for size in sizes if size >= left] + [size for size in reversed(sizes) if size < left]
        for size in order:
            name = self._top(size, used)
            if name is not None:
                return name
        raise ValueError("more workers than places")

    def _top(self, size: int, used: set[str]) -> str | None:
        heap, skipped = self._heaps[size], []
        found = None
        while heap and found is None:
            name = heap[0][1]
            if self.slots.get(name) != size:
                heapq.heappop(heap)
            elif name in used:
                skipped.append(heapq.heappop(heap)[1])
            else:
                found = name
        for name in skipped:
            heapq.heappush(heap, (self._rank.get(name, 0), name))
        return found
