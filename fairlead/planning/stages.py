"""Cuts a model into pipeline stages and assigns device kinds, by exact dynamic programming over both (K5)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MOST_PARTIAL = 48
"""Non-dominated partial solutions kept per state; exact unless a state has more of them."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """Seconds of one stage: busy per micro-batch, passage of a micro-batch, and work at the end of the step."""

    busy_s: float
    pass_s: float
    tail_s: float


@dataclass(frozen=True, slots=True)
class Partition:
    """Ordered stages: the first layer of each but the first, and the device kind of each."""

    cuts: tuple[int, ...]
    kinds: tuple[int, ...]
    busy_s: float  # of the busiest stage
    pass_s: float  # through all stages
    tail_s: float  # the longest

    def dominates(self, other: Partition) -> bool:
        return self.busy_s <= other.busy_s and self.pass_s <= other.pass_s and self.tail_s <= other.tail_s


Cost = Callable[[int, int | None, int, int, int], StageCost | None]
"""``cost(kind, previous kind, start, stop, stage)``; None if the stage does not fit into memory or is too slow.

A refused stage must also be refused with more layers."""

Objective = Callable[[Partition], float]


def best_partition(
    starts: Sequence[int], layers: int, counts: Sequence[int], cost: Cost, objective: Objective
) -> Partition | None:
    """The best way to give all ``layers`` to ``sum(counts)`` stages, ``counts[k]`` of them on devices of kind ``k``.

    ``starts`` are the layers at which a stage may begin. The objective must grow with each of the three times of a
    partition. None if nothing fits.
    """
    allowed = sorted({start for start in starts if 0 < start < layers})
    stages = sum(counts)
    fronts: dict[tuple[int, tuple[int, ...], int | None], list[Partition]] = {
        (0, tuple(0 for _ in counts), None): [Partition((), (), 0.0, 0.0, 0.0)]
    }
    for stage in range(stages):
        fronts = _with_one_more_stage(fronts, allowed, layers, counts, cost, objective, stage, last=stage == stages - 1)
        if not fronts:
            return None
    whole = [partition for front in fronts.values() for partition in front]
    return min(whole, key=lambda p: (objective(p), p.cuts, p.kinds))


def _with_one_more_stage(
    fronts: dict[tuple[int, tuple[int, ...], int | None], list[Partition]], allowed: Sequence[int], layers: int,
    counts: Sequence[int], cost: Cost, objective: Objective, stage: int, *, last: bool,
) -> dict[tuple[int, tuple[int, ...], int | None], list[Partition]]:  # fmt: skip
    found: dict[tuple[int, tuple[int, ...], int | None], list[Partition]] = {}
    to_come = sum(counts) - stage - 1
    for (start, used, previous), front in fronts.items():
        later = [stop for stop in allowed if stop > start]
        stops = [layers] if last else later[: max(0, len(later) - to_come + 1)]
        for kind, count in enumerate(counts):
            if used[kind] == count:
                continue
            after = (*used[:kind], used[kind] + 1, *used[kind + 1 :])
            for stop in stops:
                price = cost(kind, previous, start, stop, stage)
                if price is None:
                    break
                more = [with_stage(partition, start, kind, price) for partition in front]
                found.setdefault((stop, after, kind), []).extend(more)
    return {state: _pareto_front(partitions, objective) for state, partitions in found.items()}


def balanced_cuts(sums: Sequence[float], stages: int) -> list[int]:
    """Cuts with about equal sums per stage, found in one pass; ``sums`` are prefix sums."""
    layers = len(sums) - 1
    cuts: list[int] = []
    for stage in range(1, stages):
        wanted = sums[-1] * stage / stages
        at = bisect_left(sums, wanted)
        if at > 0 and wanted - sums[at - 1] < sums[min(at, layers)] - wanted:
            at -= 1
        cuts.append(min(max(at, (cuts[-1] if cuts else 0) + 1), layers - (stages - stage)))
    return cuts


def with_stage(before: Partition, start: int, kind: int, price: StageCost) -> Partition:
    """The partition with one more stage."""
    return Partition(
        (*before.cuts, start) if before.kinds else (), (*before.kinds, kind), max(before.busy_s, price.busy_s),
        before.pass_s + price.pass_s, max(before.tail_s, price.tail_s),
    )  # fmt: skip


def _pareto_front(partitions: list[Partition], objective: Objective) -> list[Partition]:
    """The partitions that no other dominates, best first, at most ``MOST_PARTIAL``."""
    kept: list[Partition] = []
    for one in sorted(partitions, key=lambda p: (objective(p), p.cuts, p.kinds)):
        if not any(other.dominates(one) for other in kept):
            kept.append(one)
            if len(kept) == MOST_PARTIAL:
                break
    return kept
