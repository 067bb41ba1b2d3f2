"""Runs candidates of ``fairlead plan`` on this machine, with emulated network and worker speeds."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fairlead.cli import output
from fairlead.errors import InvalidSpec
from fairlead.home import Home
from fairlead.units import parse_duration

if TYPE_CHECKING:
    from fairlead.planning.cost import Estimate
    from fairlead.planning.profiles import Hardware, Link, ModelProfile
    from fairlead.profiling.plan_trials import Trial

_BITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


@dataclass(frozen=True, slots=True)
class Trials:
    """Inputs of the measured runs, and the network and speeds to emulate."""

    run: str
    params: dict[str, Any]
    steps: int
    model: ModelProfile
    home: Home
    link: str | None
    speeds: str | None

    @property
    def shaped(self) -> bool:
        return self.link is not None

    @property
    def limited(self) -> bool:
        return self.speeds is not None

    @property
    def latency_s(self) -> float:
        """Latency to add to that of the real network."""
        return parse_link(self.link).latency_s if self.link and "," in self.link else 0.0


def parse_link(text: str) -> Link:
    """Parses ``200mbit`` or ``1gbit,1ms``: bandwidth, and optionally a latency."""
    from fairlead.planning.profiles import Link

    speed, comma, delay = text.partition(",")
    unit = next((unit for unit in sorted(_BITS, key=len, reverse=True) if speed.lower().endswith(unit)), "")
    try:
        bits = float(speed[: -len(unit)]) * _BITS[unit]
        latency_s = float(parse_duration(delay)) if comma else 1e-4
    except (KeyError, ValueError):
        bits, latency_s = 0.0, 0.0
    if not (0 < bits < math.inf and 0 <= latency_s < math.inf):
        raise InvalidSpec(f"{text!r} is not a link", field="--link", value=text, fix="write 200mbit or 1gbit,1ms")
    return Link(latency_s, bits / 8)


def run_trials(
    trials: Trials, found: list[Estimate], hardware: Hardware, wanted: str, *, quiet: bool
) -> dict[str, Trial]:
    """Measure the best plans that fit in memory, in alternation, and store the corrections they yield."""
    from fairlead.agent.embedded.emulation import emulated
    from fairlead.planning.cost import fit_correction, plan_kind
    from fairlead.planning.profiles import ALL_KINDS, correction
    from fairlead.planning.topology import Topology
    from fairlead.profiling.plan_trials import run_trials as run_plans
    from fairlead.profiling.profile_cache import record_corrections

    able = [one for one in found if one.fits]
    chosen = able if wanted == "all" else [one for place, one in enumerate(able) if place < int(wanted) or _usual(one)]
    cores = [seat.speed for seat in hardware.seats] if trials.limited else []
    link = hardware.links[-1] if trials.shaped else None
    if not quiet:
        output.note(f"running {trials.steps} steps of {', '.join(one.plan.id for one in chosen)}, in alternation ...")
    with emulated(len(hardware.seats), link.bytes_per_s if link else None, trials.latency_s, cores) as places:
        given = [asdict(place) for place in places] if trials.limited or trials.shaped else []
        ran = run_plans(trials.run, trials.params, [one.plan for one in chosen], trials.steps, places=given)
    seen: list[tuple[str, float, float]] = []
    for one, trial in zip(chosen, ran, strict=True):
        if trial.step_s is not None:
            whole = correction(trials.model, hardware.devices.values(), plan_kind(one.plan))
            slower = fit_correction(trials.model, Topology(hardware), one.plan, trial.step_s) / whole
            seen.append((plan_kind(one.plan), slower, whole / correction(trials.model, [], ALL_KINDS)))
    if busy(os.getloadavg()[0], len(os.sched_getaffinity(0))):
        output.note("the machine is busy with other work: these times correct no predictions")
    else:
        record_corrections(trials.home, trials.model, by_kind(seen))
    return {one.plan.id: trial for one, trial in zip(chosen, ran, strict=True)}


def by_kind(seen: Iterable[tuple[str, float, float]]) -> dict[str, tuple[float, float]]:
    """(kind, slowdown, earlier correction) of all plans, as the median slowdown per kind."""
    from statistics import median

    slower: dict[str, list[float]] = {}
    before: dict[str, float] = {}
    for kind, ratio, known in seen:
        slower.setdefault(kind, []).append(ratio)
        before[kind] = known
    return {kind: (median(ratios), before[kind]) for kind, ratios in slower.items()}


def busy(load: float, cores: int) -> bool:
    """True if the load of other programs makes measured times useless."""
    return load > 2 * cores


def _usual(one: Estimate) -> bool:
    return one.plan.id == "ddp"
