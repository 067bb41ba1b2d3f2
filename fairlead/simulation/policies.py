"""Lists all policies by name, Fairlead's and the published ones; each simulation makes its own instance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fairlead.errors import NotFound
from fairlead.simulation.engine import Policy
from fairlead.simulation.trace import Trace

RESET_S = 1920.0
"""Shortest time between two solutions of Gavel's mechanism, unless the trace's own simulator differs."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A policy for simulations; a policy that is not elastic runs jobs at the size their users asked for."""

    about: str
    make: Callable[[Trace, int], Policy]
    elastic: bool = False


def _ours(trace: Trace, seed: int) -> Policy:
    policy: Policy = _load("fairlead.scheduling.market", "Market")(waits=False)
    return policy


def _load(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def _order(name: str, key: str, **how: Any) -> Callable[[Trace, int], Policy]:
    def make(trace: Trace, seed: int) -> Policy:
        orders = import_module("fairlead.simulation.yardsticks.ordered_policies")
        policy: Policy = orders.OrderedPolicy(name, getattr(orders, key), **how)
        return policy

    return make


def _gavel(
    name: str, allocator: str, *, blind: str | bool = False, strict: bool = False
) -> Callable[[Trace, int], Policy]:
    """Gavel's mechanism with one of its allocations; a blind one ignores device types."""

    def make(trace: Trace, seed: int) -> Policy:
        gavel = import_module("fairlead.simulation.yardsticks.gavel")
        allocate = getattr(gavel, allocator)
        allocate = allocate() if isinstance(allocate, type) else allocate
        if blind:
            allocate = gavel.blind(allocate, blind if isinstance(blind, str) else None)
        mechanism = _load("fairlead.simulation.yardsticks.gavel_mechanism", "Mechanism")
        reset_s = float(trace.settings.get("reset_s", RESET_S))
        policy: Policy = mechanism(name, allocate, reset_s, shuffled=bool(blind), seed=seed, strict=strict)
        return policy

    return make


def _made(module: str, name: str) -> Callable[[Trace, int], Policy]:
    """A policy without parameters."""

    def make(trace: Trace, seed: int) -> Policy:
        policy: Policy = _load(f"fairlead.simulation.yardsticks.{module}", name)()
        return policy

    return make


def _by_type(make: Callable[[Trace, int], Policy]) -> Callable[[Trace, int], Policy]:
    """A policy for clusters of one device type, run separately for each type."""

    def apart(trace: Trace, seed: int) -> Policy:
        policy: Policy = _load("fairlead.simulation.yardsticks.type_pools", "ByType")(make(trace, seed))
        return policy

    return apart


def _tiresias(trace: Trace, seed: int) -> Policy:
    policy: Policy = _load("fairlead.simulation.yardsticks.tiresias", "for_trace")(trace)
    return policy


POLICIES: Mapping[str, Entry] = {
    "fairlead": Entry("ours: bids, prices, whole gangs", _ours, elastic=True),
    "fifo": Entry("first in, first out, without overtaking", _order("FIFO", "arrival", patient=True)),
    "srtf": Entry("shortest remaining time first", _order("SRTF", "remaining")),
    "las": Entry("least attained service first", _order("LAS", "attained")),
    "tiresias": Entry("queues by attained service (NSDI 19)", _by_type(_tiresias)),
    "gavel-maxmin": Entry("max-min fairness over device types (OSDI 20)", _gavel("Gavel", "max_min")),
    "gavel-maxmin-blind": Entry("the same, blind to device types", _gavel("Gavel", "max_min", blind=True)),
    "gavel-ftf": Entry("finish-time fairness over device types (OSDI 20)", _gavel("Gavel FTF", "FinishTimeFairness")),
    "gavel-makespan": Entry("the shortest makespan (OSDI 20)", _gavel("Gavel makespan", "shortest_makespan")),
    "gavel-sum": Entry("the largest sum of speeds (OSDI 20)", _gavel("Gavel sum", "max_sum")),
    "gavel-fifo": Entry("first in, first out, on the fastest type", _gavel("FIFO", "first_come", strict=True)),
    "themis": Entry(
        "finish-time fairness, blind to device types (NSDI 20)", _gavel("Themis", "FinishTimeFairness", blind="v100")
    ),
    "shockwave": Entry("a market over future rounds (NSDI 23)", _made("shockwave", "Shockwave")),
    "sia": Entry("elastic gangs over device types by an integer program (SOSP 23)", _made("sia", "Sia"), elastic=True),
    "elasticflow": Entry(
        "minimum satisfactory shares (ASPLOS 23)", _by_type(_made("elasticflow", "ElasticFlow")), elastic=True
    ),
    "drf": Entry("dominant resource fairness, deadlines within tenants", _made("ordered_policies", "DominantShare")),
    "edf": Entry("earliest deadline first", _by_type(_made("edf", "Edf")), elastic=True),
    "edf-admission": Entry(
        "the same, declining jobs that would be late", _by_type(_made("edf", "admitting")), elastic=True
    ),
}


def entry(name: str) -> Entry:
    """The policy of this name."""
    if name not in POLICIES:
        raise NotFound(f"there is no policy {name!r}", field="--policy", fix=f"choose from {', '.join(POLICIES)}")
    return POLICIES[name]
