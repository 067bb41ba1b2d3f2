"""Computes speed curves for the scheduler: the best plan and its speed for each possible gang of a job."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from fairlead.planning.cost import Estimate, estimate, plan_kind
from fairlead.planning.plan import Plan
from fairlead.planning.plan_candidates import SMALL_GANG
from fairlead.planning.plan_choice import choose_plan
from fairlead.planning.profiles import Device, Hardware, Link, ModelProfile, Seat
from fairlead.planning.search import best_plan, search
from fairlead.planning.search_budget import CURVE_CANDIDATES, Budget
from fairlead.planning.topology import Topology


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A gang (devices by type, no further apart than ``level``) with its best plan and speed."""

    devices: tuple[tuple[str, int], ...]
    level: int
    plan: Plan | None  # None: the model does not fit
    samples_per_s: float  # as `useful_samples_per_s` counts them


def speed_curve(
    model: ModelProfile, devices: Mapping[str, Device], links: Sequence[Link], sizes: Sequence[int], per_node: int = 8,
    speeds: Mapping[str, float] | None = None, *, wanted: str = "auto", banned: Collection[str] = (),
) -> list[CurvePoint]:  # fmt: skip
    """One point for each device type, gang size and topology level.

    ``speeds``: the part of a device that a worker gets, by type, such as half a core. ``wanted``: the requested plan
    family; ``banned``: kinds of plans to leave out.
    """
    budget = Budget(CURVE_CANDIDATES)
    found: list[CurvePoint] = []
    for kind_of in sorted(devices):
        device, pace = devices[kind_of], 1.0 if speeds is None else speeds.get(kind_of, 1.0)
        near: dict[int, Estimate] = {}
        for level in range(len(links)):
            gangs = {size: equal_gang(device, links, size, level, per_node, pace) for size in _sizes_to_search(sizes)}
            if wanted == "auto":
                best_of = _best_by_size(model, gangs, banned, near, budget)
            else:
                best_of = {
                    size: choose_plan(model, gangs[size], wanted=wanted, banned=banned, budget=budget).estimate
                    for size in sizes
                }
            near = near or best_of
            found += [_curve_point(kind_of, size, level, best_of.get(size)) for size in sorted(sizes)]
    return found


def _sizes_to_search(sizes: Sequence[int]) -> list[int]:
    """The requested sizes and smaller ones: a gang may leave workers idle."""
    powers = {2**power for power in range(max(sizes).bit_length())}
    return sorted({*sizes, *(size for size in range(1, min(SMALL_GANG, max(sizes)) + 1)), *powers} - {0})


def _best_by_size(
    model: ModelProfile,
    gangs: Mapping[int, Hardware],
    banned: Collection[str],
    near: Mapping[int, Estimate],
    budget: Budget,
) -> dict[int, Estimate]:
    """The best plan of each gang. Workers are equal, so it uses all of them or was found for a smaller gang.

    ``near`` are the plans of gangs on one node, which the part of a wider gang on one node can also run.
    """
    swiftest: Estimate | None = None
    found: dict[int, Estimate] = {}
    for size, hardware in sorted(gangs.items()):
        room = sum(seat.node == hardware.seats[0].node for seat in hardware.seats)
        tried = [near[at] for at in (max((known for known in near if known <= room), default=0),) if at]
        if size in near and near[size].plan.workers_used == size:  # the best plan on one node is rarely bad on two
            tried.append(estimate(model, Topology(hardware), near[size].plan))
        swiftest = _fastest_fitting(swiftest, tried)
        limit_s = inf if swiftest is None else swiftest.adjusted_step_s
        whole = search(
            model, hardware, 1, on_paper=False, allow_idle=False, only=lambda shape: plan_kind(shape) not in banned,
            limit_s=limit_s, budget=budget,
        )  # fmt: skip
        swiftest = _fastest_fitting(swiftest, whole)
        if swiftest is not None:
            found[size] = swiftest
    return found


def _fastest_fitting(known: Estimate | None, tried: Sequence[Estimate]) -> Estimate | None:
    """The fastest estimate that fits; the known one wins ties."""
    every = [one for one in (known, *tried) if one is not None and one.fits]
    return min(every, key=lambda one: one.adjusted_step_s, default=None)


def _curve_point(kind_of: str, size: int, level: int, one: Estimate | None) -> CurvePoint:
    if one is None or not one.fits:
        return CurvePoint(((kind_of, size),), level, None, 0.0)
    return CurvePoint(((kind_of, size),), level, one.plan, useful_samples_per_s(one))


def useful_samples_per_s(one: Estimate) -> float:
    """Samples per second, reduced for plans that need more steps to the same accuracy (U3)."""
    return one.samples_per_s / one.steps_factor


def equal_gang(
    device: Device, links: Sequence[Link], size: int, level: int, per_node: int, speed: float = 1.0
) -> Hardware:
    """A gang of equal workers that crosses ``level``: on one node, or on full nodes of ``per_node`` devices."""
    room = size if level == 0 else min(per_node, max(1, size // 2))
    seats = tuple(Seat(device.name, f"n{at // room}", speed) for at in range(size))
    near = links[0]
    return Hardware(devices={device.name: device}, seats=seats, links=(near, links[level]) if level else (near,))


def mixed_gang_point(model: ModelProfile, hardware: Hardware) -> CurvePoint:
    """The curve point of one concrete gang, also of mixed devices."""
    counts: dict[str, int] = {}
    for seat in hardware.seats:
        counts[seat.device] = counts.get(seat.device, 0) + 1
    one = best_plan(model, hardware, on_paper=False)
    level = hardware.level(range(len(hardware.seats)))
    return CurvePoint(
        tuple(sorted(counts.items())), level, one.plan if one else None, useful_samples_per_s(one) if one else 0.0
    )
