"""Deals samples to workers, each sample to exactly one. Pure: the same seed gives the same partitioning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fairlead.errors import InvalidSpec

Array = np.ndarray[Any, np.dtype[Any]]
How = Literal["equal", "weighted", "key", "label", "length"]


@dataclass(frozen=True, slots=True, eq=False)
class Partitioning:
    """Samples in reading order: worker i reads order[cuts[i]:cuts[i + 1]]."""

    order: Array
    cuts: tuple[int, ...]

    @property
    def workers(self) -> int:
        return len(self.cuts) - 1

    def of(self, worker: int) -> Array:
        """The samples of one worker, in its order."""
        return self.order[self.cuts[worker] : self.cuts[worker + 1]]

    def rest(self, seen: Sequence[int]) -> Array:
        """The samples left over after worker i has read the first seen[i] of its own; partition them again."""
        if len(seen) != self.workers:
            what = f"has {len(seen)} counts for {self.workers} workers"
            raise InvalidSpec(what, field="seen", fix="give one count per worker")
        left = [self.of(worker)[max(0, count) :] for worker, count in enumerate(seen)]
        return np.concatenate(left) if left else self.order[:0]


def partition(
    samples: int | Array,
    workers: int,
    *,
    how: How = "equal",
    seed: int = 0,
    epoch: int = 0,
    weights: Sequence[float] | None = None,
    values: Any = None,
) -> Partitioning:
    """Deal samples (a count, or the ids of those that are left) to workers; each sample goes to exactly one worker.

    ``weighted`` gives fast workers more samples, ``key`` keeps samples of equal ``values`` on one worker, ``label``
    gives every worker the same mix of values, ``length`` about the same sum of them with samples of similar length
    side by side. ``values`` has one entry per sample of the whole data set. After a resize, partition
    ``partitioning.rest(seen)`` among the new workers.
    """
    known = _sample_ids(samples)
    for name, number in (("seed", seed), ("epoch", epoch)):
        if not isinstance(number, int | np.integer):
            raise InvalidSpec(f"{number!r} is not a whole number", field=name, value=number, fix="use 0, 1, ...")
    shares = _shares(workers, how, weights)
    order = known[_generator(seed, epoch).permutation(len(known))]
    if how in ("equal", "weighted"):
        return Partitioning(order, _cuts(len(order), shares))
    if values is None:
        raise InvalidSpec(f"{how} needs a value for every sample", field="values", fix="give the column to deal by")
    chosen = _checked_values(values, known, how, whole=isinstance(samples, int | np.integer))[order]
    if how == "label":
        return Partitioning(order[_stratified_order(chosen)], _cuts(len(order), shares))
    return _by_key(order, chosen, shares) if how == "key" else _by_length(order, chosen, shares, seed, epoch)


def _sample_ids(samples: int | Array) -> Array:
    if not isinstance(samples, int | np.integer):
        return np.asarray(samples)
    if samples < 0:
        raise InvalidSpec(f"{samples} is negative", field="samples", value=int(samples), fix="use 0 or more")
    return np.arange(samples)


def _checked_values(values: Any, known: Array, how: str, *, whole: bool) -> Array:
    """``values`` as an array with one comparable entry per sample of the whole data set."""
    found = np.asarray(values)
    needed = int(known.max()) + 1 if len(known) else 0
    if found.ndim != 1 or len(found) < needed or (whole and len(found) != needed):
        raise InvalidSpec(f"has the shape {found.shape}, not one value for each of {needed:,} samples", field="values",
                          fix="give the column of the whole data set to deal by")  # fmt: skip
    if found.dtype.kind == "O" and any(each is None for each in found):
        raise InvalidSpec("has samples without a value", field="values", fix="fill them in, or leave the samples out")
    if how == "length" and found.dtype.kind not in "iufb":
        raise InvalidSpec(f"holds {found.dtype}, not lengths", field="values", fix="give a number for each sample")
    return found


def _shares(workers: int, how: str, weights: Sequence[float] | None) -> Array:
    if workers < 1:
        raise InvalidSpec(f"{workers} is too few", field="workers", value=workers, fix="use at least 1")
    if how not in ("equal", "weighted", "key", "label", "length"):
        raise InvalidSpec(f"{how!r} is not a way to deal samples", field="how",
                          fix="use equal, weighted, key, label or length")  # fmt: skip
    if weights is None:
        if how == "weighted":
            raise InvalidSpec("are needed", field="weights", fix="give each worker's speed")
        return np.full(workers, 1.0 / workers)
    shares = np.asarray(weights, np.float64)
    if len(shares) != workers or not np.isfinite(shares).all() or (shares < 0).any() or shares.sum() <= 0:
        raise InvalidSpec("are not one number of 0 or more for each worker", field="weights",
                          fix="give each worker's speed")  # fmt: skip
    return np.asarray(shares / shares.sum())


def _cuts(total: int, shares: Array) -> tuple[int, ...]:
    """Where each worker's part ends, rounded so that no sample is lost; training cuts its batches the same way."""
    ends = np.cumsum(shares)
    return (0, *(round(total * float(end / ends[-1])) for end in ends))


def _stratified_order(labels: Array) -> Array:
    """An order in which every stretch has about the same mix of labels: each label is spread evenly."""
    _, codes = np.unique(labels, return_inverse=True)
    by_label = np.argsort(codes, kind="stable")
    counts = np.bincount(codes)
    within = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    spread = np.empty(len(codes))
    spread[by_label] = (within + 0.5) / np.repeat(counts, counts)
    return np.argsort(spread, kind="stable")


def _by_key(order: Array, keys: Array, shares: Array) -> Partitioning:
    """All samples of a key on one worker: the largest keys first, each to the worker furthest below its share."""
    _, first, codes, counts = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
    owner, load = np.zeros(len(counts), np.int64), np.zeros(len(shares))
    wanted = np.where(shares > 0, shares, 1e-12) * max(1, len(keys))
    for key in np.lexsort((first, -counts)):
        worker = int(np.argmin((load + counts[key]) / wanted))
        owner[key] = worker
        load[worker] += counts[key]
    workers = owner[codes]
    cuts = np.cumsum(np.bincount(workers, minlength=len(shares)))
    return Partitioning(order[np.argsort(workers, kind="stable")], (0, *cuts.tolist()))


def _by_length(order: Array, lengths: Array, shares: Array, seed: int, epoch: int) -> Partitioning:
    """About the same work per worker (for its share), with samples of similar length side by side."""
    by_length = np.argsort(lengths, kind="stable")
    turn = _worker_turns(len(order), shares)
    owned = [by_length[turn == worker] for worker in range(len(shares))]  # each in the order of length
    cuts = np.cumsum([len(each) for each in owned])
    mixed = [_shuffled_runs(each, _generator(seed, epoch, worker + 1)) for worker, each in enumerate(owned)]
    return Partitioning(order[np.concatenate(mixed)] if mixed else order, (0, *cuts.tolist()))


def _worker_turns(total: int, shares: Array) -> Array:
    """The worker of each sample, in proportion to shares and back and forth, so that none always gets the longer."""
    spread = [(np.arange(round(total * share) + 2) + 0.5) / max(share, 1e-12) for share in shares]
    turns = np.concatenate([np.full(len(each), worker) for worker, each in enumerate(spread)])
    wave = np.lexsort((turns, np.concatenate(spread)))
    found = turns[wave][:total]
    workers = len(shares)
    if np.allclose(shares, shares[0]):
        laps = np.arange(total) // workers
        place = np.arange(total) % workers
        found = np.where(laps % 2 == 0, place, workers - 1 - place)
    return found


def _shuffled_runs(samples: Array, generator: np.random.Generator, run: int = 64) -> Array:
    """Runs of similar samples in random order, so that short ones do not all come first."""
    starts = generator.permutation(np.arange(0, len(samples), run))
    return np.concatenate([samples[start : start + run] for start in starts]) if len(starts) else samples


def _generator(*parts: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([part & 0xFFFFFFFFFFFFFFFF for part in parts])))
