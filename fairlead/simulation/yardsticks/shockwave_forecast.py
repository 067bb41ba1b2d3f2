"""Forecasts run times as in Shockwave: a Bayesian estimate of the batch sizes to come."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fairlead.scheduling.state import JobState


@dataclass(frozen=True, slots=True)
class JobForecast:
    """One job's past and future on the devices it is fastest on."""

    progress: float  # part of the job that is done
    spent_s: float  # what that took, had it run alone
    left_s: float
    whole_s: float  # what the whole job would take at its mean pace so far


def outlook(job: JobState) -> JobForecast:
    """From its epochs where they are known, else from work left and speed."""
    left, speed = job.work_left or 0.0, job.curve.fastest(job.min_workers) if job.curve else 1.0
    total = job.work_done + left
    done = job.work_done / total if total > 0 else 1.0
    if "epoch_s" not in job.facts:
        return JobForecast(done, job.work_done / speed, max(left / speed, 1.0), max(total / speed, 1.0))
    seconds: tuple[float, ...] = job.facts["epoch_s"]
    batches: tuple[int, ...] = job.facts["batches"]
    epochs = len(seconds)
    reached = min(epochs, int(done * epochs))
    seen = seconds[: reached + 1]
    return JobForecast(
        reached / epochs, sum(seconds[:reached]), _left_s(batches, seconds, reached), epochs * sum(seen) / len(seen)
    )


def _left_s(batches: tuple[int, ...], seconds: tuple[float, ...], reached: int) -> float:
    """A Dirichlet prior over the batch sizes that the job can have, updated by those it has had."""
    epochs = len(batches)
    means = _means(batches, seconds)
    seen = Counter(batches[: reached + 1])
    weights = {batch: epochs / len(means) + seen[batch] for batch in means}
    total = sum(weights.values())
    ahead = {batch: max(0.0, epochs * weight / total - seen[batch]) for batch, weight in weights.items()}
    left = epochs - reached
    if left <= 0:
        return 1.0
    inflated = max(left, int(sum(ahead.values()) + 1))
    return sum(count * means[batch] for batch, count in ahead.items()) * left / inflated


def _means(batches: tuple[int, ...], seconds: tuple[float, ...]) -> dict[int, float]:
    sums: dict[int, list[float]] = {}
    for batch, one_s in zip(batches, seconds, strict=True):
        sums.setdefault(batch, []).append(one_s)
    return {batch: sum(values) / len(values) for batch, values in sums.items()}
