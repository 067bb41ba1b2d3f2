"""Holds ElasticFlow's plan: future time slots with free devices, from which jobs' shares are reserved one by one."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.scheduling.state import JobState
from fairlead.simulation.yardsticks.elastic_gangs import levels, work_left

Piece = tuple[int, int, int]
"""From which slot to which (not included), with how many devices."""

ENOUGH = 1e-9


@dataclass(frozen=True, slots=True)
class Share:
    """Devices that a job gets from now until it is done, and when that is."""

    pieces: tuple[Piece, ...]
    ends_s: float

    @property
    def device_slots(self) -> int:
        return sum((until - since) * devices for since, until, devices in self.pieces)

    @property
    def now(self) -> int:
        """Devices in the present slot."""
        return self.pieces[0][2] if self.pieces else 0

    def changes(self) -> int | None:
        """The first slot in which it gets another number of devices."""
        return next((since for since, _, devices in self.pieces if devices != self.now), None)


def sizes_of(job: JobState) -> list[int]:
    """Gangs that are worth considering, ascending."""
    most = int(job.facts.get("widest", job.max_workers))
    sizes = list(levels(job))
    return [size for size in sizes if size <= max(most, sizes[0])]


class Plan:
    """Stretches of slots with the same number of free devices; the last one never ends."""

    def __init__(self, devices: int, now_s: float, slot_s: float) -> None:
        self.now_s, self.slot_s = now_s, slot_s
        self._starts, self._free = [0], [devices]

    @property
    def free_now(self) -> int:
        return self._free[0]

    def take(self, share: Share, sign: int = -1) -> None:
        """Cut a share out; with ``sign`` 1 put it back."""
        for since, until, devices in share.pieces:
            if devices:
                for at in range(self._cut(since), self._cut(until)):
                    self._free[at] += sign * devices
        self._join()

    def _join(self) -> None:
        """Neighbouring stretches with the same room become one."""
        free = self._free
        kept = [at for at in range(len(free)) if at == 0 or free[at] != free[at - 1]]
        if len(kept) < len(free):
            self._starts, self._free = [self._starts[at] for at in kept], [free[at] for at in kept]

    def _cut(self, slot: int) -> int:
        """The stretch that begins with this slot, made if it was none."""
        at = bisect_left(self._starts, slot)
        if at == len(self._starts) or self._starts[at] != slot:
            self._starts.insert(at, slot)
            self._free.insert(at, self._free[at - 1])
        return at

    def share(self, job: JobState, first: int | None = None) -> Share:
        """The least that still makes the deadline, or as much as there is when nothing does.

        For each size from the smallest: at most so many devices in each slot up to the deadline. The first size that
        is enough is used from as late as possible; before that the size below it does. With ``first`` the job has
        exactly so many devices until the plan changes for the first time.
        """
        deadline_s = math.inf if job.finish_by_s is None else max(job.finish_by_s - self.now_s, 0.0)
        left, begin = work_left(job), 0
        pieces: list[tuple[int, float, int]] = []
        speeds, sizes = levels(job), sizes_of(job)
        if first is not None:
            begin = 1
            until = self._starts[1] if len(self._starts) > 1 else math.inf
            pieces.append((0, until, first))
            left -= speeds[first] * min(until * self.slot_s, deadline_s)
            if left <= ENOUGH:
                return self._until_done(job, pieces)
        below = 0
        for size in sizes:
            since = self._late_enough(job, size, left, begin, deadline_s)
            if since is not None:
                for at, (start, until) in self._stretches(begin):
                    pieces.append((start, until, self._fit(sizes, size if at >= since else below, at)))
                return self._until_done(job, pieces)
            below = size
        pieces += [(start, until, self._fit(sizes, below, at)) for at, (start, until) in self._stretches(begin)]
        return self._until_done(job, pieces)

    def _late_enough(self, job: JobState, size: int, left: float, begin: int, deadline_s: float) -> int | None:
        """The last stretch from which so many devices make the deadline; None when they do not."""
        speeds, sizes = levels(job), sizes_of(job)
        last = bisect_right(self._starts, math.ceil(deadline_s / self.slot_s)) - 1 if deadline_s < math.inf else None
        done = 0.0
        for at in range(len(self._starts) - 1 if last is None else last, begin - 1, -1):
            until = self._starts[at + 1] if at + 1 < len(self._starts) else math.inf
            seconds = min(until * self.slot_s, deadline_s) - self._starts[at] * self.slot_s
            devices = self._fit(sizes, size, at)
            if devices and seconds > 0:
                done += speeds[devices] * seconds
                if done >= left - ENOUGH:
                    return at
        return None

    def _stretches(self, begin: int) -> Iterator[tuple[int, tuple[int, float]]]:
        for at in range(begin, len(self._starts)):
            yield at, (self._starts[at], self._starts[at + 1] if at + 1 < len(self._starts) else math.inf)

    def _fit(self, sizes: list[int], most: int, at: int) -> int:
        """The largest size that is allowed and free in this stretch."""
        count = bisect_right(sizes, min(most, self._free[at]))
        return sizes[count - 1] if count else 0

    def _until_done(self, job: JobState, pieces: list[tuple[int, float, int]]) -> Share:
        """Cut off where the work ends."""
        left, speeds = work_left(job), levels(job)
        kept: list[Piece] = []
        for start, until, devices in pieces:
            speed = speeds.get(devices, 0.0)
            if speed * (until - start) * self.slot_s >= left - ENOUGH and speed > 0:
                ends_s = start * self.slot_s + math.ceil(max(left, 0.0) / speed - ENOUGH)
                kept.append((start, max(math.ceil(ends_s / self.slot_s), start + 1), devices))
                return Share(tuple(kept), self.now_s + ends_s)
            if until == math.inf:
                return Share(tuple(kept), math.inf)
            left -= speed * (until - start) * self.slot_s
            kept.append((start, int(until), devices))
        return Share(tuple(kept), math.inf)
