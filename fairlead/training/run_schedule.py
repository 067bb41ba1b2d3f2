"""The course of a training: how many workers took which parts of the batch from which step on, and taken again.

Sums of floating-point numbers depend on how they are parted. Who repeats a training in the same parts gets the same
weights, bit by bit; so the parts are written down as they were, and a rerun follows them instead of its own clock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

MOST = 10_000
"""Stretches that are kept: the shares of a training over days may change more often, and then it is not repeated."""

Stretch = tuple[int, int, str, tuple[float, ...]]
"""From which step on, by how many workers, under which plan, and in which shares of the batch."""


class Course:
    """What was done, stretch by stretch. A step that is taken again is noted again."""

    def __init__(self, stretches: Sequence[Stretch] = (), *, whole: bool = True) -> None:
        self.stretches = list(stretches)
        self.whole = whole  # false: there were more of them than are kept

    def note(self, step: int, world: int, plan: str, shares: Sequence[float]) -> None:
        """The step is about to be taken so; nothing is added while nothing changes."""
        now = (world, plan, tuple(shares))
        last = self.stretches[-1] if self.stretches else None
        if last is not None and last[1:] == now and last[0] <= step:
            return
        while self.stretches and self.stretches[-1][0] >= step:
            self.stretches.pop()
        if self.stretches and self.stretches[-1][1:] == now:
            return
        if len(self.stretches) >= MOST:
            self.whole = False
            return
        self.stretches.append((step, *now))

    def shares(self, step: int, world: int, plan: str) -> tuple[float, ...] | None:
        """In which shares this step was taken, if it was by as many workers under the same plan."""
        place = bisect_right(self.stretches, step, key=lambda stretch: stretch[0]) - 1
        if place < 0 or self.stretches[place][1:3] != (world, plan):
            return None
        return self.stretches[place][3]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Course):
            return NotImplemented
        return self.whole and other.whole and self.stretches == other.stretches

    __hash__ = None  # type: ignore[assignment] # it grows

    def plain(self) -> list[list[Any]]:
        """For messages and snapshots."""
        return [[step, world, plan, list(shares)] for step, world, plan, shares in self.stretches]


def course_from(plain: Sequence[Sequence[Any]], *, whole: bool = True) -> Course:
    """The course that was written down."""
    made = [(int(step), int(world), str(plan), tuple(map(float, shares))) for step, world, plan, shares in plain]
    return Course(made, whole=whole)
