"""The state as arrays: which gangs each job could be given, and how fast it would run on each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fairlead.cluster import Node
from fairlead.scheduling.curves import SpeedCurve
from fairlead.scheduling.state import JobState

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MOST_SIZES = 24
"""Sizes of an elastic gang that are considered; beyond that many, they double."""

SCALING = 0.9
"""Without any curve, twice the workers are expected to be 2 ** 0.9 times as fast."""

MOST_MENUS = 50_000
"""Menus that are remembered before all are forgotten."""

WORTHWHILE = 1.005
"""A larger gang has to be so much faster to be considered."""

Gang = tuple[int, int]
"""(type by number, size)."""


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


@dataclass(frozen=True, slots=True)
class Offers:
    """Row by row what each job may choose from; rows are padded with offers of speed 0."""

    kind: Ints
    size: Ints
    speed: Floats
    present: Ints  # the column of the gang it has, -1 for none

    @property
    def jobs(self) -> int:
        return len(self.present)

    def at(self, column: Ints) -> tuple[Ints, Ints, Floats]:
        """Type, size and speed of one column per row."""
        rows = np.arange(self.jobs)
        return self.kind[rows, column], self.size[rows, column], self.speed[rows, column]


def offers(jobs: Sequence[JobState], pool: Pool) -> Offers:
    """Worked out once per shape, and then dealt out to all jobs of that shape."""
    shapes: dict[tuple[object, ...], int] = {}
    menus: list[list[tuple[int, int, float]]] = []
    row = np.zeros(len(jobs), dtype=np.int64)
    present_gang: list[Gang | None] = []
    sizes: Sizes = {}
    before = _menus(pool)
    for at, job in enumerate(jobs):
        gang = present(job, pool)
        key = (id(job.curve), job.min_workers, job.max_workers, job.device_type, gang)
        if key not in shapes:
            shapes[key] = len(menus)
            if key not in before:
                before[key] = (job.curve, menu(job, pool, gang, sizes))
            menus.append(before[key][1])
        row[at] = shapes[key]
        present_gang.append(gang)
    columns = max((len(one) for one in menus), default=0) or 1
    table = np.zeros((max(len(menus), 1), columns, 3))
    for number, one in enumerate(menus):
        if one:
            table[number, : len(one)] = one
    dealt = table[row] if jobs else np.zeros((0, columns, 3))
    kind, size, speed = dealt[:, :, 0].astype(np.int64), dealt[:, :, 1].astype(np.int64), dealt[:, :, 2]
    return Offers(kind, size, speed, _columns(present_gang, kind, size, speed))


def _columns(gangs: Sequence[Gang | None], kind: Ints, size: Ints, speed: Floats) -> Ints:
    has = np.array([gang if gang is not None else (-1, -1) for gang in gangs], dtype=np.int64).reshape(-1, 2)
    same = (kind == has[:, :1]) & (size == has[:, 1:]) & (speed > 0)
    return np.where(same.any(axis=1), same.argmax(axis=1), -1)


def present(job: JobState, pool: Pool) -> Gang | None:
    """The gang it sits on, as long as all its nodes serve and are of one type."""
    if not job.seats or job.broken:
        return None
    kinds = {pool.kind_of.get(name, -1) for name in job.seats}
    kind = kinds.pop()
    return None if kinds or kind < 0 else (kind, len(job.seats))


Menu = list[tuple[int, int, float]]
_MENUS: dict[tuple[object, ...], dict[tuple[object, ...], tuple[SpeedCurve | None, Menu]]] = {}
"""By pool, and by curve object and all else a menu depends on; the curve is kept, so that its id is not used again."""


def _menus(pool: Pool) -> dict[tuple[object, ...], tuple[SpeedCurve | None, Menu]]:
    """What was worked out before for such a pool; a menu is a pure function of its key."""
    there = (pool.types, tuple(pool.capacity.tolist()), tuple(pool.width.tolist()))
    if there not in _MENUS or len(_MENUS[there]) >= MOST_MENUS:
        _MENUS.clear()
        _MENUS[there] = {}
    return _MENUS[there]


Sizes = dict[tuple[object, ...], list[tuple[int, int]]]
"""Sizes worth considering with their places in the curve, by all that they depend on."""


def menu(job: JobState, pool: Pool, gang: Gang | None, known: Sizes) -> list[tuple[int, int, float]]:
    """(type, size, speed) of every gang worth considering; larger ones only where they are faster."""
    found: list[tuple[int, int, float]] = []
    has, sizes = gang[1] if gang else 0, job.curve.sizes if job.curve else None
    for kind, name in enumerate(pool.types):
        if job.device_type not in (None, name):
            continue
        key = (kind, sizes, job.min_workers, job.max_workers, has)
        if key not in known:
            known[key] = _sizes(job, int(pool.capacity[kind]), int(pool.width[kind]), has)
        best, width = 0.0, pool.width[kind]
        levels = None if job.curve is None else job.curve.speeds.get(name, ((), ()))
        for size, at in known[key]:
            if levels is None:
                speed = float(size**SCALING)
            else:
                near, far = levels
                speed = (near[at] if near and size <= width else 0.0) or (far[at] if far else 0.0)
            if speed > best * WORTHWHILE or (speed > 0 and gang == (kind, size)):
                found.append((kind, size, speed))
                best = max(best, speed)
    return found


def _sizes(job: JobState, capacity: int, width: int, has: int) -> list[tuple[int, int]]:
    """The smallest gang, powers of two within a node, whole nodes beyond, and the size it has now."""
    least, most = job.min_workers, min(job.max_workers, capacity)
    if least > most:
        return []
    wanted = {least} | {2**power for power in range(width.bit_length())} | set(range(width, most + 1, width))
    if len(wanted) > MOST_SIZES:
        wanted = {least} | {2**power for power in range(most.bit_length())}
    if has:
        wanted.add(has)
    chosen = sorted(size for size in wanted if least <= size <= most)
    if job.curve is None:
        return [(size, 0) for size in chosen]
    place = {size: at for at, size in enumerate(job.curve.sizes)}
    return [(size, place[size]) for size in chosen if size in place]
