"""Builds the offers: the gangs that each job could be given, and its speed on each, as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairlead.cluster import Node
from fairlead.scheduling.job_columns import read_column
from fairlead.scheduling.market.menus import Bools, Floats, Gang, Ints, Menus
from fairlead.scheduling.market.row_reductions import largest, smallest
from fairlead.scheduling.state import JobState

__all__ = ["Bools", "Floats", "Gang", "Ints", "Offers", "Pool", "offers", "present_gang"]


@dataclass(frozen=True, slots=True)
class Pool:
    """Devices in service, by type; types and nodes in the order of their names."""

    types: tuple[str, ...]
    capacity: Floats
    width: Ints  # devices of the widest node of the type
    nodes: tuple[Node, ...]
    kind_of: Mapping[str, int]  # by node

    @classmethod
    def of(cls, nodes: Sequence[Node]) -> Pool:
        serving = tuple(sorted((node for node in nodes if node.schedulable), key=lambda node: node.name))
        types = tuple(sorted({node.device_type for node in serving}))
        at = {name: number for number, name in enumerate(types)}
        capacity, width = np.zeros(len(types)), np.zeros(len(types), dtype=np.int64)
        for node in serving:
            kind = at[node.device_type]
            capacity[kind] += node.devices
            width[kind] = max(width[kind], node.devices)
        return cls(types, capacity, width, serving, {node.name: at[node.device_type] for node in nodes
                                                      if node.device_type in at})  # fmt: skip

    @property
    def devices(self) -> float:
        return float(self.capacity.sum())


@dataclass(frozen=True)
class Offers:
    """One row of possible gangs per job; rows are padded with offers of speed 0."""

    kind: Ints
    size: Ints
    speed: Floats
    present: Ints  # the column of the gang it has, -1 for none

    @property
    def jobs(self) -> int:
        return len(self.present)

    @cached_property
    def efficient(self) -> Floats:
        """Speed per device of each offer."""
        return self.speed / np.maximum(self.size, 1)

    @cached_property
    def reference(self) -> Ints:
        """The column of each job's most efficient gang, its reference gang."""
        return np.asarray(self.efficient.argmax(axis=1), dtype=np.int64)

    @cached_property
    def fastest(self) -> Floats:
        """Each job's best speed."""
        return largest(self.speed)

    @cached_property
    def least(self) -> Ints:
        """The size of each job's smallest gang; the largest integer where it has none."""
        return smallest(np.where(self.speed > 0, self.size, np.iinfo(np.int64).max))

    def best_on(self, kinds: int) -> Floats:
        """By job and type, the efficiency of its most efficient gang there."""
        found = np.zeros((self.jobs, max(kinds, 1)))
        for kind in range(kinds):
            found[:, kind] = largest(np.where(self.kind == kind, self.efficient, 0.0))
        return found

    def at(self, column: Ints) -> tuple[Ints, Ints, Floats]:
        """Type, size and speed of one column per row."""
        rows = np.arange(self.jobs)
        return self.kind[rows, column], self.size[rows, column], self.speed[rows, column]


def offers(jobs: Sequence[JobState], pool: Pool, *, fine: bool = False) -> Offers:
    """The offers of these jobs, computed once per shape of job. ``fine``: every size within a node."""
    gangs = [present_gang(jobs[at], pool) if seats else None for at, seats in enumerate(read_column(jobs, "seats"))]
    menus = _menus(pool, fine)
    row = menus.rows(jobs, gangs)
    kind, size, speed = menus.kind.take(row, axis=0), menus.size.take(row, axis=0), menus.speed.take(row, axis=0)
    wide = int(np.count_nonzero((speed > 0).any(axis=0))) or 1  # a row has its offers first
    if wide < speed.shape[1]:
        kind, size, speed = kind[:, :wide].copy(), size[:, :wide].copy(), speed[:, :wide].copy()
    return Offers(kind, size, speed, _columns(gangs, kind, size, speed))


def _columns(gangs: Sequence[Gang | None], kind: Ints, size: Ints, speed: Floats) -> Ints:
    column = np.full(len(gangs), -1, dtype=np.int64)
    rows = [at for at, gang in enumerate(gangs) if gang is not None]
    if rows:
        has = np.array([gangs[at] for at in rows], dtype=np.int64)
        same = (kind[rows] == has[:, :1]) & (size[rows] == has[:, 1:]) & (speed[rows] > 0)
        column[rows] = np.where(same.any(axis=1), same.argmax(axis=1), -1)
    return column


def present_gang(job: JobState, pool: Pool) -> Gang | None:
    """The (type, size) of its present gang; None unless all its nodes are in service and of one type."""
    if not job.seats or job.broken:
        return None
    kinds = {pool.kind_of.get(name, -1) for name in job.seats}
    kind = kinds.pop()
    return None if kinds or kind < 0 else (kind, len(job.seats))


_MENUS: dict[tuple[object, ...], Menus] = {}
"""Cached by pool; a menu is a pure function of the pool and the job's shape."""


def _menus(pool: Pool, fine: bool) -> Menus:
    """The cached menus of such a pool."""
    there = (pool.types, tuple(pool.capacity.tolist()), tuple(pool.width.tolist()), fine)
    if there not in _MENUS:
        if len(_MENUS) > 1:
            _MENUS.clear()
        _MENUS[there] = Menus(pool.types, pool.capacity.astype(int).tolist(), pool.width.tolist(), fine)
    return _MENUS[there]
