"""Speed curves for the scheduler: the best plan and its speed for each gang that a job could be given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.planning.cost import Estimate
from fairlead.planning.plan import Plan
from fairlead.planning.profiles import Device, Hardware, Link, ModelProfile, Seat
from fairlead.planning.search import best


@dataclass(frozen=True, slots=True)
class Point:
    """A gang: so many devices of each type, no further apart than ``level``; what it would do."""

    devices: tuple[tuple[str, int], ...]
    level: int
    plan: Plan | None  # None: the model does not fit
    samples_per_s: float


def speed_curve(
    model: ModelProfile, devices: Mapping[str, Device], links: Sequence[Link], sizes: Sequence[int], per_node: int = 8,
    speeds: Mapping[str, float] | None = None,
) -> list[Point]:  # fmt: skip
    """For each type and size, and each level that its gang may cross. More devices are never slower: some may rest.

    ``speeds``: what workers get of the devices of a type, such as half a core.
    """
    found: list[Point] = []
    for kind in sorted(devices):
        for level in range(len(links)):
            swiftest: Estimate | None = None
            for size in sorted(sizes):
                pace = 1.0 if speeds is None else speeds.get(kind, 1.0)
                one = best(model, gang(devices[kind], links, size, level, per_node, pace), on_paper=False)
                if one is not None and (swiftest is None or one.worth_s < swiftest.worth_s):
                    swiftest = one
                plan, speed = (None, 0.0) if swiftest is None else (swiftest.plan, swiftest.samples_per_s)
                found.append(Point(((kind, size),), level, plan, speed))
    return found


def gang(
    device: Device, links: Sequence[Link], size: int, level: int, per_node: int, speed: float = 1.0
) -> Hardware:
    """Equal workers that cross no wider level than this: on one node, or full nodes of so many devices."""
    room = size if level == 0 else min(per_node, max(1, size // 2))
    seats = tuple(Seat(device.name, f"n{at // room}", speed) for at in range(size))
    near = links[0]
    return Hardware(devices={device.name: device}, seats=seats, links=(near, links[level]) if level else (near,))


def mixed(model: ModelProfile, hardware: Hardware) -> Point:
    """Of one very gang, of whatever devices it consists."""
    counts: dict[str, int] = {}
    for seat in hardware.seats:
        counts[seat.device] = counts.get(seat.device, 0) + 1
    one = best(model, hardware, on_paper=False)
    level = hardware.level(range(len(hardware.seats)))
    return Point(tuple(sorted(counts.items())), level, one.plan if one else None, one.samples_per_s if one else 0.0)
