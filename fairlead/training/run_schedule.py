"""The schedule of a run: from which step on how many workers took which parts of the batch; a rerun repeats it.

Sums of floating-point numbers depend on how they are divided. A rerun that divides every batch as the first run did
gets the same weights, bit by bit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

MOST_ENTRIES = 10_000
"""The shares of a training over days may change more often; the schedule is then incomplete, and no rerun is exact."""

ScheduleEntry = tuple[int, int, str, tuple[float, ...]]
"""First step, number of workers, plan, and shares of the batch."""


class RunSchedule:
    """What was done, in entries of equal shares. A step that is taken again replaces what was recorded for it."""

    def __init__(self, stretches: Sequence[ScheduleEntry] = (), *, complete: bool = True) -> None:
        self.entries = list(stretches)
        self.complete = complete  # False: entries beyond MOST_ENTRIES were dropped

    def record(self, step: int, world: int, plan: str, shares: Sequence[float]) -> None:
        """Record how the next step is divided; adds an entry only if something changed."""
        now = (world, plan, tuple(shares))
        last = self.entries[-1] if self.entries else None
        if last is not None and last[1:] == now and last[0] <= step:
            return
        while self.entries and self.entries[-1][0] >= step:
            self.entries.pop()
        if self.entries and self.entries[-1][1:] == now:
            return
        if len(self.entries) >= MOST_ENTRIES:
            self.complete = False
            return
        self.entries.append((step, *now))

    def shares(self, step: int, world: int, plan: str) -> tuple[float, ...] | None:
        """The shares of this step; None if it was not taken by as many workers under the same plan."""
        place = bisect_right(self.entries, step, key=lambda stretch: stretch[0]) - 1
        if place < 0 or self.entries[place][1:3] != (world, plan):
            return None
        return self.entries[place][3]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunSchedule):
            return NotImplemented
        return self.complete and other.complete and self.entries == other.entries

    __hash__ = None  # type: ignore[assignment] # it grows

    def to_plain(self) -> list[list[Any]]:
        """The entries as JSON values, for messages and snapshots."""
        return [[step, world, plan, list(shares)] for step, world, plan, shares in self.entries]


def schedule_from(plain: Sequence[Sequence[Any]], *, complete: bool = True) -> RunSchedule:
    """The schedule from its JSON values."""
    made = [(int(step), int(world), str(plan), tuple(map(float, shares))) for step, world, plan, shares in plain]
    return RunSchedule(made, complete=complete)
