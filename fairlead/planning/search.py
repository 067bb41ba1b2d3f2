"""Searches the best plans: completes each shape with its best cuts and shares, and ranks by time to accuracy (U3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from math import inf

from msgspec.structs import replace as changed

from fairlead.planning.batch_shares import balanced_batch_counts
from fairlead.planning.collectives import sum_wire_s
from fairlead.planning.cost import Estimate, estimate, fill_fraction, plan_kind, schedule_factor, steps_factor
from fairlead.planning.layers import FORWARD, layer_sums
from fairlead.planning.plan import Plan, ddp_plan
from fairlead.planning.plan_candidates import Shape, shapes
from fairlead.planning.profiles import Hardware, Link, ModelProfile, correction
from fairlead.planning.replica_sync import optimizer_s
from fairlead.planning.search_budget import SHAPES, Budget
from fairlead.planning.stage_assignment import assign_stages
from fairlead.planning.topology import Topology

RANKED = 12
"""Number of ranked candidates; a shape whose lower bound exceeds the last one is skipped."""

PER_FAMILY = 2
"""Ranked candidates per family (same degrees and synchronisation, other micro-batches or schedule)."""


def search(
    model: ModelProfile, hardware: Hardware, keep: int = RANKED, *, on_paper: bool = True, allow_idle: bool = True,
    only: Callable[[Shape], bool] | None = None, limit_s: float = inf, budget: Budget | None = None,
) -> list[Estimate]:  # fmt: skip
    """The best plans that fit into memory, the fastest to accuracy first; empty if none fits.

    ``on_paper`` includes plans that Fairlead cannot run yet, ``allow_idle`` those that leave workers idle; ``only``
    filters shapes; plans with an adjusted step time above ``limit_s`` are left out. If the ``budget`` is used up, the
    best plans so far are returned.
    """
    budget = Budget() if budget is None else budget
    topology, bounds, ranking = Topology(hardware), _LowerBounds(model, hardware), _Ranking(keep, limit_s)
    every = (
        shape
        for shape in shapes(model, hardware, on_paper=on_paper, allow_idle=allow_idle)
        if only is None or only(shape)
    )
    todo = sorted((bounds.step_s(shape), place, shape) for place, shape in enumerate(islice(every, SHAPES)))
    fitting: set[Shape] = set()
    for bound_s, _, shape in todo:
        if bound_s > ranking.limit_s:
            break  # neither this shape nor a later one can be among the best
        if _saves_memory_in_vain(shape, fitting):
            continue
        if not budget.take():
            break
        one = _best_plan_of_shape(model, topology, shape, ranking.limit_s)
        if one is not None and one.fits:
            fitting.add(shape)
            ranking.add(one)
    return ranking.ranked()


def candidates(
    model: ModelProfile, hardware: Hardware, keep: int = RANKED, *, on_paper: bool = True, budget: Budget | None = None
) -> list[Estimate]:
    """The best plans and the baselines: one process, and DDP (even if it does not fit)."""
    found = search(model, hardware, keep, on_paper=on_paper, budget=budget)
    topology = Topology(hardware)
    singles = [estimate(model, topology, plan) for plan in _single_worker_plans(hardware)]
    alone = min(singles, key=lambda one: (not one.fits, *_order(one)))
    usual = estimate(model, topology, ddp_plan(len(hardware.seats)))
    known = {one.plan.id for one in found}
    return found + [one for one in (alone, usual) if one.plan.id not in known and (one.fits or one is usual)]


def _single_worker_plans(hardware: Hardware) -> list[Plan]:
    """One single-process plan per kind of worker; the estimates decide which is fastest."""
    if len(hardware.seats) == 1:
        return [Plan()]
    firsts: dict[tuple[str, float], int] = {}
    for worker, seat in enumerate(hardware.seats):
        firsts.setdefault((seat.device, hardware.speed(worker)), worker)
    return [Plan(members=(worker,)) for worker in firsts.values()]


class _Ranking:
    """The best plans so far, few per family, so that variants of one plan do not displace all others."""

    def __init__(self, keep: int, limit_s: float = inf) -> None:
        self._keep, self._most_s = keep, limit_s
        self._by_family: dict[tuple[object, ...], list[Estimate]] = {}
        self.limit_s = limit_s  # a slower plan cannot enter the ranking

    def add(self, one: Estimate) -> None:
        if one.adjusted_step_s > self._most_s:
            return
        plan = one.plan
        family = (
            plan.data, plan.tensor, plan.pipeline, plan.sync, plan.sharded, plan.buckets, plan.period, plan.staleness,
            plan.compression,
        )  # fmt: skip
        peers = {peer.plan.id: peer for peer in self._by_family.get(family, [])}
        if plan.id not in peers or _order(one) < _order(peers[plan.id]):
            peers[plan.id] = one
        self._by_family[family] = sorted(peers.values(), key=_order)[:PER_FAMILY]
        ranked = self.ranked()
        self.limit_s = min(self._most_s, ranked[-1].adjusted_step_s) if len(ranked) == self._keep else self._most_s

    def ranked(self) -> list[Estimate]:
        return sorted((one for peers in self._by_family.values() for one in peers), key=_order)[: self._keep]


def best_plan(model: ModelProfile, hardware: Hardware, *, on_paper: bool = True) -> Estimate | None:
    """The best plan; None if no plan fits."""
    found = search(model, hardware, keep=1, on_paper=on_paper)
    return found[0] if found else None


def _order(one: Estimate) -> tuple[float, int, str]:
    return one.adjusted_step_s, one.plan.workers_used, one.plan.id


def _saves_memory_in_vain(shape: Shape, fitting: set[Shape]) -> bool:
    """True if a variant without recomputation or with fewer micro-batches already fits."""
    plain = replace(shape, recompute=False)
    if shape.recompute and plain in fitting:
        return True
    return shape.pipeline == 1 and any(
        replace(one, microbatches=2**power) in fitting
        for power in range((shape.microbatches - 1).bit_length()) for one in (shape, plain)
    )  # fmt: skip


def _best_plan_of_shape(model: ModelProfile, topology: Topology, shape: Shape, limit_s: float) -> Estimate | None:
    """The shape completed with its best cuts and shares; None if it exceeds the limit or does not fit."""
    if shape.pipeline > 1:
        factor = correction(model, topology.hardware.devices.values(), plan_kind(shape))
        rest_s = topology.hardware.period_s  # waiting workers win it back; the search for cuts ignores it
        plan = assign_stages(model, topology, shape, (limit_s + rest_s) * (1 + 1e-9), factor)
        return None if plan is None else estimate(model, topology, plan)
    plain = shape.plan(model)
    if topology.workers_equal or shape.data == 1 or shape.buckets or shape.sync == "parameter-server":
        return estimate(model, topology, plain)
    return estimate(model, topology, with_balanced_shares(model, topology, plain))


def with_balanced_shares(model: ModelProfile, topology: Topology, plan: Plan) -> Plan:
    """The plan with batch shares that make its replicas finish together."""
    places = topology.placement(plan)
    fixed, each = [], []
    for device, speed in zip(places.devices[0], places.speeds[0], strict=True):
        none = layer_sums(model, device, speed, 0.0, plan.tensor, places.tensor).busy[-1]
        whole = layer_sums(model, device, speed, float(model.batch_size), plan.tensor, places.tensor).busy[-1]
        fetch = model.calibration.input_s / speed if model.calibration else 0.0
        fixed.append(none * plan.microbatches)
        each.append((whole - none) / model.batch_size + fetch)
    counts = balanced_batch_counts(model.batch_size, fixed, each)
    if len(set(counts)) == 1:
        return plan
    return changed(plan, shares=tuple(count / model.batch_size for count in counts))


class _LowerBounds:
    """Lower bounds of the adjusted step time of shapes: perfect balance, fastest devices, fastest links."""

    def __init__(self, model: ModelProfile, hardware: Hardware) -> None:
        self._model, self._hardware = model, hardware
        self._devices = [hardware.devices[name] for name in sorted({seat.device for seat in hardware.seats})]
        self._link = Link(
            min(link.latency_s for link in hardware.links), max(link.bytes_per_s for link in hardware.links)
        )
        self._busy: dict[tuple[int, float], float] = {}
        self._speeds: dict[tuple[int, ...] | int, tuple[float, float]] = {}

    def step_s(self, shape: Shape) -> float:
        whole, fastest = self._power(shape)
        twice = 1 + FORWARD if shape.recompute else 1.0
        many = shape.microbatches
        fixed = self._busy_s(shape.tensor, 0.0) * twice
        pass_s = self._busy_s(shape.tensor, self._model.batch_size / shape.data / many) * twice
        if shape.pipeline == 1:
            paced = (pass_s - fixed) * many * shape.workers_used / whole + many * fixed / fastest
        else:
            pass_s += self._handled_s(shape)
            busy = pass_s * shape.data * shape.tensor / whole
            paced = (many * busy + max(0.0, pass_s / fastest - busy) * fill_fraction(shape)) * schedule_factor(shape)
        factor = min(correction(self._model, [one], plan_kind(shape)) for one in self._devices)
        sent = self._wire_s(shape) + self._started_s(shape, fastest)
        taken = (paced + self._update_s(shape, fastest)) * factor + sent
        won_back = 2 * self._hardware.period_s  # the most that workers can win back while waiting
        return (taken - won_back) * steps_factor(shape) * (1 - 1e-9)

    def _update_s(self, shape: Shape, fastest: float) -> float:
        held = self._model.parameters / (shape.tensor * shape.pipeline)
        part = held / shape.data if shape.sharded or shape.sync == "parameter-server" else held
        return min(optimizer_s(self._model, device, fastest, part) for device in self._devices)

    def _handled_s(self, shape: Shape) -> float:
        """Overhead of all pipeline stages together, per micro-batch."""
        stages = shape.pipeline * shape.chunks
        return min(
            stages * device.microbatch_s + (stages - 1) * 2 * (device.message_s or device.step_s)
            for device in self._devices
        )

    def _started_s(self, shape: Shape, fastest: float) -> float:
        """Seconds to start the exchanges of a sharded plan, layer by layer."""
        if not shape.sharded:
            return 0.0
        layers = max(1.0, len(self._model.layers) / shape.pipeline)
        step_s = min(device.step_s for device in self._devices)
        return shape.microbatches * 3 * layers * (step_s / fastest + self._link.latency_s)

    def _wire_s(self, shape: Shape) -> float:
        if shape.sync != "allreduce" or shape.sharded or shape.buckets or shape.compression != "none":
            return 0.0
        size = self._model.parameters / (shape.tensor * shape.pipeline) * self._model.gradient_bytes
        return min(sum_wire_s(shape.data, size, self._link, device) for device in self._devices)

    def _power(self, shape: Shape) -> tuple[float, float]:
        key = shape.members or shape.workers_used
        if key not in self._speeds:
            members = shape.members or range(shape.workers_used)
            speeds = [self._hardware.seats[worker].speed for worker in members]
            self._speeds[key] = sum(speeds), max(speeds)
        return self._speeds[key]

    def _busy_s(self, tensor: int, samples: float) -> float:
        """Seconds of one pass of ``samples`` on the fastest device, without exchanges."""
        key = (tensor, samples)
        if key not in self._busy:
            sums = [layer_sums(self._model, device, 1.0, samples, tensor, self._link) for device in self._devices]
            self._busy[key] = min(one.busy[-1] - one.exchange[-1] for one in sums)
        return self._busy[key]
