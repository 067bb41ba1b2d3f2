"""Who takes how much of the batch: shares follow the measured speed, and whoever is slower than its share is named.

Every rank hears every rank's compute time with the gradients, so all of them come to the same shares without a word.
Where a model is spread over the ranks its shares stay, as memory was planned for them: there who is late is only named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from fairlead.training.batch_ranges import part

MIN_STEPS = 8
MIN_SECONDS = 0.4
TOLERANCE = 0.05
"""Spread of the compute times within which the shares stay as they are; noise alone makes as much."""
STRAGGLER_Z = 3.5
SLOW = 0.5
"""Of the speed that was expected of a rank, against the others: below it the rank counts as slow."""
_FLOOR = 0.05  # spread that always counts as ordinary, as a part of the median


@dataclass(frozen=True, slots=True)
class Window:
    """What some steps have shown: the median compute time of every rank that had samples, and who was late."""

    compute_s: tuple[float, ...]
    counts: tuple[int, ...]
    stragglers: tuple[int, ...]

    @property
    def spread(self) -> float:
        """How far the compute times before the synchronisation lie apart, as a part of their mean (D6)."""
        times = [time_s for time_s, count in zip(self.compute_s, self.counts, strict=True) if count]
        whole = sum(times)
        return (max(times) - min(times)) * len(times) / whole if whole > 0 else 0.0

    def speed(self, rank: int) -> float:
        """Samples per second of computing; 0 where nothing was computed."""
        return self.counts[rank] / self.compute_s[rank] if self.compute_s[rank] > 0 else 0.0


@dataclass(frozen=True, slots=True)
class RankShare:
    """What a rank works on: the share of which replica, and which stage of it."""

    replica: int
    stage: int = 0


class Balance:
    """The shares of one generation. ``follows`` is false where the result, or memory, would depend on the shares.

    Ranks are replicas, one each, unless ``seats`` says otherwise.
    """

    def __init__(
        self, shares: Sequence[float], batch_size: int, *, follows: bool = True, expected: Sequence[float] = (),
        seats: Sequence[RankShare] = (),
    ) -> None:  # fmt: skip
        whole = sum(shares)
        self._seats = tuple(seats) or tuple(map(RankShare, range(len(shares))))
        self._expected = tuple(expected) or (1.0,) * len(self._seats)  # speeds, as the platform knows them
        self.slow_s = (0.0,) * len(self._seats)  # for how long each rank has been slow, without a break
        self.shares = tuple(share / whole for share in shares)
        self._batch_size, self._follows = batch_size, follows
        self._usual: tuple[float, ...] = ()  # of each rank: what its stage took at first, where stages differ
        self._steps: list[tuple[float, ...]] = []
        self._seconds = 0.0
        self._speeds: list[float] = []
        self.last: Window | None = None

    def note(self, compute_s: Sequence[float]) -> Window | None:
        """One step with a full batch is done. A window that is complete is returned, its shares already in force."""
        self._steps.append(tuple(compute_s))
        self._seconds += max(compute_s)
        if len(self._steps) < MIN_STEPS or self._seconds < MIN_SECONDS:
            return None
        times = tuple(median(column) for column in zip(*self._steps, strict=True))
        counts = tuple(len(part(self._batch_size, self.shares, seat.replica)) for seat in self._seats)
        seconds = self._seconds
        self._steps, self._seconds = [], 0.0
        self._usual = self._usual or usual(times, self._seats)
        alike = [time_s / one for time_s, one in zip(times, self._usual, strict=True)]
        self.last = Window(times, counts, stragglers(alike, counts))
        speeds = [self.last.speed(rank) for rank in range(len(times))]
        slow = slow_ranks([one * speed for one, speed in zip(self._usual, speeds, strict=True)], self._expected)
        self.slow_s = tuple(old + seconds if rank in slow else 0.0 for rank, old in enumerate(self.slow_s))
        if self._speeds:  # half of the past, so that one bad moment does not turn everything round
            speeds = [(old + new) / 2 if new else old for old, new in zip(self._speeds, speeds, strict=True)]
        self._speeds = speeds
        if self._follows and self.last.spread > TOLERANCE:
            self.shares = shares_by_speed(speeds, self._batch_size)
        return self.last

    def share(self, rank: int) -> float:
        """The part of the batch that comes to this rank."""
        return self.shares[self._seats[rank].replica]


def usual(times_s: Sequence[float], seats: Sequence[RankShare]) -> tuple[float, ...]:
    """By what times of ranks can be compared: what the fastest rank of each one's stage took, or 1 if all do the same.

    A stage that only one rank has is compared with how it began.
    """
    if len({seat.stage for seat in seats}) == 1:
        return (1.0,) * len(seats)
    least: dict[int, float] = {}
    for seat, time_s in zip(seats, times_s, strict=True):
        least[seat.stage] = min(time_s, least.get(seat.stage, time_s))
    return tuple(least[seat.stage] or 1.0 for seat in seats)


def shares_by_speed(speeds: Sequence[float], batch_size: int) -> tuple[float, ...]:
    """Parts of the batch in proportion to speed. Who had some keeps at least one sample, to be measured again."""
    whole = sum(speeds)
    least = 1.0 / batch_size if batch_size >= len(speeds) else 0.0
    wanted = [max(least, speed / whole) if speed else 0.0 for speed in speeds]
    return tuple(share / sum(wanted) for share in wanted)


def slow_ranks(speeds: Sequence[float], expected: Sequence[float]) -> tuple[int, ...]:
    """Ranks that do less than half of what was expected, however small their share has become by then."""
    reached = {rank: speed / wanted for rank, (speed, wanted) in enumerate(zip(speeds, expected, strict=True)) if speed}
    found = []
    for rank, own in reached.items():
        others = [value for other, value in reached.items() if other != rank]
        if others and own < SLOW * median(others):
            found.append(rank)
    return tuple(found)


def stragglers(times_s: Sequence[float], counts: Sequence[int]) -> tuple[int, ...]:
    """Ranks that took far longer than the others did for what their shares were to make alike.

    A robust z-score against the others only: of two workers neither can be an outlier among both.
    """
    busy = [rank for rank, count in enumerate(counts) if count]
    found = []
    for rank in busy:
        others = [times_s[other] for other in busy if other != rank]
        if not others:
            continue
        middle = median(others)
        spread = max(1.4826 * median(abs(time_s - middle) for time_s in others), _FLOOR * middle)
        if spread > 0 and (times_s[rank] - middle) / spread > STRAGGLER_Z:
            found.append(rank)
    return tuple(found)
