"""Seats gangs where only devices count: a gang that fits on one node gets one, even if a smaller gang must move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache

import numpy as np

from fairlead.cluster import Node

Seats = tuple[str, ...]

LOOKED_AT = 64
"""Nodes that are tried when smaller gangs must move: those with the most room."""


def seat_gangs(
    nodes: Sequence[Node], wanted: Mapping[str, int], now: Mapping[str, Seats], frozen: Collection[str] | None = None
) -> dict[str, Seats]:
    """Seats on these nodes of one type for gangs of these sizes, which fit in total; ``now`` are the present seats.

    Unless ``frozen`` is None, a gang that grows or shrinks keeps its seats as far as possible, and frozen gangs do not
    move for others.
    """
    room = FreeDevices(nodes, frozen or ())
    stays = room.keep(wanted, now)
    if frozen is not None:
        room.resize(wanted, now)
    waiting = sorted((job for job in wanted if job not in room.gangs), key=lambda job: -wanted[job])
    while waiting:
        job = waiting.pop(0)
        moved = room.place(job, wanted[job])
        if moved:
            waiting = sorted({*moved, *waiting}, key=lambda one: (-wanted[one], one))
            stays.difference_update(moved)
    return {job: seats_by_node(now[job])[0] if job in stays else room.seats(job) for job in wanted}


@lru_cache(maxsize=4096)
def seats_by_node(seats: Seats) -> tuple[Seats, tuple[tuple[str, int], ...]]:
    """Seats by node name, and the count on each node; cached, as most gangs stay from round to round."""
    return tuple(sorted(seats)), tuple(sorted(Counter(seats).items()))


class FreeDevices:
    """Free devices by node, and the gangs on each node."""

    def __init__(self, nodes: Sequence[Node], frozen: Collection[str] = ()) -> None:
        self.frozen = frozen
        self.names = [node.name for node in nodes]
        self.at = {name: number for number, name in enumerate(self.names)}
        self.whole = np.array([node.devices for node in nodes], dtype=np.int64)
        self.free = self.whole.copy()
        self.gangs: dict[str, Mapping[int, int]] = {}
        self.on: list[dict[str, int]] = [{} for _ in nodes]  # gangs of one node only: they can be moved
        self.movable = np.zeros(len(nodes), dtype=np.int64)  # devices that such gangs hold

    def keep(self, wanted: Mapping[str, int], now: Mapping[str, Seats]) -> set[str]:
        """Keep gangs of unchanged size on their seats where there is room; returns those jobs."""
        at, free, stays = self.at, self.free.tolist(), set[str]()
        for job, size in wanted.items():
            before = now.get(job, ())
            if len(before) != size:
                continue
            counts = seats_by_node(before)[1]
            if all(name in at and free[at[name]] >= count for name, count in counts):
                self.gangs[job] = {at[name]: count for name, count in counts}
                for name, count in counts:
                    free[at[name]] -= count
                stays.add(job)
        self.free[:] = free
        for job in self.gangs:
            self._note(job)
        return stays

    def resize(self, wanted: Mapping[str, int], now: Mapping[str, Seats]) -> None:
        """Shrink gangs to some of their seats, and grow gangs beside their seats if possible."""
        changing = [job for job in wanted if job not in self.gangs and now.get(job)]
        here = {job: Counter(self.at[name] for name in now[job] if name in self.at) for job in changing}
        held = {job: counts for job, counts in here.items() if counts.total() == len(now[job])}
        for job, counts in held.items():
            fewer = shrunk(counts, wanted[job])
            if all(self.free[node] >= count for node, count in fewer.items()):
                self.sit(job, fewer)
        for job in sorted(held.keys() & self.gangs.keys()):
            more = wanted[job] - sum(self.gangs[job].values())
            if more > 0:
                has = Counter(self.gangs[job])
                self.leave(job)
                self.sit(job, self._beside(has, more))

    def _beside(self, has: Counter[int], more: int) -> Counter[int]:
        """These seats and so many more: on the same nodes first, then on the node with the tightest fit."""
        counts = has.copy()
        for home in sorted(has):
            part = min(more, int(self.free[home]) - has[home])
            counts[home] += part
            more -= part
        if more > 0:
            node = self._tightest(more, counts)
            if node is None:
                self._spread(more, counts)
            else:
                counts[node] += more
        return counts

    def sit(self, job: str, counts: Mapping[int, int]) -> None:
        self.gangs[job] = counts
        for node, count in counts.items():
            self.free[node] -= count
        self._note(job)

    def _note(self, job: str) -> None:
        """Record gangs on a single node as movable."""
        counts = self.gangs[job]
        if len(counts) == 1 and job not in self.frozen:
            node, count = next(iter(counts.items()))
            self.on[node][job] = count
            self.movable[node] += count

    def leave(self, job: str) -> None:
        for node, count in self.gangs.pop(job).items():
            self.free[node] += count
            self.movable[node] -= self.on[node].pop(job, 0)

    def seats(self, job: str) -> Seats:
        return tuple(self.names[node] for node in sorted(self.gangs[job]) for _ in range(self.gangs[job][node]))

    def place(self, job: str, size: int) -> list[str]:
        """Seat a gang; returns the gangs that must sit elsewhere now."""
        width = int(self.whole.max())
        moved: list[str] = []
        counts: Counter[int] = Counter()
        left = size
        while left >= width and (node := self._cleared(width, size, moved, counts)) is not None:
            counts[node] += width
            left -= width
        if left:
            node = self._tightest(left, counts)
            if node is None and left == size:
                node = self._cleared(left, size, moved, counts)
            if node is not None:
                counts[node] += left
                left = 0
        self._spread(left, counts)
        self.sit(job, counts)
        return moved

    def _tightest(self, size: int, taken: Counter[int]) -> int | None:
        free = self.free.copy()
        for node, count in taken.items():
            free[node] -= count
        fits = np.where(free >= size, free, np.iinfo(np.int64).max)
        node = int(fits.argmin())
        return node if free[node] >= size else None

    def _cleared(self, size: int, gang: int, moved: list[str], taken: Counter[int]) -> int | None:
        """A node with so much room, made by moving as few workers of smaller gangs as it takes."""
        best: tuple[int, int] | None = None
        possible = (self.whole >= size) & (self.free + self.movable >= size)
        for node in np.argsort(-np.where(possible, self.free, -1), kind="stable")[:LOOKED_AT].tolist():
            if taken[node] or not possible[node]:
                continue
            lacking = size - int(self.free[node])
            cost = 0 if lacking <= 0 else _least(sorted(n for n in self.on[node].values() if n < gang), lacking)
            if cost is not None and (best is None or cost < best[0]):
                best = (cost, node)
            if cost == 0:
                break
        if best is None:
            return None
        node = best[1]
        for job, count in sorted(self.on[node].items(), key=lambda item: (item[1], item[0])):
            if self.free[node] >= size:
                break
            if count < gang:
                self.leave(job)
                moved.append(job)
        return node

    def _spread(self, left: int, counts: Counter[int]) -> None:
        """Spread the rest over the nodes with most free devices."""
        while left > 0:
            free = self.free.copy()
            for node, count in counts.items():
                free[node] -= count
            node = int(free.argmax())
            part = min(left, int(free[node]))
            if part <= 0:
                raise ValueError("more workers than free devices")
            counts[node] += part
            left -= part


def shrunk(counts: Mapping[int, int], size: int) -> Counter[int]:
    """These seats reduced to so many: nodes with few of them are left first."""
    found = Counter(counts)
    while found.total() > size:
        node = min(found, key=lambda node: (found[node], node))
        found[node] -= min(found[node], found.total() - size)
        found += Counter()
    return found


def _least(small: Sequence[int], lacking: int) -> int | None:
    """Workers that must move when the smallest gangs leave until enough is free; None if it never is."""
    total = 0
    for count in small:
        total += count
        if total >= lacking:
            return total
    return None
