"""What could be promised at all: each tenant on what is its own, earliest deadline first, on whole devices. Pure.

A tenant has a bucket of device seconds. It fills at the tenant's due and is as deep as the tenant's largest gang times
one turn. A promise is planned at the earliest moment from which its job runs to its end without a pause, so that the
bucket never runs dry and no more devices are used than there are, and in the size that ends it soonest; each start
costs what it was measured to cost. What cannot be kept is dropped. When a promise comes, all that have not begun are
planned anew, the earliest deadline first. Only promises draw on the bucket, so this keeps at least as many as a tenant
could who also has something else to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

TURN_S = 60.0
GRID_S = 0.25
EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Promise:
    """A job with a deadline: by size, how long it takes."""

    id: str
    tenant: str
    asked_s: float
    deadline_s: float
    runs_s: Mapping[int, float]


@dataclass(slots=True)
class _Planned:
    promise: Promise
    begins: int  # place on the grid
    ends: int
    size: int


def kept(
    promises: Sequence[Promise], due: Mapping[str, Sequence[tuple[float, float]]], devices: int,
    largest: Mapping[str, int], *, begin_s: float, turn_s: float = TURN_S,
) -> set[str]:  # fmt: skip
    """Which promises the reference policy keeps.

    ``due``: of each tenant, the devices that are its due from each moment on; ``largest``: its largest gang.
    """
    if not promises:
        return set()
    first_s = min(min(each[0][0] for each in due.values()), min(one.asked_s for one in promises))
    last_s = max(one.deadline_s for one in promises)
    edges = first_s + GRID_S * np.arange(int((last_s - first_s) / GRID_S) + 2)
    board = _Board(edges, {name: _filled(edges, steps) for name, steps in due.items()}, devices,
                   {name: turn_s * largest[name] for name in due}, begin_s)  # fmt: skip
    for one in sorted(promises, key=lambda one: (one.asked_s, one.id)):
        board.come(one)
    return {one.promise.id for one in board.planned}


def _filled(edges: Floats, steps: Sequence[tuple[float, float]]) -> Floats:
    """Device seconds that come into a bucket in each stretch of the grid."""
    rates = np.zeros(len(edges))
    for from_s, rate in steps:
        rates[edges >= from_s - GRID_S / 2] = rate
    return rates * GRID_S


class _Board:
    """What is planned, on a grid of time."""

    def __init__(
        self, edges: Floats, fills: Mapping[str, Floats], devices: int, deep: Mapping[str, float], begin_s: float
    ) -> None:
        self._edges, self._fills, self._devices, self._deep, self._begin_s = edges, fills, devices, deep, begin_s
        self.planned: list[_Planned] = []

    def come(self, promise: Promise) -> None:
        """Plan it, and anew all others that have not begun."""
        now = int(np.searchsorted(self._edges, promise.asked_s - EPSILON))
        waiting = [one.promise for one in self.planned if one.begins >= now]
        self.planned = [one for one in self.planned if one.begins < now]
        for one in sorted([*waiting, promise], key=lambda one: (one.deadline_s, one.asked_s, one.id)):
            found = self._place(one, now)
            if found is not None:
                self.planned.append(found)

    def _used(self, tenant: str | None) -> Floats:
        used: Any = np.zeros(len(self._edges))
        for one in self.planned:
            if tenant is None or one.promise.tenant == tenant:
                used[one.begins : one.ends] += one.size
        return used

    def _place(self, promise: Promise, now: int) -> _Planned | None:
        everybody, own = self._used(None), self._used(promise.tenant)
        fill, deep = self._fills[promise.tenant], self._deep[promise.tenant]
        last = int(np.searchsorted(self._edges, promise.deadline_s + EPSILON)) - 1  # ended by then
        best: _Planned | None = None
        for size, run_s in sorted(promise.runs_s.items()):
            stretches = int(np.ceil((self._begin_s + run_s) / GRID_S - EPSILON))
            until = last if best is None else min(last, best.ends - 1)
            for begins in range(now, until - stretches + 1):
                ends = begins + stretches
                if everybody[begins:ends].max(initial=0.0) + size > self._devices:
                    continue
                more = own.copy()
                more[begins:ends] += size
                if level(fill, more * GRID_S, deep).min() >= -EPSILON:
                    best = _Planned(promise, begins, ends, size)
                    break
        return best


def level(fill: Floats, drawn: Floats, deep: float) -> Floats:
    """What is in a bucket after each stretch; what does not fit into it is lost."""
    total = np.cumsum(fill - drawn)
    return total - np.maximum.accumulate(np.maximum(total - deep, 0.0))
