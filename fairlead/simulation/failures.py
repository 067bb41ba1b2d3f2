"""Draws node failures from a seed: single nodes, and more rarely whole racks."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from fairlead.cluster import Node
from fairlead.simulation.clusters import is_pool

REPAIR_S = 1800.0
SNAPSHOT_S = 600.0
RACK_SHARE = 0.1
"""Part of the failures that take a whole rack."""


@dataclass(frozen=True, slots=True)
class Failure:
    at_s: float
    back_s: float
    nodes: tuple[str, ...]


class Outages(Protocol):
    @property
    def snapshot_s(self) -> float:
        """How often jobs save their progress."""

    def until(self, now_s: float, nodes: Sequence[Node]) -> list[Failure]:
        """Failures since the last call."""


class NoFailures:
    snapshot_s = SNAPSHOT_S

    def until(self, now_s: float, nodes: Sequence[Node]) -> list[Failure]:
        return []


class PlannedFailures:
    """Given failures at given times."""

    def __init__(self, failures: Sequence[Failure], *, snapshot_s: float = SNAPSHOT_S) -> None:
        self.snapshot_s = snapshot_s
        self._coming = sorted(failures, key=lambda failure: failure.at_s, reverse=True)

    def until(self, now_s: float, nodes: Sequence[Node]) -> list[Failure]:
        found = []
        while self._coming and self._coming[-1].at_s <= now_s:
            found.append(self._coming.pop())
        return found


class RandomFailures:
    """Every node, and every device of a flat pool, fails at random; sometimes a node's rack goes with it."""

    def __init__(self, mtbf_h: float, seed: int, *, repair_s: float = REPAIR_S, snapshot_s: float = SNAPSHOT_S) -> None:
        self._mean_s, self._repair_s, self.snapshot_s = mtbf_h * 3600.0, repair_s, snapshot_s
        self._random = random.Random(seed)
        self._next: list[tuple[float, str]] = []

    def until(self, now_s: float, nodes: Sequence[Node]) -> list[Failure]:
        if not self._next:
            names = [node.name for node in nodes for _ in range(node.devices if is_pool(node) else 1)]
            self._next = [(now_s + self._wait_s(), name) for name in names]
            heapq.heapify(self._next)
        found: list[Failure] = []
        while self._next[0][0] <= now_s:
            at_s, name = self._next[0]
            heapq.heapreplace(self._next, (at_s + self._repair_s + self._wait_s(), name))
            found.append(Failure(at_s, at_s + self._repair_s, self._hit(name, nodes)))
        return found

    def _wait_s(self) -> float:
        return self._random.expovariate(1.0 / self._mean_s)

    def _hit(self, name: str, nodes: Sequence[Node]) -> tuple[str, ...]:
        if self._random.random() >= RACK_SHARE:
            return (name,)
        rack = next(node.topology for node in nodes if node.name == name)[:-1]
        return tuple(node.name for node in nodes if node.name == name or (rack and node.topology[:-1] == rack))
