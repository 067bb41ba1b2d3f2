"""The seating plan of one round: what is free on each node if the decisions so far are carried out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fairlead.cluster import DEVICE, Node, NodeState
from fairlead.scheduling.state import JobState


class Shape(NamedTuple):
    """What one worker of a job needs; jobs of one shape fit, or do not fit, in the same places."""

    device_type: str | None
    need: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, job: JobState) -> Shape:
        positive = ((name, float(amount)) for name, amount in job.demand.items() if amount > 0 and name != DEVICE)
        return cls(job.device_type, (*sorted(positive), (DEVICE, 1.0)))

    def slots(self, amounts: Mapping[str, float]) -> int:
        """How many such workers fit into these amounts."""
        return max(0, min(int((amounts.get(name, 0.0) + 1e-9) // amount) for name, amount in self.need))


class Board:
    """Free amounts per node, seats per job and devices per tenant. Lives for one round, in memory only."""

    def __init__(self, nodes: Iterable[Node], jobs: Iterable[JobState]) -> None:
        present = [node for node in nodes if node.state is not NodeState.LOST]
        self.nodes = {node.name: node for node in sorted(present, key=lambda node: node.name)}
        self.free: dict[str, dict[str, float]] = {name: dict(node.capacity) for name, node in self.nodes.items()}
        self.seats: dict[str, tuple[str, ...]] = {}
        self.used: dict[str, int] = {}
        self.held: dict[str, tuple[str, ...]] = {}  # free seats kept for a waiting job, by job
        self._ready: dict[str | None, tuple[str, ...]] = {}
        self._empty: dict[Shape, int] = {}
        self._shapes: dict[str, Shape] = {}
        for job in jobs:
            self.sit(job, tuple(name for name in job.seats if name in self.nodes))

    def copy(self) -> Board:
        """A board on which something can be tried and thrown away."""
        other = Board.__new__(Board)
        other.nodes, other._ready, other._empty, other._shapes = self.nodes, self._ready, self._empty, self._shapes
        other.free = {name: dict(amounts) for name, amounts in self.free.items()}
        other.seats, other.used, other.held = dict(self.seats), dict(self.used), dict(self.held)
        return other

    def sit(self, job: JobState, seats: tuple[str, ...]) -> None:
        """Give the job these seats on top of those it has."""
        self._take(job, seats, 1.0)
        self.seats[job.id] = (*self.seats.get(job.id, ()), *seats)
        self.used[job.tenant] = self.used.get(job.tenant, 0) + len(seats)

    def leave(self, job: JobState, seats: tuple[str, ...]) -> None:
        """Take these seats from the job; the others keep their order."""
        self._take(job, seats, -1.0)
        self.seats[job.id] = without(self.seats[job.id], seats)
        self.used[job.tenant] -= len(seats)

    def hold(self, job: JobState, seats: tuple[str, ...]) -> None:
        """Keep free seats for a waiting job: nobody else gets them this round."""
        self._take(job, seats, 1.0)
        self.held[job.id] = (*self.held.get(job.id, ()), *seats)

    def let_go(self, job: JobState) -> None:
        """Give up what is held for the job."""
        self._take(job, self.held.pop(job.id, ()), -1.0)

    def _take(self, job: JobState, seats: tuple[str, ...], sign: float) -> None:
        need = self.shape(job).need if seats else ()
        for name in seats:
            free = self.free[name]
            for resource, amount in need:
                free[resource] = free.get(resource, 0.0) - sign * amount

    def shape(self, job: JobState) -> Shape:
        """The job's shape, worked out once a round."""
        shape = self._shapes.get(job.id)
        if shape is None:
            shape = self._shapes[job.id] = Shape.of(job)
        return shape

    def ready(self, device_type: str | None) -> tuple[str, ...]:
        """The nodes that take new workers of this device type, by name."""
        if device_type not in self._ready:
            self._ready[device_type] = tuple(
                name
                for name, node in self.nodes.items()
                if node.schedulable and device_type in (None, node.device_type)
            )
        return self._ready[device_type]

    def room(self, shape: Shape) -> dict[str, int]:
        """Free places for workers of this shape, by node; full nodes are left out."""
        slots = {name: shape.slots(self.free[name]) for name in self.ready(shape.device_type)}
        return {name: count for name, count in slots.items() if count > 0}

    def most(self, shape: Shape) -> int:
        """How many workers of this shape the nodes in service could hold if they were empty."""
        if shape not in self._empty:
            names = self.ready(shape.device_type)
            self._empty[shape] = sum(shape.slots(self.nodes[name].capacity) for name in names)
        return self._empty[shape]

    def free_devices(self, device_type: str | None = None) -> int:
        return sum(max(0, int(self.free[name].get(DEVICE, 0.0) + 1e-9)) for name in self.ready(device_type))

    def capacity(self) -> int:
        """Devices that can be shared out: all in service, and those in use on cordoned and outdated nodes."""
        ready = sum(node.devices for node in self.nodes.values() if node.schedulable)
        sitting = Counter(name for seats in self.seats.values() for name in seats)
        kept = {name for name, node in self.nodes.items() if node.state is NodeState.CORDONED or node.outdated}
        return ready + sum(n for name, n in sitting.items() if name in kept)


def without(seats: tuple[str, ...], gone: Iterable[str]) -> tuple[str, ...]:
    """The seats that remain; of several on one node the last ones go first."""
    left, remaining = Counter(gone), []
    for name in reversed(seats):
        if left[name] > 0:
            left[name] -= 1
        else:
            remaining.append(name)
    return tuple(reversed(remaining))
