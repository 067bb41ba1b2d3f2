"""Checks whether workers fit on a node: devices, cores and memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from fairlead.cluster import DEVICE, Resources, add, fits, subtract

_PARTS_TOGETHER = 0.97  # of a node's memory; sandboxes take the rest


class NoRoom(Exception):
    """Devices, cores or memory are taken; nothing was reserved."""


class Holder(Protocol):
    """A worker's device and resources, whether it was started or not."""

    @property
    def device(self) -> int: ...

    @property
    def demand(self) -> Resources: ...


def full_demand(demand: Resources, capacity: Resources) -> dict[str, float]:
    """The resources of one worker; the default for cores is its device's part of the node."""
    part = capacity.get("cpu", 0.0) / max(1.0, capacity.get(DEVICE, 1.0))
    return {"cpu": part, **demand, DEVICE: 1.0}


def memory_limit(asked: int | None, capacity: Resources) -> int | None:
    """A worker's memory limit: what it asked for, or its device's part of the node.

    The part is only a limit, not a demand: a worker may still be placed beside one that asked for more than its part.
    None on a node of one device, whose own size limits it. Without the limit, many small processes of one tenant would
    fill the node, and the OOM killer would end the largest process, which is a neighbour's.
    """
    devices = int(capacity.get(DEVICE, 1.0))
    if asked is not None or devices < 2 or "memory" not in capacity:
        return asked
    return int(capacity["memory"] * _PARTS_TOGETHER / devices)


def has_room(capacity: Resources, held: Iterable[Holder], device: int, demand: Resources) -> bool:
    """True when a worker with this demand fits on the device beside these."""
    try:
        check_room(capacity, held, {"": device}, demand)
    except NoRoom:
        return False
    return True


def check_room(capacity: Resources, held: Iterable[Holder], wanted: Mapping[str, int], demand: Resources) -> None:
    """Raise :class:`NoRoom` unless all wanted workers (id -> device) fit beside ``held``."""
    taken = dict(capacity)
    devices = set()
    for holder in held:
        taken = subtract(taken, holder.demand)
        devices.add(holder.device)
    total: dict[str, float] = {}
    for worker, device in wanted.items():
        if not 0 <= device < int(capacity.get(DEVICE, 0)):
            raise NoRoom(f"{worker}: no device {device} on this node")
        if device in devices:
            raise NoRoom(f"{worker}: device {device} is taken")
        devices.add(device)
        total = add(total, full_demand(demand, capacity))
    if not fits(total, taken):
        short = ", ".join(name for name, amount in total.items() if amount > taken.get(name, 0.0) + 1e-9)
        raise NoRoom(f"not enough {short}")


def cards_of(device_type: str, device: int, outer: Mapping[str, str]) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES for a worker on a GPU node, so that it sees its own card only; empty on cpu nodes.

    Numbers the cards among those that the node itself may see.
    """
    if device_type == "cpu":
        return {}
    known = [card for card in outer.get("CUDA_VISIBLE_DEVICES", "").split(",") if card]
    return {"CUDA_VISIBLE_DEVICES": known[device] if device < len(known) else str(device)}
