"""Holds the rules of the queue tree as arrays by queue index: paths, limits, guarantees and charges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairlead.cluster import Resources
from fairlead.scheduling.job_columns import distinct_demands, read_column
from fairlead.scheduling.market.offers import Floats, Ints
from fairlead.scheduling.queues import ANY, Demand, Tree, charge
from fairlead.scheduling.state import JobState


@dataclass(frozen=True)
class Rules:
    """Paths to the top, limits and guarantees by type, and how many devices a worker of each job counts as."""

    paths: Ints  # by queue: itself and the queues above, padded with the number of queues
    above: Ints  # -1 at the top
    depth: Ints  # 0 at the top
    most: Floats  # by queue and type, infinite without a limit
    guaranteed: Floats  # by queue and type, 0 without a guarantee
    charge: Floats  # by job

    def summed_upwards(self, amounts: Floats) -> Floats:
        """Each queue's amount including the queues below it."""
        sums = amounts.astype(np.float64)
        for at, above in reversed(self._tiers):
            sums += np.bincount(above, sums[at], len(sums))
        return sums

    def summed_downwards(self, amounts: Floats) -> Floats:
        """Each queue's amount plus those of the queues above it."""
        sums = amounts.astype(np.float64)
        for at, above in self._tiers:
            sums[at] += sums[above]
        return sums

    @cached_property
    def _tiers(self) -> list[tuple[Ints, Ints]]:
        """The queues of each depth below the top, with their parents."""
        tiers = [np.nonzero(self.depth == level)[0] for level in range(1, int(self.depth.max(initial=0)) + 1)]
        return [(at, self.above[at]) for at in tiers]


def charges(jobs: Sequence[JobState], whole: Resources) -> Floats | None:
    """Devices that a worker of each job counts as; None if every worker counts as one."""
    different, of, _ = distinct_demands(jobs)
    if not any(different):
        return None
    found = np.array([charge(demand, whole) for demand in different])[of]
    return found if bool((found > 1.0).any()) else None


def queue_demand(
    jobs: Sequence[JobState], leaves: Sequence[str], types: Mapping[str, float], charged: Floats | None
) -> Demand:
    """The devices that the jobs of each leaf queue could use, at most all devices per job."""
    if not jobs:
        return Demand({}, {}, types)
    most = np.minimum(np.array(read_column(jobs, "max_workers"), dtype=np.float64), float(sum(types.values())))
    of_leaf, names = _numbered(leaves)
    of_kind, kinds = _numbered([kind or ANY for kind in read_column(jobs, "device_type")])
    part = of_leaf * len(kinds) + of_kind  # index by leaf and requested type
    wants: dict[str, dict[str, float]] = {name: {} for name in names}
    amounts, counts = (np.bincount(part, weights).tolist() for weights in (most, None))
    for at, (amount, count) in enumerate(zip(amounts, counts, strict=True)):
        if count:
            wants[names[at // len(kinds)]][kinds[at % len(kinds)]] = amount
    sums = np.bincount(of_leaf, most if charged is None else most * charged).tolist()
    return Demand(dict(zip(names, sums, strict=True)), wants, types)


def _numbered(names: Sequence[str]) -> tuple[Ints, list[str]]:
    """The index of each name, and the distinct names."""
    number = {name: at for at, name in enumerate(dict.fromkeys(names))}
    return np.array([number[name] for name in names], dtype=np.int64), list(number)


def rules(tree: Tree, types: Mapping[str, float], charged: Floats | None, jobs: int) -> Rules | None:
    """The rules of the tree; None for flat tenants with only weights and quotas."""
    limited = any(queue.guarantee or queue.most for queue in tree.queues.values())
    if not (jobs and types) or (tree.flat and not limited and charged is None):
        return None
    number = {name: at for at, name in enumerate(tree.queues)}
    paths = [[number[name] for name in tree.path(queue)] for queue in tree.queues]
    deepest = max(len(path) for path in paths)
    kinds = list(types)
    queues = tree.queues.values()
    guaranteed = [[queue.guarantee.get(kind, 0.0) for kind in kinds] for queue in queues]
    return Rules(
        paths=np.array([path + [len(paths)] * (deepest - len(path)) for path in paths], dtype=np.int64),
        above=np.array([path[1] if len(path) > 1 else -1 for path in paths], dtype=np.int64),
        depth=np.array([len(path) - 1 for path in paths], dtype=np.int64),
        most=np.array([[queue.most.get(kind, np.inf) for kind in kinds] for queue in queues], dtype=np.float64),
        guaranteed=_there(np.array(guaranteed, dtype=np.float64), paths, types),
        charge=np.ones(jobs) if charged is None else charged,
    )


def _there(guaranteed: Floats, paths: Sequence[Sequence[int]], types: Mapping[str, float]) -> Floats:
    """Guarantees in whole devices; all reduced in proportion where, as after a loss of nodes, devices are missing."""
    top = guaranteed[[at for at, path in enumerate(paths) if len(path) == 1]].sum(axis=0)
    there = np.array(list(types.values()))
    return np.asarray(np.floor(guaranteed * np.minimum(1.0, there / np.maximum(top, 1e-9)) + 1e-9), dtype=np.float64)
