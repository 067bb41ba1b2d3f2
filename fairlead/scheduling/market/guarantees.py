"""Finds gangs that are larger than the rest of a guarantee: a part is guaranteed, the rest must be borrowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.scheduling.market.menus import Floats, Ints
from fairlead.scheduling.market.problem import Problem


@dataclass(frozen=True, slots=True)
class StraddlingJob:
    """A waiting job whose smallest gang of a type is larger than the rest of a guarantee."""

    job: int
    queue: int  # the owner of the guarantee
    kind: int
    size: int  # of its smallest gang of that type
    left: int  # of the guarantee
    preference: Floats  # utility of its smallest gangs of that type, 0 for others


def straddling_jobs(problem: Problem, column: Ints, left: Floats) -> Iterator[StraddlingJob]:
    """For each guarantee (by queue and type) with unused devices, the highest bidder that is too large for them."""
    _, density, order = problem.by_density
    waiting = order[(column[order] < 0) & (density[order] > 0)]
    taken: set[int] = set()
    for queue, kind, jobs in _short_of(problem, waiting, left):
        job = next((job for job in jobs.tolist() if job not in taken), None)
        if job is not None:
            taken.add(job)
            size = int(problem.smallest[job, kind])
            preference = np.where((problem.kind[job] == kind) & (problem.size[job] == size), problem.utility[job], 0.0)
            yield StraddlingJob(job, queue, kind, size, int(left[queue, kind]), preference)


def _short_of(problem: Problem, waiting: Ints, left: Floats) -> Iterator[tuple[int, int, Ints]]:
    """Each guarantee with unused devices, the deepest queues first, and the jobs that are too large for it."""
    rules = problem.rules
    assert rules is not None
    open_ = [found.tolist() for found in np.nonzero((rules.guaranteed > 0) & (left >= 1))]
    paths, smallest = rules.paths[problem.group[waiting]], problem.smallest[waiting]
    for queue, kind in sorted(zip(*open_, strict=True), key=lambda at: -rules.depth[at[0]]):
        size = smallest[:, kind]
        large = (size > left[queue, kind]) & (size <= problem.capacity[kind])
        yield queue, kind, waiting[large & (paths == queue).any(axis=1)]


def partly_guaranteed(problem: Problem, column: Ints, names: Sequence[str], types: Sequence[str]) -> dict[int, str]:
    """By waiting job, words for a guarantee that covers its gang only in part."""
    told: dict[int, str] = {}
    if problem.rules is None or not problem.rules.guaranteed.any():
        return told
    left = problem.rules.guaranteed - devices_held(problem, column)
    for queue, kind, jobs in _short_of(problem, np.nonzero(column < 0)[0], left):
        guaranteed, rest = int(problem.rules.guaranteed[queue, kind]), int(left[queue, kind])
        words: dict[int, str] = {}
        for job, size in zip(jobs.tolist(), problem.smallest[jobs, kind].tolist(), strict=True):
            if size not in words:
                words[size] = guarantee_gap_text(names[queue], types[kind], guaranteed, rest, size)
            told.setdefault(job, words[size])
    return told


def devices_held(problem: Problem, column: Ints) -> Floats:
    """Devices held by queue, including the queues below it, and type."""
    assert problem.rules is not None
    rows = np.nonzero(column >= 0)[0]
    kinds, sizes = problem.kind[rows, column[rows]], problem.size[rows, column[rows]]
    flat = np.bincount(problem.group[rows] * len(problem.capacity) + kinds, sizes,
                       len(problem.budget) * len(problem.capacity))  # fmt: skip
    counts = flat.reshape(len(problem.budget), len(problem.capacity)).astype(np.float64)
    return np.stack([problem.rules.summed_upwards(counts[:, kind]) for kind in range(len(problem.capacity))], axis=1)


def guarantee_gap_text(tenant: str, device_type: str, guaranteed: int, left: int, size: int) -> str:
    """Words for a gang that is larger than the rest of a guarantee."""
    return (
        f"{left} of the {guaranteed} devices of type {device_type} guaranteed to {tenant} are unused, fewer than its "
        f"gang of {size}: it would have to borrow {size - left}"
    )
