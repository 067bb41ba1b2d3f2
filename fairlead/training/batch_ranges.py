"""Divides a batch among ranks, and a rank's part into the passes in which it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def rank_range(total: int, shares: Sequence[float], rank: int) -> range:
    """The positions of ``total`` that a rank takes: contiguous, in rank order, each taken once; may be empty."""
    ends = list(accumulate(shares))
    cuts = [0, *(round(total * end / ends[-1]) for end in ends)]
    return range(cuts[rank], cuts[rank + 1])


def pass_ranges(total: int, count: int, shares: Sequence[float], rank: int, *, together: bool) -> list[range]:
    """The positions that a rank takes in each of ``count`` passes over a batch.

    ``together``: all ranks' passes cover the same samples, as statistics of a pass need it; empty passes are left out.
    Else each rank divides its own part, as large as its share says.
    """
    even = (1.0,) * count
    if not together:
        mine = rank_range(total, shares, rank)
        cuts = (rank_range(len(mine), even, place) for place in range(count))
        return [range(mine.start + cut.start, mine.start + cut.stop) for cut in cuts]
    found = []
    for whole in (rank_range(total, even, place) for place in range(count)):
        mine = rank_range(len(whole), shares, rank)
        if len(whole):
            found.append(range(whole.start + mine.start, whole.start + mine.stop))
    return found
