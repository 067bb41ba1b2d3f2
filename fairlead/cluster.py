"""What exists: resources, nodes with devices and topology, and who sits where."""

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
    CORDONED = "cordoned"  # keeps what runs, takes nothing new
    DRAINING = "draining"  # what runs moves away
    LOST = "lost"  # its processes are gone or fenced


@dataclass(frozen=True, slots=True)
class Node:
    """One machine (or virtual node) as the scheduler sees it."""

    name: str
    capacity: Resources  # totals: {"cpu": 0.5, "memory": 3e9, "device": 1}
    device_type: str = "cpu"
    speed: float = 1.0  # of one device, relative to the fastest device of the cluster
    topology: tuple[str, ...] = ()  # from the widest level to the narrowest: zone, rack, host
    state: NodeState = NodeState.READY
    outdated: bool = False  # run by another version: keeps what runs, takes nothing new, is renewed when empty
    labels: frozenset[str] = frozenset()  # what else it is known by: a country, a licence, a data set it holds
    numa: tuple[int, ...] = ()  # devices of each of its NUMA domains, in the order of their indices; empty: one domain
    asleep: bool = False  # saves power; whoever is seated on it waits until it is awake
    wake_s: float = 0.0  # how long that takes
    temperature_c: float | None = None
    watts: tuple[float, float] | None = None  # of one device, idle and busy; None: as its type usually draws
    heats: tuple[float, float, float] | None = None  # simulated: degrees without power, at full, and time constant in s
    address: str = "127.0.0.1"  # at which workers on other nodes reach those on this one

    @property
    def places(self) -> frozenset[str]:
        """All names that a job may mean it by: its own, those of its zone and rack, its labels."""
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

    @property
    def world_size(self) -> int:
        return len(self.members)


def add(left: Resources, right: Resources) -> dict[str, float]:
    """Sum by name."""
    total = dict(left)
    for name, amount in right.items():
        total[name] = total.get(name, 0.0) + amount
    return total


def subtract(left: Resources, right: Resources) -> dict[str, float]:
    """Difference by name; may go negative, which callers check with :func:`fits`."""
    return add(left, {name: -amount for name, amount in right.items()})


def scaled(resources: Resources, times: float) -> dict[str, float]:
    return {name: amount * times for name, amount in resources.items()}


def fits(demand: Resources, free: Resources) -> bool:
    """Whether the demand can be met from what is free (with room for rounding, never for a whole unit)."""
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
    """How many seats there are on each node, by name or number; a ``Counter`` takes several times as long to make."""
    found: dict[Place, int] = {}
    for name in seats:
        found[name] = found.get(name, 0) + 1
    return found


def same_seats(left: Iterable[str], right: Iterable[str]) -> bool:
    """Whether two placements by node name are the same multiset of nodes."""
    return sorted(left) == sorted(right)


def level_between(nodes: Iterable[Node]) -> int:
    """How far apart they are: 0 for one node, 1 for neighbours in the narrowest domain, one more for each wider one."""
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
    """So many of a node's free devices, in as few NUMA domains as possible: the fullest domain that takes all."""
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
