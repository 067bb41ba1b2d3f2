"""Who holds which device of a node, and whether there is room for more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from fairlead.cluster import DEVICE, Resources, add, fits, subtract


class NoRoom(Exception):
    """The devices, cores or memory asked for are taken; nothing was reserved."""


class Holder(Protocol):
    """What a worker holds, whether it has been started or not."""

    @property
    def device(self) -> int: ...

    @property
    def demand(self) -> Resources: ...


def full_demand(demand: Resources, capacity: Resources) -> dict[str, float]:
    """What one worker takes; cores that were not asked for are its device's part of the node."""
    part = capacity.get("cpu", 0.0) / max(1.0, capacity.get(DEVICE, 1.0))
    return {"cpu": part, **demand, DEVICE: 1.0}


def check_room(capacity: Resources, held: Iterable[Holder], wanted: Mapping[str, int], demand: Resources) -> None:
    """Raise :class:`NoRoom` unless all wanted workers (id -> device) fit beside those that are there."""
    taken = dict(capacity)
    devices = set()
    for holder in held:
        taken = subtract(taken, holder.demand)
        devices.add(holder.device)
    total: dict[str, float] = {}
    for worker, device in wanted.items():
        if not 0 <= device < int(capacity.get(DEVICE, 0)):
            raise NoRoom(f"{worker}: there is no device {device}")
        if device in devices:
            raise NoRoom(f"{worker}: device {device} is taken")
        devices.add(device)
        total = add(total, full_demand(demand, capacity))
    if not fits(total, taken):
        short = ", ".join(name for name, amount in total.items() if amount > taken.get(name, 0.0) + 1e-9)
        raise NoRoom(f"not enough {short}")
