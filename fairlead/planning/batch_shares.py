"""Divides a batch among replicas of unequal speed, so that all finish at the same time (requirement D6)."""

from __future__ import annotations

from collections.abc import Sequence


def balanced_batch_counts(batch: int, fixed_s: Sequence[float], sample_s: Sequence[float]) -> tuple[int, ...]:
    """Samples per replica that minimise the time of the slowest, which is ``fixed_s + sample_s * count``.

    A replica gets none if it is so slow that it would only delay the others.
    """
    counts = [0] * len(fixed_s)
    low, high = 0.0, max(fixed_s) + batch * max(sample_s)
    for _ in range(60):  # the real-valued optimum first: all participants finish together
        middle = (low + high) / 2
        if sum(_samples_within(middle, f, s) for f, s in zip(fixed_s, sample_s, strict=True)) >= batch:
            high = middle
        else:
            low = middle
    for place, (fixed, sample) in enumerate(zip(fixed_s, sample_s, strict=True)):
        counts[place] = int(_samples_within(low, fixed, sample))
    left, taken = batch - sum(counts), sum(counts)
    if left > len(counts):  # the times are too short to distinguish replicas
        counts = [count + (left * count // taken if taken else left // len(counts)) for count in counts]
    for _ in range(batch - sum(counts)):  # the remainder one by one, to the replica that would finish first
        ends = [f + s * (n + 1) for f, s, n in zip(fixed_s, sample_s, counts, strict=True)]
        counts[min(range(len(ends)), key=ends.__getitem__)] += 1
    return tuple(counts)


def _samples_within(time_s: float, fixed: float, sample: float) -> float:
    return max(0.0, (time_s - fixed) / sample) if sample > 0 else 0.0
