"""Describes the cluster: resources, nodes with devices and topology, gangs and their placement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

Resources = Mapping[str, float]
"""Amounts by name: ``cpu`` in cores, ``memory`` in bytes, ``device`` in worker slots, ``gpu`` in cards, ..."""

Place = TypeVar("Place", str, int)

DEVICE = "device"
"""The resource every worker takes exactly one of: a worker slot, whatever its type."""


class NodeState(StrEnum):
    READY = "ready"
    CORDONED = "cordoned"  # keeps its workers, takes no new ones
    DRAINING = "draining"  # its workers move away
    LOST = "lost"  # its processes have ended or are fenced


@dataclass(frozen=True, slots=True)
class Node:
    """One machine (or virtual node) as the scheduler sees it."""

    name: str
    capacity: Resources  # totals: {"cpu": 0.5, "memory": 3e9, "device": 1}
    device_type: str = "cpu"
    speed: float = 1.0  # of one device, relative to the fastest device of the cluster
    topology: tuple[str, ...] = ()  # from the widest level to the narrowest: zone, rack, host
    state: NodeState = NodeState.READY
    outdated: bool = False  # of another version: keeps its workers, takes no new ones, is updated once empty
    labels: frozenset[str] = frozenset()  # further names: a country, a licence, a data set that it holds
    numa: tuple[int, ...] = ()  # devices of each of its NUMA domains, in the order of their indices; empty: one domain
    asleep: bool = False  # saves power; a gang placed on it waits until it is awake
    wake_s: float = 0.0  # seconds to wake
    temperature_c: float | None = None
    watts: tuple[float, float] | None = None  # of one device, idle and busy; None: as usual for its type
    heats: tuple[float, float, float] | None = None  # simulated: degrees without power, at full, and time constant in s
    address: str = "127.0.0.1"  # at which workers on other nodes reach those on this one

    @property
    def places(self) -> frozenset[str]:
        """All names by which a job may refer to it: its own, its zone and rack, its labels."""
        return self.labels.union(self.topology, (self.name,))

    @property
    def path(self) -> tuple[str, ...]:
        """The domains around it, from the widest to the narrowest, without itself."""
        return self.topology[:-1] if self.topology and self.topology[-1] == self.name else self.topology

    @property
    def schedulable(self) -> bool:
        return self.state is NodeState.READY and not self.outdated

    @property
    def devices(self) -> int:
        return int(self.capacity.get(DEVICE, 0))


@dataclass(frozen=True, slots=True)
class Member:
    """One worker's place in one generation of a gang. The worker may outlive the generation."""

    worker: str  # unique within the job and never used twice: "w0", "w1", ...
    rank: int
    node: str
    device: int  # index of the device on the node


Placement = tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Gang:
    """All workers of one generation of one job: it starts whole or not at all."""

    job: str
    tenant: str
    generation: int
    members: Placement
    demand: Resources = field(default_factory=dict)  # per worker, on top of its device

    @property
    def nodes(self) -> dict[str, str]:
        """The node of each worker."""
        return {member.worker: member.node for member in self.members}


def add(left: Resources, right: Resources) -> dict[str, float]:
    """Sum by resource."""
    total = dict(left)
    for name, amount in right.items():
        total[name] = total.get(name, 0.0) + amount
    return total


def subtract(left: Resources, right: Resources) -> dict[str, float]:
    """Difference by resource; may be negative, which callers check with :func:`fits`."""
    return add(left, {name: -amount for name, amount in right.items()})


def scaled(resources: Resources, times: float) -> dict[str, float]:
    return {name: amount * times for name, amount in resources.items()}


def fits(demand: Resources, free: Resources) -> bool:
    """Whether the free amounts meet the demand, with a tolerance for rounding."""
    return all(amount <= free.get(name, 0.0) + 1e-9 for name, amount in demand.items())


def total(capacities: Iterable[Resources]) -> dict[str, float]:
    result: dict[str, float] = {}
    for capacity in capacities:
        result = add(result, capacity)
    return result


def nodes_of(placement: Placement) -> tuple[str, ...]:
    """The node of each member, in rank order."""
    return tuple(member.node for member in sorted(placement, key=lambda member: member.rank))


def counted(seats: Iterable[Place]) -> dict[Place, int]:
    """Number of seats on each node, by name or index; several times as fast as a ``Counter``."""
    found: dict[Place, int] = {}
    for name in seats:
        found[name] = found.get(name, 0) + 1
    return found


def same_seats(left: Iterable[str], right: Iterable[str]) -> bool:
    """Whether two placements by node name are the same multiset of nodes."""
    return sorted(left) == sorted(right)


def level_between(nodes: Iterable[Node]) -> int:
    """Topology level that spans these nodes: 0 for one node, 1 for the narrowest domain, then the wider ones."""
    paths = {node.name: node.path for node in nodes}
    if len(paths) <= 1:
        return 0
    depth = max(len(path) for path in paths.values())
    common = 0
    for steps in zip(*paths.values(), strict=False):
        if len(set(steps)) > 1:
            break
        common += 1
    return 1 + depth - common


def nearby_devices(free: Iterable[int], numa: tuple[int, ...], count: int) -> list[int]:
    """Choose ``count`` of a node's free devices in few NUMA domains: the fullest domain that takes all, if any."""
    left = sorted(free)
    chosen: list[int] = []
    while len(chosen) < count and left:
        ends, end = [], 0
        for size in numa or (max(left) + 1,):
            end += size
            ends.append(end)
        domains: dict[int, list[int]] = {}
        for device in left:
            domains.setdefault(sum(device >= end for end in ends), []).append(device)
        wanted = count - len(chosen)
        whole = [found for found in domains.values() if len(found) >= wanted]
        best = min(whole, key=len) if whole else max(domains.values(), key=len)
        chosen += best[:wanted]
        left = [device for device in left if device not in chosen]
    return chosen
