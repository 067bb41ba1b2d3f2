"""Nodes as arrays: how many workers of a demand each one holds, where a job may run, and which domain a node is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    if not job.demand:
        return ()
    return tuple(sorted((name, float(much)) for name, much in job.demand.items() if much > 0 and name != DEVICE))


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
class Ground:
    """Some nodes, in the order of their names, with what they have in all."""

    nodes: tuple[Node, ...]
    at: Mapping[str, int]
    devices: Ints
    amounts: Mapping[str, Floats]
    domains: tuple[Ints, ...]
    """By level from the node itself to all nodes together: the number of the domain that each node lies in."""

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> Ground:
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
        """Where a job of this residency may run."""
        if not only:
            return np.ones(len(self.nodes), dtype=bool)
        return np.array([not only.isdisjoint(node.places) for node in self.nodes], dtype=bool)

    def holds(self, need: Need, only: frozenset[str] = ANYWHERE) -> Ints:
        """How many workers of such a job each node would hold if it were empty."""
        count = fitting(need, self.devices, self.amounts)
        return np.where(self.allowed(only), count, 0) if only else count

    def widths(self, holds: Ints) -> tuple[int, ...]:
        """The largest gang that fits within one domain, by level; the last is what fits at all."""
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


class Land:
    """The nodes of each type; what was worked out for a need and a residency is kept for the next job with the same."""

    def __init__(self, nodes: Sequence[Node], types: Sequence[str]) -> None:
        self._nodes = nodes
        self._types = types
        self._grounds: tuple[Ground, ...] | None = None
        self._known: dict[tuple[Need, frozenset[str]], tuple[tuple[int, ...], ...]] = {}
        self._print: int | None = None

    @property
    def grounds(self) -> tuple[Ground, ...]:
        if self._grounds is None:
            by_type: dict[str, list[Node]] = {name: [] for name in self._types}
            for node in self._nodes:
                by_type[node.device_type].append(node)
            self._grounds = tuple(Ground.of(by_type[name]) for name in self._types)
        return self._grounds

    @property
    def fingerprint(self) -> int:
        """Changes when a node comes, goes or has something else."""
        if self._print is None:
            self._print = hash(
                tuple((node.name, *sorted(node.capacity.items()), node.topology, node.labels) for node in self._nodes)
            )
        return self._print

    def widths(self, need: Need, only: frozenset[str]) -> tuple[tuple[int, ...], ...]:
        """By type and level: the largest gang of such a job that one domain holds; the last level is the whole type."""
        key = (need, only)
        if key not in self._known:
            self._known[key] = tuple(ground.widths(ground.holds(need, only)) for ground in self.grounds)
        return self._known[key]


def could_ever_run(job: JobState, nodes: Sequence[Node]) -> bool:
    """Whether these nodes, if they were empty, hold its smallest gang on one type of device."""
    need = need_of(job)
    for kind in {node.device_type for node in nodes}:
        if job.device_type not in (None, kind):
            continue
        ground = Ground.of([node for node in nodes if node.device_type == kind])
        if int(ground.holds(need, job.only).sum()) >= job.min_workers:
            return True
    return False
