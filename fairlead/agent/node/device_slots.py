"""Who holds which device of a node, and whether there is room for more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from fairlead.cluster import DEVICE, Resources, add, fits, subtract

_PARTS_TOGETHER = 0.97  # of a node's memory: sandboxes take a little of it, too


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


def memory_limit(asked: int | None, capacity: Resources) -> int | None:
    """What a worker may use at most. Who asked for nothing gets its device's part of the node, as with cores.

    Only as a limit, not as a demand: it is placed beside whoever asked for more than a part. None where it has the node
    for itself, whose own size binds. Otherwise many small processes of one tenant would fill the node, and the kernel
    would make room by ending the largest of it, which is a neighbour's.
    """
    devices = int(capacity.get(DEVICE, 1.0))
    if asked is not None or devices < 2 or "memory" not in capacity:
        return asked
    return int(capacity["memory"] * _PARTS_TOGETHER / devices)


def has_room(capacity: Resources, held: Iterable[Holder], device: int, demand: Resources) -> bool:
    """Whether a worker could be at work on this device beside these."""
    try:
        check_room(capacity, held, {"": device}, demand)
    except NoRoom:
        return False
    return True


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


def cards_of(device_type: str, device: int, outer: Mapping[str, str]) -> dict[str, str]:
    """The variable by which a worker on a node of cards sees its own card only, so that two never share the first.

    The node's own cards are those that it sees itself, if somebody has said which; nodes of cores are left as they are.
    """
    if device_type == "cpu":
        return {}
    known = [card for card in outer.get("CUDA_VISIBLE_DEVICES", "").split(",") if card]
    return {"CUDA_VISIBLE_DEVICES": known[device] if device < len(known) else str(device)}
