"""Holds nodes as arrays: how many workers of a demand each holds, where a job may run, and each node's domains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.state import JobState

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Need = tuple[tuple[str, float], ...]
"""What one worker takes besides its device, by name."""

ANYWHERE: frozenset[str] = frozenset()


def need_of(job: JobState) -> Need:
    """What one worker of this job takes besides its device; jobs of the same need fit in the same places."""
    return _need(tuple(job.demand.items())) if job.demand else ()


@lru_cache(maxsize=4096)
def _need(demand: tuple[tuple[str, float], ...]) -> Need:
    return tuple(sorted((name, float(much)) for name, much in demand if much > 0 and name != DEVICE))


def fitting(need: Need, devices: Ints, amounts: Mapping[str, Floats]) -> Ints:
    """How many workers of this need each node takes, from what it has of each resource."""
    count = devices
    for name, much in need:
        have = amounts.get(name)
        if have is None:
            return np.zeros_like(devices)
        count = np.minimum(count, ((have + 1e-9) // much).astype(np.int64))
    return np.maximum(count, 0)


@dataclass(frozen=True, slots=True)
class NodeCapacity:
    """Some nodes in the order of their names, with their total resources."""

    nodes: tuple[Node, ...]
    at: Mapping[str, int]
    devices: Ints
    amounts: Mapping[str, Floats]
    domains: tuple[Ints, ...]
    """By level, from the node itself to all nodes together: the index of each node's domain."""

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> NodeCapacity:
        ordered = tuple(sorted(nodes, key=lambda node: node.name))
        names = sorted({name for node in ordered for name in node.capacity if name != DEVICE})
        return cls(
            ordered,
            {node.name: number for number, node in enumerate(ordered)},
            np.array([node.devices for node in ordered], dtype=np.int64),
            {name: np.array([node.capacity.get(name, 0.0) for node in ordered]) for name in names},
            _domains(ordered),
        )

    def allowed(self, only: frozenset[str]) -> Bools:
        """The nodes where a job of this residency may run."""
        if not only:
            return np.ones(len(self.nodes), dtype=bool)
        return np.array([not only.isdisjoint(node.places) for node in self.nodes], dtype=bool)

    def holds(self, need: Need, only: frozenset[str] = ANYWHERE) -> Ints:
        """How many workers of such a job each node would hold if it were empty."""
        count = fitting(need, self.devices, self.amounts)
        return np.where(self.allowed(only), count, 0) if only else count

    def widths(self, holds: Ints) -> tuple[int, ...]:
        """The largest gang that fits within one domain, by level; the last level is all nodes."""
        return tuple(int(np.bincount(domain, holds).max()) if len(holds) else 0 for domain in self.domains)


def _domains(nodes: Sequence[Node]) -> tuple[Ints, ...]:
    paths = [node.path for node in nodes]
    depth = max((len(path) for path in paths), default=0)
    levels = [np.arange(len(nodes), dtype=np.int64)]
    for length in range(depth, 0, -1):
        known: dict[tuple[str, ...], int] = {}
        levels.append(np.array([known.setdefault(path[:length], len(known)) for path in paths], dtype=np.int64))
    levels.append(np.zeros(len(nodes), dtype=np.int64))
    return tuple(levels)


@dataclass(frozen=True, slots=True)
class NodeKinds:
    """Nodes grouped by capacity: clusters have thousands of nodes of a few sorts, so demands are checked per sort."""

    devices: Ints  # by sort
    amounts: Mapping[str, Floats]
    domains: tuple[Ints, ...]  # by level: nodes of each sort per domain, each distinct count once

    @classmethod
    def of(cls, capacity: NodeCapacity) -> NodeKinds:
        sorts: dict[tuple[tuple[str, float], ...], int] = {}
        keys = [tuple(sorted(node.capacity.items())) for node in capacity.nodes]
        sort = np.array([sorts.setdefault(key, len(sorts)) for key in keys], dtype=np.int64)
        first = np.array([int((sort == number).argmax()) for number in range(len(sorts))], dtype=np.int64)
        counted = []
        for domain in capacity.domains:
            flat = np.bincount(domain * len(sorts) + sort, minlength=(int(domain.max()) + 1) * len(sorts))
            counted.append(np.unique(flat.reshape(-1, len(sorts)), axis=0))
        return cls(
            capacity.devices[first], {name: amount[first] for name, amount in capacity.amounts.items()}, tuple(counted)
        )

    def widths(self, needs: Sequence[Need]) -> Ints:
        """By need and level: the largest gang that one domain holds."""
        holds, asked = np.tile(self.devices, (len(needs), 1)), [dict(need) for need in needs]
        for name in sorted({name for need in needs for name, _ in need}):
            much = np.array([need.get(name, 0.0) for need in asked])[:, None]
            have = self.amounts.get(name, np.zeros(len(self.devices)))
            fits = np.floor_divide(have + 1e-9, much, out=np.full(holds.shape, np.inf), where=much > 0)
            holds = np.minimum(holds, np.maximum(fits, 0.0)).astype(np.int64)
        return np.stack([(holds @ domain.T).max(axis=1) for domain in self.domains], axis=1)


class TypeCapacity:
    """The nodes of each type, for questions about many jobs at once."""

    def __init__(self, nodes: Sequence[Node], types: Sequence[str]) -> None:
        by_type: dict[str, list[Node]] = {name: [] for name in types}
        for node in nodes:
            by_type[node.device_type].append(node)
        self.capacities = tuple(NodeCapacity.of(by_type[name]) for name in types)

    def widths(self, needs: Sequence[Need], only: frozenset[str] = ANYWHERE) -> tuple[Ints, ...]:
        """By type, then by need and level: the largest gang that one domain holds; the last level is the whole type."""
        if only:
            return tuple(
                np.array([capacity.widths(capacity.holds(need, only)) for need in needs], dtype=np.int64)
                for capacity in self.capacities
            )
        return tuple(NodeKinds.of(capacity).widths(needs) for capacity in self.capacities)


def could_ever_run(job: JobState, nodes: Sequence[Node]) -> bool:
    """Whether these nodes, if empty, hold its smallest gang on one device type."""
    need = need_of(job)
    for kind in {node.device_type for node in nodes}:
        if job.device_type not in (None, kind):
            continue
        capacity = NodeCapacity.of([node for node in nodes if node.device_type == kind])
        if int(capacity.holds(need, job.only).sum()) >= job.min_workers:
            return True
    return False
