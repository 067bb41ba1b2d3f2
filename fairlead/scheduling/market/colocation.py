"""Learns how workload classes slow each other down on one node, from speeds beside others and speeds alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from fairlead.scheduling.market.capacity_arrays import Floats, Ints

Table = Mapping[tuple[str, str], float]
"""(class, neighbour class) -> the part of its speed that the class loses there, 0 to 1."""

LEARNING = 0.2
"""Weight of one observation against all earlier ones."""

MOST = 0.95
"""The largest loss that is assumed."""


class Observation(NamedTuple):
    """One gang for a while: its class, its neighbours' classes, its speed there, and its speed alone."""

    kind: str
    beside: tuple[str, ...]
    speed: float
    alone: float


def learn_losses(table: Table, seen: Iterable[Observation]) -> dict[tuple[str, str], float]:
    """The table after these observations, whatever their order.

    A gang's loss is attributed to its neighbours in proportion to what each is known to cost, evenly at first. So a
    harmless class is not blamed for long for the neighbours it once had.
    """
    found = dict(table)
    for one in sorted(seen):
        others = sorted(set(one.beside))
        if not others or one.alone <= 0:
            continue
        lost = min(MOST, max(0.0, 1.0 - one.speed / one.alone))
        expected = combined_loss(found.get((one.kind, other), 0.0) for other in others)
        for other in others:
            known = found.get((one.kind, other))
            blamed = lost if expected <= 0 else min(MOST, (known or 0.0) * lost / expected)
            if expected <= 0 and len(others) > 1:
                blamed = 1.0 - (1.0 - lost) ** (1.0 / len(others))
            found[one.kind, other] = blamed if known is None else known + LEARNING * (blamed - known)
    return found


def combined_loss(losses: Iterable[float]) -> float:
    """The loss by several neighbours together: each slows what the others leave."""
    left = 1.0
    for loss in losses:
        left *= 1.0 - min(max(loss, 0.0), MOST)
    return 1.0 - left


def slowdown(table: Table, kind: str, beside: Iterable[str]) -> float:
    """The part of its speed that a gang of this class loses beside these classes."""
    return combined_loss(table.get((kind, other), 0.0) for other in sorted(beside))


@dataclass(slots=True)
class ClassesByNode:
    """The classes on each node, and what one more gang would lose and cost there."""

    table: Table
    kinds: Mapping[str, int]
    present: Ints  # node by class

    @classmethod
    def of(cls, table: Table, kinds: Iterable[str], nodes: int) -> ClassesByNode:
        numbers = {kind: number for number, kind in enumerate(sorted(set(kinds)))}
        return cls(table, numbers, np.zeros((nodes, max(len(numbers), 1)), dtype=np.int64))

    def count(self, node: int, kind: str, by: int) -> None:
        self.present[node, self.kinds[kind]] += by

    def harm(self, kind: str) -> Floats:
        """By node: what such a gang loses to the gangs there, and what they lose to it."""
        suffers = np.zeros(self.present.shape[1])
        does = np.zeros(self.present.shape[1])
        for other, number in self.kinds.items():
            suffers[number] = self.table.get((kind, other), 0.0)
            does[number] = self.table.get((other, kind), 0.0)
        there = self.present > 0
        own = 1.0 - np.prod(np.where(there, 1.0 - np.clip(suffers, 0.0, MOST), 1.0), axis=1)
        return np.asarray(own + (there * does).sum(axis=1), dtype=np.float64)
