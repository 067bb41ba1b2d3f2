"""Tracks which job holds which seats in one round, and what is free on each node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf
from typing import NamedTuple

from fairlead.cluster import DEVICE, Node, NodeState, counted
from fairlead.scheduling.free_places import FreePlaces
from fairlead.scheduling.node_neighbours import NeighbourTable
from fairlead.scheduling.state import JobState

WARMER_C = 5.0
"""Temperatures within so many degrees count as equal."""

PLAIN = ((DEVICE, 1.0),)
"""The need of a worker that needs only its device."""


class Shape(NamedTuple):
    """What one worker of a job needs; jobs of one shape fit in the same places."""

    device_type: str | None
    need: tuple[tuple[str, float], ...]
    only: frozenset[str] = frozenset()  # zones, racks, nodes or labels outside of which it may not run
    near: frozenset[str] = frozenset()  # where it would rather run
    kind: str = ""  # its workload class, where interference between classes is known

    @classmethod
    def of(cls, job: JobState, kind: str = "") -> Shape:
        if not job.demand:
            return cls(job.device_type, PLAIN, job.only, job.near, kind)
        positive = ((name, float(amount)) for name, amount in job.demand.items() if amount > 0 and name != DEVICE)
        return cls(job.device_type, (*sorted(positive), (DEVICE, 1.0)), job.only, job.near, kind)

    def on(self, device_type: str) -> Shape:
        """The shape on devices of this type only."""
        if self.device_type == device_type:
            return self
        return Shape(device_type, self.need, self.only, self.near, self.kind)

    def slots(self, amounts: Mapping[str, float]) -> int:
        """How many such workers fit into these amounts."""
        if len(self.need) == 1:
            return max(0, int(amounts.get(DEVICE, 0.0) + 1e-9))
        least = inf
        for name, amount in self.need:  # the innermost loop of all
            least = min(least, (amounts.get(name, 0.0) + 1e-9) // amount)
        return max(0, int(least))


NOWHERE = FreePlaces({}, 0)


class SeatingPlan:
    """Free amounts by node, seats by job and devices by tenant, for one round."""

    def __init__(
        self, nodes: Iterable[Node], jobs: Iterable[JobState], table: Mapping[tuple[str, str], float] | None = None
    ) -> None:
        present = [node for node in nodes if node.state is not NodeState.LOST]
        self.nodes = {node.name: node for node in sorted(present, key=lambda node: node.name)}
        self._serving = {node.name: node.device_type for node in present if node.schedulable}  # take new workers
        self.types = tuple(sorted(set(self._serving.values())))
        self.warmths = temperature_steps(present)
        self.free: dict[str, Mapping[str, float]] = {name: node.capacity for name, node in self.nodes.items()}
        self.seats: dict[str, tuple[str, ...]] = {}
        self.used: dict[str, int] = {}
        self.used_of: dict[tuple[str, str], int] = {}  # by tenant and type of device
        self._log: list[str] = []  # nodes on which something changed
        self._places: dict[Shape, FreePlaces] = {}
        self._ready: dict[tuple[str | None, frozenset[str]], tuple[str, ...]] = {}
        self._empty: dict[Shape, int] = {}
        self._alike: dict[str, tuple[bool, bool]] = {}
        self._fastest: dict[str, float] = {}
        self._by_speed: list[str] | None = None
        self.neighbours = NeighbourTable(table or {})
        self._shapes: dict[str, Shape] = {}
        self._alike_shapes: dict[Shape, Shape] = {}
        self._asked_shapes: dict[tuple[object, ...], Shape] = {}  # by the request of a job, in its order
        self._alike_nodes: dict[tuple[str | None, frozenset[str]], list[tuple[str, Mapping[str, float], int]]] = {}
        self.gangs: dict[str, int] = {}  # by tenant, how many sit somewhere
        self._ample: dict[str, tuple[int, dict[str, float]]] = {}  # by type: log length, most on one node
        # nodes that take new workers and have a device free, by type
        self._open = {kind: {name for name in self.ready(kind) if self.nodes[name].devices} for kind in self.types}
        for job in jobs:
            if not job.seats:
                self.seats[job.id] = ()
                self.used.setdefault(job.tenant, 0)
            elif all(map(self.nodes.__contains__, job.seats)):
                self.sit(job, job.seats)
            else:
                self.sit(job, tuple(name for name in job.seats if name in self.nodes))

    def copy(self) -> SeatingPlan:
        """A copy on which changes can be tried and thrown away."""
        other = SeatingPlan.__new__(SeatingPlan)
        other.nodes, other.types, other.warmths, other._serving = self.nodes, self.types, self.warmths, self._serving
        other._ready, other._empty, other._shapes = self._ready, self._empty, self._shapes
        other._alike, other._fastest, other._log, other._places = self._alike, self._fastest, [], {}
        other._by_speed = self._by_speed
        other._alike_nodes, other._alike_shapes, other._ample = self._alike_nodes, self._alike_shapes, {}
        other._asked_shapes = self._asked_shapes
        other._open = {kind: set(names) for kind, names in self._open.items()}
        other.free = dict(self.free)  # the amounts of a node are never changed, but replaced
        other.seats, other.used = dict(self.seats), dict(self.used)
        other.used_of, other.gangs = dict(self.used_of), dict(self.gangs)
        other.neighbours = self.neighbours.copy()
        return other

    def sit(self, job: JobState, seats: tuple[str, ...]) -> None:
        """Give the job these seats on top of those it has."""
        self._count(job.tenant, self._take(job, seats, 1.0), 1)
        self._seat(job, (*self.seats.get(job.id, ()), *seats))

    def leave(self, job: JobState, seats: tuple[str, ...]) -> None:
        """Take these seats from the job; the others keep their order."""
        self._count(job.tenant, self._take(job, seats, -1.0), -1)
        self._seat(job, without(self.seats[job.id], seats))

    def _seat(self, job: JobState, seats: tuple[str, ...]) -> None:
        before = self.seats.get(job.id, ())
        self.neighbours.moves(job, before, seats)
        self.gangs[job.tenant] = self.gangs.get(job.tenant, 0) + bool(seats) - bool(before)
        self.seats[job.id] = seats

    def _count(self, tenant: str, taken: Mapping[str, int], sign: int) -> None:
        self.used[tenant] = self.used.get(tenant, 0) + sign * sum(taken.values())
        for name, many in taken.items():
            key = (tenant, self.nodes[name].device_type)
            self.used_of[key] = self.used_of.get(key, 0) + sign * many

    def _take(self, job: JobState, seats: tuple[str, ...], sign: float) -> Mapping[str, int]:
        """Take (or with -1 return) what these seats need; returns the number of seats by node."""
        need, taken = self.shape(job).need if seats else (), counted(seats)
        for name, many in taken.items():
            free = dict(self.free[name])
            for resource, amount in need:
                left, change = free.get(resource, 0.0), sign * amount
                for _ in range(many):  # one by one, so that returning them restores the exact amounts
                    left -= change
                free[resource] = left
            self.free[name] = free
            self._log.append(name)
            kind = self._serving.get(name)
            if kind is not None and free[DEVICE] >= 1.0 - 1e-9:
                self._open[kind].add(name)
            elif kind is not None:
                self._open[kind].discard(name)
        return taken

    def shape(self, job: JobState) -> Shape:
        """The job's shape; jobs alike share one object."""
        shape = self._shapes.get(job.id)
        if shape is None:
            kind = self.neighbours.kind(job) if self.neighbours.known else ""
            asked = (job.device_type, job.only, job.near, kind, *job.demand.items())
            shape = self._asked_shapes.get(asked)
            if shape is None:
                shape = Shape.of(job, kind)
                shape = self._asked_shapes[asked] = self._alike_shapes.setdefault(shape, shape)
            self._shapes[job.id] = shape
        return shape

    def ready(self, device_type: str | None, only: frozenset[str] = frozenset()) -> tuple[str, ...]:
        """The nodes that take new workers of this device type and residency, by name."""
        key = (device_type, only)
        if key not in self._ready:
            self._ready[key] = tuple(
                name
                for name, node in self.nodes.items()
                if name in self._serving
                and device_type in (None, node.device_type)
                and (not only or not only.isdisjoint(node.places))
            )
        return self._ready[key]

    def kind(self, seats: tuple[str, ...]) -> str | None:
        """The type of device that a gang sits on; None if it sits nowhere."""
        return self.nodes[seats[0]].device_type if seats else None

    def places(self, shape: Shape) -> FreePlaces:
        """Free places for workers of this shape, which names its type of device."""
        found, kind = self._places.get(shape), shape.device_type or ""
        if found is None:
            if self._lacks(shape, kind):
                return NOWHERE
            names = self._open.get(kind, set())
            if shape.only:
                names = names.intersection(self.ready(kind, shape.only))
            slots = {name: shape.slots(self.free[name]) for name in sorted(names)}
            found = FreePlaces(slots, len(self._log), self.warmths)
            self._places[shape] = found
        elif found.seen < len(self._log):
            there = frozenset(self.ready(kind, shape.only)) if shape.only else None
            for name in dict.fromkeys(self._log[found.seen :]):
                if self._serving.get(name) == kind and (there is None or name in there):
                    found.note(name, shape.slots(self.free[name]))
            found.seen = len(self._log)
        return found

    def _lacks(self, shape: Shape, kind: str) -> bool:
        """Whether some resource is short on every node; does not scan all nodes for each shape."""
        as_of, ample = self._ample.get(kind, (-1, {}))
        if as_of != len(self._log):
            ample = {}
            for name in self._open.get(kind, ()):
                for resource, amount in self.free[name].items():
                    if amount > ample.get(resource, 0.0):
                        ample[resource] = amount
            self._ample[kind] = (len(self._log), ample)
        return any(ample.get(resource, 0.0) + 1e-9 < amount for resource, amount in shape.need)

    def plain(self, shape: Shape, wide: bool) -> bool:
        """Whether nodes of its type differ for this job only in their free places."""
        kind = shape.device_type or ""
        if kind not in self._alike:
            nodes = [self.nodes[name] for name in self.ready(kind)]
            alike = len({(round(node.speed, 1), node.asleep) for node in nodes}) <= 1
            self._alike[kind] = (alike, not any(node.path for node in nodes))
        alike, flat = self._alike[kind]
        return alike and not shape.near and not shape.kind and (flat or not wide)

    def fastest_first(self, prefer: str | None) -> list[str]:
        """The types of device by the speed of their fastest, after the preferred one."""
        if self._by_speed is None:
            self._by_speed = sorted(self.types, key=lambda kind: (-like_speed(self.fastest(kind)), kind))
        return sorted(self._by_speed, key=lambda kind: kind != prefer)

    def fastest(self, kind: str) -> float:
        """The speed of the fastest device of this type in service."""
        if kind not in self._fastest:
            self._fastest[kind] = max(self.nodes[name].speed for name in self.ready(kind))
        return self._fastest[kind]

    def kinds(self, shape: Shape) -> tuple[str, ...]:
        """The device types in service that the shape accepts."""
        if shape.device_type is None:
            return self.types
        return (shape.device_type,) if shape.device_type in self.types else ()

    def roomiest(self, shape: Shape) -> tuple[int, str | None]:
        """The most workers of this shape that find a place now on one device type, and that type."""
        best: tuple[int, str | None] = (0, None)
        for kind in self.kinds(shape):
            count = self.places(shape.on(kind)).total if self._open[kind] else 0
            if count > best[0]:
                best = (count, kind)
        return best

    def fits(self, shape: Shape, count: int) -> bool:
        """Whether so many workers find a place now."""
        return any(self._open[kind] and self.places(shape.on(kind)).total >= count for kind in self.kinds(shape))

    @property
    def full(self) -> bool:
        """Whether no device is free at all."""
        return not any(self._open.values())

    def most(self, shape: Shape) -> int:
        """The largest gang of this shape that the nodes in service could hold if they were empty, all of one type."""
        found = self._empty.get(shape)
        if found is None:
            by_type = Counter[str]()
            for kind, capacity, count in self._sorts(shape.device_type, shape.only):
                by_type[kind] += count * shape.slots(capacity)
            found = self._empty[shape] = max(by_type.values(), default=0)
        return found

    def _sorts(self, device_type: str | None, only: frozenset[str]) -> list[tuple[str, Mapping[str, float], int]]:
        """Nodes that take new workers as (type, capacity, number of them): clusters have few sorts of nodes."""
        key = (device_type, only)
        if key not in self._alike_nodes:
            sorts: dict[tuple[object, ...], tuple[str, Mapping[str, float], int]] = {}
            for name in self.ready(device_type, only):
                node = self.nodes[name]
                alike = (node.device_type, *sorted(node.capacity.items()))
                sorts[alike] = (node.device_type, node.capacity, sorts[alike][2] + 1 if alike in sorts else 1)
            self._alike_nodes[key] = list(sorts.values())
        return self._alike_nodes[key]

    def free_devices(self, device_type: str | None = None) -> int:
        return sum(max(0, int(self.free[name].get(DEVICE, 0.0) + 1e-9)) for name in self.ready(device_type))


def like_speed(speed: float) -> float:
    """The speed in steps of a tenth: measured speeds are never quite equal."""
    return round(speed, 1)


def temperature_steps(nodes: Iterable[Node]) -> dict[str, int]:
    """Temperatures in steps: a few degrees should not move a gang. Without a reading a node is average."""
    told = {node.name: node.temperature_c for node in nodes}
    known = [degrees for degrees in told.values() if degrees is not None]
    usual = sum(known) / len(known) if known else 0.0
    return {name: round((usual if degrees is None else degrees) / WARMER_C) for name, degrees in told.items()}


def without(seats: tuple[str, ...], gone: Iterable[str]) -> tuple[str, ...]:
    """The remaining seats; of several on one node the last ones go first."""
    left, remaining = counted(gone), []
    for name in reversed(seats):
        if left.get(name, 0) > 0:
            left[name] -= 1
        else:
            remaining.append(name)
    return tuple(reversed(remaining))
