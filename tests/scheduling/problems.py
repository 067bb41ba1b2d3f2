"""Random choices to be made: few jobs, some elastic, on few devices of few types, for one tenant, several or a tree."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fairlead.scheduling.market.gang_choice import Problem
from fairlead.scheduling.market.menus import Floats, Ints
from fairlead.scheduling.market.queue_rules import Rules

SIZES = np.array([1, 2, 4, 8])


def problem_of(
    rng: np.random.Generator, tenants: int = 1, *, jobs: tuple[int, int] = (1, 12), kinds: tuple[int, int] = (1, 3),
    devices: tuple[int, int] = (1, 12),
) -> Problem:  # fmt: skip
    """Jobs differ in sizes, in what more devices bring them, in which types they run on, and in what they bid."""
    many, types = int(rng.integers(*jobs, endpoint=True)), int(rng.integers(*kinds, endpoint=True))
    capacity = rng.integers(*devices, types, endpoint=True).astype(np.float64)
    kind = np.tile(np.repeat(np.arange(types), len(SIZES)), (many, 1))
    size = np.tile(SIZES, (many, types))
    utility = np.zeros(size.shape)
    for job in range(many):
        least = int(rng.integers(len(SIZES)))
        most = int(rng.integers(least, len(SIZES))) if rng.random() < 0.6 else least
        gains = rng.lognormal(0.0, rng.choice([0.3, 1.0])) * SIZES ** rng.uniform(0.4, 1.0)
        on_type = np.repeat(np.where(rng.random(types) < 0.9, rng.uniform(0.2, 1.0, types), 0.0), len(SIZES))
        offered = np.tile((np.arange(len(SIZES)) >= least) & (np.arange(len(SIZES)) <= most), types)
        utility[job] = np.where(offered, np.tile(gains, types) * on_type, 0.0)
    utility = np.where(size <= capacity[kind], utility, 0.0)
    no_limit, nobody = np.full(tenants, np.inf), np.full(many, -1, dtype=np.int64)
    group = rng.integers(0, tenants, many)
    if tenants == 1:
        return Problem(utility, kind, size, capacity, group, no_limit, no_limit, np.zeros(many), nobody)
    weight = rng.uniform(0.5, 2.0, tenants)
    budget = np.maximum(0.0, capacity.sum() * weight / weight.sum() + rng.choice([0.0, 2.0]) * rng.normal(size=tenants))
    ceiling = np.where(rng.random(tenants) < 0.3, rng.integers(1, 13, tenants), np.inf)
    share = rng.choice([0.25, 0.5, 1.0], many)
    return Problem(utility, kind, size, capacity, group, budget, ceiling, share, nobody)


def tree_of(
    rng: np.random.Generator, *, limits: bool = True, guarantees: bool = False, heavy: bool = False, jobs: int = 12
) -> Problem:
    """The same for queues on up to three tiers; limits by queue and type, and workers that count as several devices."""
    plain = problem_of(rng, jobs=(1, jobs))
    above = _above(rng)
    queues, types = len(above), len(plain.capacity)
    paths = [_path(queue, above) for queue in range(queues)]
    leaves = np.array([queue for queue in range(queues) if queue not in above])
    group = leaves[rng.integers(0, len(leaves), plain.jobs)]
    weight, budget = rng.uniform(0.5, 2.0, queues), np.zeros(queues)
    for parent in range(-1, queues):
        below = above == parent
        there = plain.capacity.sum() if parent < 0 else budget[parent]
        budget[below] = np.round(there * weight[below] / max(weight[below].sum(), 1e-9))
    ceiling, most, guaranteed = np.full(queues, np.inf), np.full((queues, types), np.inf), np.zeros((queues, types))
    if limits:
        ceiling = np.where(rng.random(queues) < 0.3, rng.integers(1, 13, queues), np.inf)
        most = np.where(rng.random(most.shape) < 0.2, rng.integers(0, 9, most.shape), np.inf)
    if guarantees:
        guaranteed = _guarantees(rng, above, plain.capacity)
    deepest = max(len(path) for path in paths)
    charge = rng.choice([1.0, 1.3, 3.0], plain.jobs) if heavy else np.ones(plain.jobs)
    padded = np.array([path + [queues] * (deepest - len(path)) for path in paths])
    rules = Rules(padded, above, np.array([len(path) - 1 for path in paths]), most, guaranteed, charge)
    share = rng.choice([0.25, 0.5, 1.0], plain.jobs)
    return replace(plain, group=group, budget=budget, ceiling=ceiling, share=share, rules=rules)


def _above(rng: np.random.Generator) -> Ints:
    """One to three queues at the top; some have others below them, some of those as well."""
    above = [-1] * int(rng.integers(1, 4))
    for tier in range(2):
        for queue in [at for at, parent in enumerate(above) if _depth(at, above) == tier]:
            above += [queue] * int(rng.choice([0, 2, 3]))
    return np.array(above, dtype=np.int64)


def _depth(queue: int, above: list[int]) -> int:
    return 0 if above[queue] < 0 else 1 + _depth(above[queue], above)


def _path(queue: int, above: Ints) -> list[int]:
    return [queue] if above[queue] < 0 else [queue, *_path(int(above[queue]), above)]


def _guarantees(rng: np.random.Generator, above: Ints, capacity: Floats) -> Floats:
    """To those at the top no more than there is; those below a queue have a part of what is guaranteed to it."""
    guaranteed = np.zeros((len(above), len(capacity)))
    for queue, parent in enumerate(above.tolist()):
        siblings = int((above == parent).sum())
        there = capacity if parent < 0 else guaranteed[parent]
        guaranteed[queue] = np.floor(there / siblings * rng.choice([0.0, 0.5, 1.0], len(capacity)))
    return guaranteed
