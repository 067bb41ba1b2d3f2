"""Shares of the batch follow the measured speeds of the ranks; stragglers are named (``slow_ranks``).

Every rank gets every rank's compute time with the gradients, so all of them compute the same shares without more
messages. Where a model is split over ranks the shares stay fixed, as memory was planned for them; stragglers are only
named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from fairlead.training.batch_ranges import rank_range
from fairlead.training.parallel.slow_ranks import slow_ranks, stragglers

MIN_STEPS = 8
MIN_SECONDS = 0.4
TOLERANCE = 0.05
"""Spread of compute times within which the shares stay as they are; noise alone makes as much."""


@dataclass(frozen=True, slots=True)
class Window:
    """The result of some steps: each rank's median compute time and number of samples, and the stragglers."""

    compute_s: tuple[float, ...]
    counts: tuple[int, ...]
    stragglers: tuple[int, ...]

    @property
    def spread(self) -> float:
        """How far compute times before the synchronisation differ, as a part of their mean (D6)."""
        times = [time_s for time_s, count in zip(self.compute_s, self.counts, strict=True) if count]
        whole = sum(times)
        return (max(times) - min(times)) * len(times) / whole if whole > 0 else 0.0

    def speed(self, rank: int) -> float:
        """Samples per second of computing; 0 if the rank computed nothing."""
        return self.counts[rank] / self.compute_s[rank] if self.compute_s[rank] > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RankShare:
    """The replica whose share a rank computes, and the rank's pipeline stage."""

    replica: int
    stage: int = 0


class Balance:
    """The shares of one generation. ``follows``: shares may change; false where result or memory depend on them.

    Each rank is a replica of its own, unless ``seats`` says otherwise.
    """

    def __init__(
        self, shares: Sequence[float], batch_size: int, *, follows: bool = True, expected: Sequence[float] = (),
        seats: Sequence[RankShare] = (),
    ) -> None:  # fmt: skip
        whole = sum(shares)
        self._seats = tuple(seats) or tuple(map(RankShare, range(len(shares))))
        self._expected = tuple(expected) or (1.0,) * len(self._seats)  # relative speeds, as the platform knows them
        self.slow_s = (0.0,) * len(self._seats)  # seconds for which each rank has been slow without a break
        self.shares = tuple(share / whole for share in shares)
        self._batch_size, self._follows = batch_size, follows
        self._reference_s: tuple[float, ...] = ()  # per rank: see reference_times
        self._steps: list[tuple[float, ...]] = []
        self._seconds = 0.0
        self._speeds: list[float] = []
        self.last: Window | None = None

    def record_step(self, compute_s: Sequence[float]) -> Window | None:
        """Record a step with a full batch; returns the window that it completes, if any. New shares apply at once."""
        self._steps.append(tuple(compute_s))
        self._seconds += max(compute_s)
        if len(self._steps) < MIN_STEPS or self._seconds < MIN_SECONDS:
            return None
        times = tuple(median(column) for column in zip(*self._steps, strict=True))
        counts = tuple(len(rank_range(self._batch_size, self.shares, seat.replica)) for seat in self._seats)
        seconds = self._seconds
        self._steps, self._seconds = [], 0.0
        self._reference_s = self._reference_s or reference_times(times, self._seats)
        alike = [time_s / one for time_s, one in zip(times, self._reference_s, strict=True)]
        self.last = Window(times, counts, stragglers(alike, counts))
        speeds = [self.last.speed(rank) for rank in range(len(times))]
        slow = slow_ranks([one * speed for one, speed in zip(self._reference_s, speeds, strict=True)], self._expected)
        self.slow_s = tuple(old + seconds if rank in slow else 0.0 for rank, old in enumerate(self.slow_s))
        if self._speeds:  # averaged with the past, so that one slow moment does not change the shares by much
            speeds = [(old + new) / 2 if new else old for old, new in zip(self._speeds, speeds, strict=True)]
        self._speeds = speeds
        if self._follows and self.last.spread > TOLERANCE:
            self.shares = shares_by_speed(speeds, self._batch_size)
        return self.last

    def share(self, rank: int) -> float:
        """The part of the batch that this rank computes."""
        return self.shares[self._seats[rank].replica]


def reference_times(times_s: Sequence[float], seats: Sequence[RankShare]) -> tuple[float, ...]:
    """The times that ranks are compared by: the fastest rank's time of each stage, or 1 if all do the same.

    A stage with a single rank is compared with how it began.
    """
    if len({seat.stage for seat in seats}) == 1:
        return (1.0,) * len(seats)
    least: dict[int, float] = {}
    for seat, time_s in zip(seats, times_s, strict=True):
        least[seat.stage] = min(time_s, least.get(seat.stage, time_s))
    return tuple(least[seat.stage] or 1.0 for seat in seats)


def shares_by_speed(speeds: Sequence[float], batch_size: int) -> tuple[float, ...]:
    """Shares in proportion to speed. A rank that computed keeps at least one sample, so that it is measured again."""
    whole = sum(speeds)
    least = 1.0 / batch_size if batch_size >= len(speeds) else 0.0
    wanted = [max(least, speed / whole) if speed else 0.0 for speed in speeds]
    return tuple(share / sum(wanted) for share in wanted)
