"""Gavel's mechanism (OSDI 20): an allocation says which fraction of time each job should get, rounds realise it.

Every round the jobs that are furthest behind their fraction come first. A new allocation is computed when jobs came
or went, but not more often than every so many seconds; who comes in between has no allocation, and waits.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fairlead.scheduling.state import ClusterState, JobState, Round
from fairlead.simulation.yardsticks.elastic_gangs import speed_on
from fairlead.simulation.yardsticks.type_requests import TypeRequest, capacities, granted

Array = NDArray[np.float64]

FASTEST_FIRST = ("h100", "a100", "v100", "p100", "t4", "k80")
"""The order in which devices are handed out by policies that know speeds."""

MICROSECONDS = 6


@dataclass(frozen=True, slots=True)
class AllocationState:
    """What an allocation depends on, as arrays: jobs in the order of arrival, types by name."""

    now_s: float
    jobs: Sequence[JobState]
    types: tuple[str, ...]
    capacity: Array
    gangs: Array
    speeds: Array  # jobs x types, on the gang that each asks for

    @classmethod
    def of(cls, state: ClusterState) -> AllocationState:
        counts = capacities(state.nodes)
        gangs = np.array([job.min_workers for job in state.jobs], dtype=np.float64)
        speeds = np.array([[speed_on(job, name) for name in counts] for job in state.jobs], dtype=np.float64)
        return cls(state.now_s, state.jobs, tuple(counts), np.array(list(counts.values()), float), gangs, speeds)


class Allocator(Protocol):
    def __call__(self, scene: AllocationState) -> Array:
        """Fractions of time, jobs x types."""


@dataclass(slots=True)
class _Account:
    """What one job was promised and has received."""

    owed: Array  # promised less received, over all allocations before the present one
    share: Array | None = None
    ran_s: Mapping[str, float] = field(default_factory=dict)  # by type, when the present allocation began


class Mechanism:
    """A policy: ask the allocator now and then, and give every round's devices to those furthest behind."""

    def __init__(
        self,
        name: str,
        allocator: Allocator,
        reset_s: float,
        *,
        shuffled: bool = False,
        seed: int = 0,
        strict: bool = False,
    ) -> None:
        self._name, self._allocate, self._reset_s = name, allocator, reset_s
        self._strict = strict  # who is promised nothing gets nothing, even if devices stay idle
        self._random = random.Random(seed + 5) if shuffled else None  # for policies that tell no types apart
        self._accounts: dict[str, _Account] = {}
        self._last_s = 0.0
        self._changed = True

    def __call__(self, state: ClusterState) -> Round:
        scene = AllocationState.of(state)
        self._notice(scene)
        if self._changed and (self._last_s == 0.0 or state.now_s - self._last_s >= self._reset_s):
            self._reset(scene)
        return granted(state, self._fill(scene, (state.round_s or 60.0) / 2), self._name)

    def _notice(self, scene: AllocationState) -> None:
        """Who came and who went."""
        present = {job.id for job in scene.jobs}
        gone = [name for name in self._accounts if name not in present]
        for name in gone:
            del self._accounts[name]
        fresh = [job for job in scene.jobs if job.id not in self._accounts]
        for job in fresh:
            self._accounts[job.id] = _Account(np.zeros(len(scene.types)), ran_s=job.ran_s)
        self._changed |= bool(gone or fresh)

    def _reset(self, scene: AllocationState) -> None:
        """A new allocation; what is still owed from the one before decides ties."""
        received, elapsed_s = self._received(scene), scene.now_s - self._last_s
        shares = self._allocate(scene)
        for row, job in enumerate(scene.jobs):
            account = self._accounts[job.id]
            promised = 0.0 if account.share is None else account.share * elapsed_s
            account.owed = account.owed + promised - received[row]
            account.ran_s, account.share = job.ran_s, shares[row]
        self._last_s, self._changed = scene.now_s, False

    def _received(self, scene: AllocationState) -> Array:
        """Seconds per job and type since the present allocation began."""
        rows = []
        for job in scene.jobs:
            before = self._accounts[job.id].ran_s
            rows.append([job.ran_s.get(name, 0.0) - before.get(name, 0.0) for name in scene.types])
        return np.array(rows, dtype=np.float64)

    def _fill(self, scene: AllocationState, head_start_s: float) -> dict[str, TypeRequest]:
        """Type by type, whoever is furthest behind and fits; a place taken without an allocation stays empty."""
        # Rounded, so that equal jobs are equal and what they are owed decides, not how their seconds were added up.
        received = np.round(self._received(scene) + head_start_s, MICROSECONDS)
        accounts = [self._accounts[job.id] for job in scene.jobs]
        wanted: dict[str, TypeRequest] = {}
        taken: set[int] = set()
        for column in self._order(scene.types):
            left = int(scene.capacity[column])
            shares = [0.0 if a.share is None else float(a.share[column]) for a in accounts]
            keys = [
                (shares[i] / received[i, column] if scene.speeds[i, column] > 0 else 0.0, a.owed[column], shares[i])
                for i, a in enumerate(accounts)
            ]
            for i in sorted(range(len(keys)), key=keys.__getitem__, reverse=True):
                gang = int(scene.gangs[i])
                if i in taken or gang > left or scene.speeds[i, column] <= 0 or (self._strict and keys[i][0] <= 0):
                    continue
                left -= gang
                taken.add(i)
                if accounts[i].share is not None:
                    wanted[scene.jobs[i].id] = TypeRequest(scene.types[column], gang)
        return wanted

    def _order(self, types: tuple[str, ...]) -> list[int]:
        names = [name for name in FASTEST_FIRST if name in types]
        names += [name for name in types if name not in names]
        if self._random is not None:
            self._random.shuffle(names)
        return [types.index(name) for name in names]
