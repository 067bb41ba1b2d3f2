"""Tracks the nodes of one device type: free resources, the gangs on each node, and an undo log for trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from operator import ge

import numpy as np

from fairlead.cluster import counted
from fairlead.scheduling.market.capacity_arrays import ANYWHERE, Bools, Floats, Ints, Need, NodeCapacity, fitting
from fairlead.scheduling.market.colocation import ClassesByNode

WARMER_C = 5.0
"""Live, temperatures within so many degrees count as equal."""

Seats = tuple[str, ...]
Counts = Mapping[int, int]
"""Workers by node index."""


@dataclass(frozen=True, slots=True)
class SeatRequest:
    """A chosen gang and what it requires of its seats."""

    job: str
    size: int
    need: Need = ()  # of one worker, besides its device
    only: frozenset[str] = ANYWHERE
    near: frozenset[str] = ANYWHERE
    paces: tuple[float, ...] = (1.0,)  # speed by topology level, relative to the best; the last holds for wider levels
    costs_s: float = 0.0  # device seconds that the gang loses by a move
    takes_s: float = inf  # expected time to its end, if its work is declared
    ends_s: float = inf  # expected time to its end, declared or not
    kind: str = ""  # its workload class
    worth: float = 0.0  # utility of the gang: decides where not all find seats

    def pace(self, level: int) -> float:
        return self.paces[min(level, len(self.paces) - 1)]


@dataclass(frozen=True, slots=True)
class KeptRoom:
    """Room kept for a gang: gangs that stay longer than ``in_s`` may take only the devices beside it."""

    job: str
    in_s: float
    nodes: Seats
    surplus: Ints  # devices by node


@dataclass(slots=True)
class Occupancy:
    """Free amounts by node and gangs by job; a log of steps lets a trial be undone."""

    capacity: NodeCapacity
    requests: Mapping[str, SeatRequest]
    neighbours: ClassesByNode | None = None
    kept: KeptRoom | None = None
    rough: bool = False  # live: similar temperatures count as equal, and gangs stay on nodes of similar speed
    free: Ints = field(init=False)
    spare: dict[str, Floats] = field(init=False)
    gangs: dict[str, Counts] = field(default_factory=dict)
    on: list[dict[str, int]] = field(init=False)
    _log: list[tuple[str, Counts, int]] = field(default_factory=list)
    _allowed: dict[frozenset[str], Bools] = field(default_factory=dict)
    _fits: dict[Need, Ints] = field(default_factory=dict)  # by need, since the last step
    speeds: list[float] = field(init=False)  # of the nodes; only if ``rough``
    paces: tuple[Bools | None, ...] = field(init=False)
    """Node sets to try in turn: a gang is as slow as its slowest worker, so first the fastest nodes, then those and the
    next slower ones, up to all (None)."""
    awake: Bools = field(init=False)
    heat: Floats = field(init=False)

    def __post_init__(self) -> None:
        nodes = self.capacity.nodes
        self.free = self.capacity.devices.copy()
        self.spare = {name: amount.copy() for name, amount in self.capacity.amounts.items()}
        self.on = [{} for _ in nodes]
        self.awake = np.array([not node.asleep for node in nodes], dtype=bool)
        known = [node.temperature_c for node in nodes if node.temperature_c is not None]
        usual = sum(known) / len(known) if known else 0.0
        self.heat = np.array([usual if node.temperature_c is None else node.temperature_c for node in nodes])
        self.paces = (None,)
        if self.rough:
            self.heat = np.round(self.heat / WARMER_C)
            self.speeds = [round(node.speed, 1) for node in nodes]
            slowest, speeds = sorted(set(self.speeds), reverse=True)[:-1], np.array(self.speeds)
            self.paces = (*(speeds >= least for least in slowest), None)

    def tempo(self, counts: Counts) -> float:
        """Speed of the slowest of these nodes; 1 unless ``rough``."""
        return min(self.speeds[node] for node in counts) if self.rough and counts else 1.0

    def where(self, places: frozenset[str]) -> Bools:
        """The nodes that these place names cover."""
        if places not in self._allowed:
            self._allowed[places] = self.capacity.allowed(places)
        return self._allowed[places]

    def fit(self, request: SeatRequest) -> Ints:
        """How many workers of the request each node takes now."""
        count = self._fits.get(request.need)
        if count is None:
            count = self._fits[request.need] = fitting(request.need, self.free, self.spare)
        if request.only:
            count = np.where(self.where(request.only), count, 0)
        if self.kept is not None and request.job != self.kept.job and request.takes_s > self.kept.in_s:
            count = np.minimum(count, np.maximum(self.kept.surplus, 0))
        return count

    def can_stay(self, request: SeatRequest, seats: Seats) -> bool:
        """Whether exactly these seats exist, are allowed and free."""
        if len(seats) != request.size:
            return False
        count = counted(seats)
        if any(name not in self.capacity.at for name in count):
            return False
        at = [self.capacity.at[name] for name in count]
        if request.only and not self.where(request.only)[at].all():
            return False
        spare = {name: self.spare[name][at] for name, _ in request.need if name in self.spare}
        fit = fitting(request.need, self.free[at], spare)
        return all(map(ge, fit.tolist(), count.values()))

    def sit(self, job: str, counts: Counts) -> None:
        self._move(job, counts, 1)
        self._log.append((job, counts, 1))

    def leave(self, job: str) -> Counts:
        counts = self.gangs[job]
        self._move(job, counts, -1)
        self._log.append((job, counts, -1))
        return counts

    def mark(self) -> int:
        return len(self._log)

    def touched(self, mark: int) -> set[str]:
        """Jobs that were seated or removed since the mark."""
        return {job for job, _, _ in self._log[mark:]}

    def back(self, mark: int) -> None:
        """Undo all steps since the mark."""
        while len(self._log) > mark:
            job, counts, sign = self._log.pop()
            self._move(job, counts, -sign)

    def _move(self, job: str, counts: Counts, sign: int) -> None:
        request, kept = self.requests[job], self.kept
        self._fits.clear()
        stays = kept is not None and request.takes_s > kept.in_s
        for node, many in counts.items():
            self.free[node] -= sign * many
            for name, much in request.need:
                self.spare[name][node] -= sign * many * much
            if sign > 0:
                self.on[node][job] = many
            else:
                del self.on[node][job]
            if kept is not None and stays:
                kept.surplus[node] -= sign * many
            if self.neighbours is not None:
                self.neighbours.count(node, request.kind, sign)
        if sign > 0:
            self.gangs[job] = counts
        else:
            del self.gangs[job]

    def level(self, counts: Counts) -> int:
        """The narrowest topology level at which these nodes share a domain."""
        if len(counts) == 1:
            return 0
        nodes = np.fromiter(counts, dtype=np.int64)
        for level, domain in enumerate(self.capacity.domains):
            if (domain[nodes] == domain[nodes[0]]).all():
                return level
        return len(self.capacity.domains) - 1

    def seats(self, job: str) -> Seats:
        counts = self.gangs[job]
        return tuple(self.capacity.nodes[node].name for node in sorted(counts) for _ in range(counts[node]))
