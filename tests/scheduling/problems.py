"""Random choices to be made: few jobs, some elastic, on few devices of few types, for one tenant or several."""

from __future__ import annotations

import numpy as np

from fairlead.scheduling.market.choice import Problem

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
