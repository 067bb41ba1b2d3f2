"""Describes the devices of a gang to the planner: as measured, or with the usual figures of their type."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from fairlead.cluster import Node, Resources
from fairlead.errors import InvalidSpec
from fairlead.planning.profiles import Device, Hardware, Link, Seat
from fairlead.profiling.device_types import hardware_of, known_device, known_links
from fairlead.profiling.profile_cache import QUOTA_PERIOD_S, local_device

OWN_BYTES = 350e6
"""Memory of a worker before it has a model: Python and torch."""

LEAST_BYTES = 64e6


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of the machine that all nodes are parts of, if they are."""

    measured: Mapping[str, Any] | None = None  # by ``fairlead profile``
    shared: bool = True  # all nodes are parts of one machine: no link between them is slower than another

    @property
    def measured_here(self) -> bool:
        """True if the measurement holds for the nodes: not if they are other machines."""
        return self.measured is not None and self.shared

    @property
    def fingerprint(self) -> str:
        """Text that changes whenever the machine is measured again."""
        return json.dumps([self.shared, self.measured], sort_keys=True, default=str)


def gang_hardware(seats: Sequence[Node], demand: Resources, machine: Machine) -> Hardware | None:
    """The hardware of a gang, given the node of each worker; None if a device type is unknown."""
    try:
        devices = _devices(seats, demand, machine)
        links = _links(seats, machine)
    except InvalidSpec:
        return None
    places = tuple(Seat(node.device_type, node.name, speed_of(node, demand), node.path) for node in seats)
    rationed = any(seat.device == "cpu" and seat.speed < 1 for seat in places)
    period_s = QUOTA_PERIOD_S if rationed else 0.0
    return Hardware(devices=devices, seats=places, links=links, period_s=period_s) if places else None


@dataclass(frozen=True, slots=True)
class HardwareByType:
    """The hardware of gangs on one type of device each, for speed curves."""

    devices: Mapping[str, Device]
    links: tuple[Link, ...]
    speeds: Mapping[str, float]
    per_node: int
    count: int  # of all devices


def hardware_by_type(nodes: Iterable[Node], demand: Resources, machine: Machine) -> HardwareByType | None:
    """The hardware of the nodes in service; None if there are none, or none of a known type."""
    there = [node for node in nodes if node.schedulable and node.devices]
    try:
        devices = _devices(there, demand, machine)
        links = _links(there, machine)
    except InvalidSpec:
        return None
    if not there:
        return None
    by_type: dict[str, list[float]] = {}
    for node in there:
        by_type.setdefault(node.device_type, []).append(speed_of(node, demand))
    speeds = {name: sum(each) / len(each) for name, each in by_type.items()}
    return HardwareByType(devices, links, speeds, max(n.devices for n in there), sum(n.devices for n in there))


def speed_of(node: Node, demand: Resources) -> float:
    """The speed of a worker there, where 1 is a whole device of its type, or one core of a CPU."""
    if node.device_type != "cpu":
        return node.speed
    cores = demand.get("cpu") or node.capacity.get("cpu", 1.0) / max(1, node.devices)
    return max(0.01, float(cores if cores < 1 else int(cores + 1e-9)))  # more than one are used as whole threads


def _devices(nodes: Sequence[Node], demand: Resources, machine: Machine) -> dict[str, Device]:
    found: dict[str, Device] = {}
    for node in nodes:
        kind = node.device_type
        if kind not in found:
            here = kind == "cpu" and machine.measured_here
            found[kind] = local_device(machine.measured or {}, 1) if here else known_device(kind)
            found[kind] = replace(found[kind], memory_bytes=_memory(node, demand, found[kind]))
        else:
            least = min(found[kind].memory_bytes, _memory(node, demand, found[kind]))
            found[kind] = replace(found[kind], memory_bytes=least)
    return found


def _memory(node: Node, demand: Resources, device: Device) -> float:
    """Memory of one worker: a card's own, or what the worker was granted, or its share of the node."""
    if node.device_type != "cpu":
        return device.memory_bytes
    given = demand.get("memory") or node.capacity.get("memory", device.memory_bytes) / max(1, node.devices)
    return max(LEAST_BYTES, float(given) - OWN_BYTES)


def _links(nodes: Sequence[Node], machine: Machine) -> tuple[Link, ...]:
    if not machine.shared:
        return hardware_of(nodes).links if nodes else ()
    if machine.measured is not None:
        told = machine.measured["links"]["gloo"]
        near = Link(float(told["latency_s"]), float(told["bytes_per_s"]))
    else:
        near = known_links("cpu")[0]
    return near, near
