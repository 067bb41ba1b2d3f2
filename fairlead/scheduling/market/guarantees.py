"""Gangs that are larger than what is left of a guarantee: a part of them is sure, the rest has to be borrowed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fairlead.scheduling.market.menus import Floats, Ints
from fairlead.scheduling.market.problem import Problem


@dataclass(frozen=True, slots=True)
class StraddlingJob:
    """A job that has nothing, as its smallest gang of a type is larger than what is left of a guarantee."""

    job: int
    queue: int  # to which it is guaranteed
    kind: int
    size: int  # of its smallest gang of that type
    left: int  # of the guarantee
    liking: Floats  # its smallest gangs of that type by worth, nothing else


def straddling(problem: Problem, column: Ints, left: Floats) -> Iterator[StraddlingJob]:
    """For each guarantee (by queue and type) of which something is left, the highest bidder that is too large."""
    _, density, order = problem.by_density
    waiting = order[(column[order] < 0) & (density[order] > 0)]
    taken: set[int] = set()
    for queue, kind, jobs in _short_of(problem, waiting, left):
        job = next((job for job in jobs.tolist() if job not in taken), None)
        if job is not None:
            taken.add(job)
            size = int(problem.smallest[job, kind])
            liking = np.where((problem.kind[job] == kind) & (problem.size[job] == size), problem.utility[job], 0.0)
            yield StraddlingJob(job, queue, kind, size, int(left[queue, kind]), liking)


def _short_of(problem: Problem, waiting: Ints, left: Floats) -> Iterator[tuple[int, int, Ints]]:
    """Each guarantee of which something is left, the deepest queues' first, with who is too large for it."""
    rules = problem.rules
    assert rules is not None
    open_ = [found.tolist() for found in np.nonzero((rules.sure > 0) & (left >= 1))]
    paths, smallest = rules.paths[problem.group[waiting]], problem.smallest[waiting]
    for queue, kind in sorted(zip(*open_, strict=True), key=lambda at: -rules.depth[at[0]]):
        size = smallest[:, kind]
        large = (size > left[queue, kind]) & (size <= problem.capacity[kind])
        yield queue, kind, waiting[large & (paths == queue).any(axis=1)]


def uncovered(problem: Problem, column: Ints, names: Sequence[str], types: Sequence[str]) -> dict[int, str]:
    """What those who wait are told of a guarantee that does not cover their gangs, by job; in words."""
    told: dict[int, str] = {}
    if problem.rules is None or not problem.rules.sure.any():
        return told
    left = problem.rules.sure - held(problem, column)
    for queue, kind, jobs in _short_of(problem, np.nonzero(column < 0)[0], left):
        sure, rest = int(problem.rules.sure[queue, kind]), int(left[queue, kind])
        words: dict[int, str] = {}
        for job, size in zip(jobs.tolist(), problem.smallest[jobs, kind].tolist(), strict=True):
            if size not in words:
                words[size] = short(names[queue], types[kind], sure, rest, size)
            told.setdefault(job, words[size])
    return told


def held(problem: Problem, column: Ints) -> Floats:
    """Devices by queue, with all below it, and type."""
    assert problem.rules is not None
    rows = np.nonzero(column >= 0)[0]
    kinds, sizes = problem.kind[rows, column[rows]], problem.size[rows, column[rows]]
    flat = np.bincount(problem.group[rows] * len(problem.capacity) + kinds, sizes,
                       len(problem.budget) * len(problem.capacity))  # fmt: skip
    held = flat.reshape(len(problem.budget), len(problem.capacity)).astype(np.float64)
    return np.stack([problem.rules.rolled(held[:, kind]) for kind in range(len(problem.capacity))], axis=1)


def short(tenant: str, device_type: str, sure: int, left: int, size: int) -> str:
    """Why a gang is not guaranteed although something is left of a guarantee."""
    return (
        f"of the {sure} devices of type {device_type} that are guaranteed to {tenant} {left} are not in use, fewer "
        f"than its gang of {size}: {size - left} would have to be borrowed"
    )
