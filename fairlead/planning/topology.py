"""Maps a plan onto hardware: the link of each group of workers, and the speed and device of each part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as changed

from fairlead.planning.collectives import slowest_link
from fairlead.planning.plan import Plan
from fairlead.planning.profiles import Device, Hardware, Link

LESS_IS_WORSE = ("efficiency", "memory_bytes", "memory_bytes_per_s", "overlap")
MORE_IS_WORSE = ("launch_s", "step_s", "message_s", "byte_s", "loop_s", "microbatch_s", "gathers")


@dataclass(frozen=True, slots=True)
class Placement:
    """The groups of a plan's workers. ``speeds[stage][replica]`` is the speed of the slowest tensor part.

    ``devices[stage][replica]`` is the weakest device of the parts: equal parts end with the slowest and must all fit.
    """

    speeds: tuple[tuple[float, ...], ...]
    devices: tuple[tuple[Device, ...], ...]
    tensor: Link  # within a tensor group
    data: Link  # between replicas
    inner: Link  # within the inner rings of a hierarchical exchange
    outer: Link  # between them
    stages: tuple[Link, ...]  # between each stage and the next
    wrap_around: Link  # from the last stage back to the first, for several stages per worker
    period_s: float = 0.0  # of CPU quotas

    @property
    def identical(self) -> bool:
        """True if all replicas have the same speeds and devices."""
        return all(len(set(row)) == 1 for row in self.speeds) and all(
            len({device.name for device in row}) == 1 for row in self.devices
        )


def weakest_device(devices: Sequence[Device]) -> Device:
    """The device that equal parts on these devices amount to: the worst in every respect, also in memory."""
    unlike = list({device.name: device for device in devices}.values())
    if len(unlike) == 1:
        return unlike[0]
    dtypes = {dtype for device in unlike for dtype in device.flops_per_s}
    parts = {part for device in unlike for part in device.factors}
    return changed(
        next((device for device in unlike if device.backend == "gloo"), unlike[0]),
        name="+".join(sorted(device.name for device in unlike)),
        flops_per_s={dtype: min(device.flops(dtype) for device in unlike) for dtype in dtypes},
        factors={part: max(device.factors.get(part, 1.0) for device in unlike) for part in parts},
        **{name: min(getattr(device, name) for device in unlike) for name in LESS_IS_WORSE},
        **{name: max(getattr(device, name) for device in unlike) for name in MORE_IS_WORSE},
    )


def slowed(placement: Placement, factor: float) -> Placement:
    """The placement with all workers slower by ``factor``."""
    if factor == 1:
        return placement
    return replace(placement, speeds=tuple(tuple(speed / factor for speed in row) for row in placement.speeds))


class Topology:
    """Hardware with a cache of placements: thousands of plans share a few shapes."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware = hardware
        self._places: dict[tuple[object, ...], Placement] = {}
        self.workers_equal = len({(seat.device, seat.speed) for seat in hardware.seats}) == 1

    def placement(self, plan: Plan) -> Placement:
        key = (plan.data, plan.tensor, plan.pipeline, plan.group, plan.members)
        if key not in self._places:
            self._places[key] = self._build_placement(plan)
        return self._places[key]

    def _build_placement(self, plan: Plan) -> Placement:
        hardware = self.hardware
        stages, replicas, parts = range(plan.pipeline), range(plan.data), range(plan.tensor)
        grid = [[[plan.worker(s, r, t) for t in parts] for r in replicas] for s in stages]
        busy = Counter(hardware.seats[worker].node for row in grid for cell in row for worker in cell)
        speeds = tuple(
            tuple(min(hardware.speed(w, busy[hardware.seats[w].node]) for w in cell) for cell in row) for row in grid
        )
        devices = tuple(tuple(weakest_device([hardware.device(w) for w in cell]) for cell in row) for row in grid)
        across = [[grid[s][r][t] for r in replicas] for s in stages for t in parts]
        rings = [group[at : at + plan.group] for group in across for at in range(0, plan.data, plan.group)]
        leaders = [group[:: plan.group] for group in across]
        neighbours = [
            [[grid[s][r][t], grid[(s + 1) % plan.pipeline][r][t]] for r in replicas for t in parts] for s in stages
        ]
        between = tuple(slowest_link(hardware, pairs) for pairs in neighbours)
        return Placement(
            speeds=speeds, devices=devices, tensor=slowest_link(hardware, [cell for row in grid for cell in row]),
            data=slowest_link(hardware, across), inner=slowest_link(hardware, rings),
            outer=slowest_link(hardware, leaders), stages=between[:-1], wrap_around=between[-1],
            period_s=hardware.period_s,
        )  # fmt: skip
