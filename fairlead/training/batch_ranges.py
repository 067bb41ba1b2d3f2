"""Divides a batch among ranks, and a rank's part into the passes in which it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def part(total: int, shares: Sequence[float], rank: int) -> range:
    """Which of ``total`` positions a rank takes: contiguous, in rank order, all taken once; may be none."""
    ends = list(accumulate(shares))
    cuts = [0, *(round(total * end / ends[-1]) for end in ends)]
    return range(cuts[rank], cuts[rank + 1])


def pieces(total: int, count: int, shares: Sequence[float], rank: int, *, together: bool) -> list[range]:
    """Which positions a rank takes in each of ``count`` passes over a batch.

    ``together``: all ranks' passes are over the same samples, whatever the shares, as statistics of a pass need it;
    passes over none are left out. Else a rank cuts its part, and has the samples that its share says.
    """
    even = (1.0,) * count
    if not together:
        mine = part(total, shares, rank)
        cuts = (part(len(mine), even, place) for place in range(count))
        return [range(mine.start + cut.start, mine.start + cut.stop) for cut in cuts]
    found = []
    for whole in (part(total, even, place) for place in range(count)):
        mine = part(len(whole), shares, rank)
        if len(whole):
            found.append(range(whole.start + mine.start, whole.start + mine.stop))
    return found
