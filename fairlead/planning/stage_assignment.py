"""Assigns pipeline stages to workers: orders the groups of workers and cuts the model to match their speeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, prod

from fairlead.planning.collectives import slowest_link
from fairlead.planning.cost import pipeline_s, schedule_factor, stage_s
from fairlead.planning.layers import FORWARD, LayerSums, layer_sums
from fairlead.planning.memory import fits, handover_bytes, stage_bytes
from fairlead.planning.plan import Plan
from fairlead.planning.plan_candidates import Shape
from fairlead.planning.profiles import Device, Link, ModelProfile
from fairlead.planning.replica_sync import exposed_s, optimizer_s, updated_parameters
from fairlead.planning.stages import Cost, Partition, StageCost, balanced_cuts, best_partition, with_stage
from fairlead.planning.topology import Placement, Topology, weakest_device

ORDERS = 256
"""Combinations of used groups up to which all orders of different groups are tried."""


@dataclass(frozen=True, slots=True)
class Team:
    """The workers of one stage: ``data`` x ``tensor`` of them."""

    workers: tuple[int, ...]
    device: Device  # the weakest of its workers
    speed: float  # of its slowest worker
    node: str

    @property
    def kind(self) -> tuple[str, float, str]:
        return self.device.name, self.speed, self.node


def assign_stages(
    model: ModelProfile, topology: Topology, shape: Shape, limit_s: float = inf, factor: float = 1.0
) -> Plan | None:
    """The shape with the best cuts and order of workers; None if nothing fits or beats the limit.

    ``factor``: correction by which workers are slower with plans of this kind.
    """
    teams = _teams(topology, shape, factor)
    unlike = Counter(team.kind for team in teams)
    orders = prod(count + 1 for count in unlike.values())
    if shape.chunks > 1 or len({like[:2] for like in unlike}) == 1 or orders > ORDERS:
        return _assign_in_order(model, topology, shape, teams, limit_s)
    return _assign_in_any_order(model, topology, shape, teams, unlike, limit_s)


def _teams(topology: Topology, shape: Shape, factor: float) -> list[Team]:
    hardware, size = topology.hardware, shape.data * shape.tensor
    members = shape.members or tuple(range(shape.workers_used))
    busy = Counter(hardware.seats[worker].node for worker in members)
    found = []
    for at in range(0, len(members), size):
        workers = members[at : at + size]
        speed = min(hardware.speed(worker, busy[hardware.seats[worker].node]) for worker in workers)
        device = weakest_device([hardware.device(worker) for worker in workers])
        found.append(Team(workers, device, speed / factor, hardware.seats[workers[0]].node))
    return found


def _assign_in_order(
    model: ModelProfile, topology: Topology, shape: Shape, teams: Sequence[Team], limit_s: float
) -> Plan | None:
    """Find cuts for teams in the given order: all alike, or too many to try all orders."""
    pricing = _Pricing(model, topology, shape, limit_s)
    links = pricing.placement.stages

    def cost(_: int, previous: int | None, start: int, stop: int, stage: int) -> StageCost | None:
        at = stage % shape.pipeline
        before = None if previous is None else links[at - 1] if at else pricing.placement.wrap_around
        return pricing.price(teams[at], before, start, stop, at)

    stages = shape.pipeline * shape.chunks
    pricing.limit_s = min(limit_s, pricing.upper_bound_s(cost, pricing.sums(teams[0]), stages) * (1 + 1e-9))
    found = best_partition(range(1, len(model.layers)), len(model.layers), [stages], cost, pricing.objective)
    return None if found is None else shape.plan(model, _cut_names(model, found))


def _assign_in_any_order(
    model: ModelProfile, topology: Topology, shape: Shape, teams: Sequence[Team],
    unlike: Counter[tuple[str, float, str]], limit_s: float,
) -> Plan | None:  # fmt: skip
    """Find cuts and the order of teams together."""
    pricing = _Pricing(model, topology, shape, limit_s)
    likes = sorted(unlike)
    kinds = [next(team for team in teams if team.kind == like) for like in likes]
    links = {
        (left, right): slowest_link(topology.hardware, list(zip(one.workers, other.workers, strict=True)))
        for left, one in enumerate(kinds) for right, other in enumerate(kinds)
    }  # fmt: skip

    def cost(kind: int, previous: int | None, start: int, stop: int, stage: int) -> StageCost | None:
        before = None if previous is None else links[previous, kind]
        return pricing.price(kinds[kind], before, start, stop, stage)

    counts = [unlike[like] for like in likes]
    found = best_partition(range(1, len(model.layers)), len(model.layers), counts, cost, pricing.objective)
    if found is None:
        return None
    left = list(teams)
    seats: list[int] = []
    for kind in found.kinds:
        team = next(team for team in left if team.kind == likes[kind])
        left.remove(team)
        seats += team.workers
    members = tuple(seats)
    return shape.plan(model, _cut_names(model, found), () if members == tuple(range(len(members))) else members)


def _cut_names(model: ModelProfile, partition: Partition) -> tuple[str, ...]:
    return tuple(model.layers[cut].name for cut in partition.cuts)


@dataclass(slots=True)
class _Pricing:
    """Prices the stages of a shape; shared figures are computed once."""

    model: ModelProfile
    topology: Topology
    shape: Shape
    limit_s: float
    draft: Plan = field(init=False)
    placement: Placement = field(init=False)
    _tables: dict[tuple[str, float], LayerSums] = field(default_factory=dict)
    _tails: dict[tuple[str, float, int, int], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The links of a plan do not depend on its cuts.
        stages = self.shape.pipeline * self.shape.chunks
        self.draft = self.shape.plan(self.model, tuple(str(at) for at in range(stages - 1)))
        self.placement = self.topology.placement(self.draft)

    def sums(self, team: Team) -> LayerSums:
        key = (team.device.name, team.speed)
        if key not in self._tables:
            shape = self.shape
            samples = self.model.batch_size / shape.data / shape.microbatches
            self._tables[key] = layer_sums(
                self.model, team.device, team.speed, samples, shape.tensor, self.placement.tensor, shape.recompute
            )
        return self._tables[key]

    def price(self, team: Team, before: Link | None, start: int, stop: int, at: int) -> StageCost | None:
        sums, chunks = self.sums(team), self.shape.chunks
        once, through = stage_s(sums, start, stop, team.device, team.speed, before)
        if self.shape.microbatches * once * chunks * schedule_factor(self.shape) > self.limit_s:
            return None
        size = chunks * stage_bytes(self.model, self.draft, sums, start, stop, at)
        if not fits(size + handover_bytes(self.model, self.draft, team.device), team.device):
            return None
        return StageCost(once, through, self._tail(team, sums, start, stop, once))

    def _tail(self, team: Team, sums: LayerSums, start: int, stop: int, once: float) -> float:
        key = (team.device.name, team.speed, start, stop)
        if key not in self._tails:
            held, largest = sums.parameter_count(start, stop), sums.largest_layer(start, stop)
            update = optimizer_s(self.model, team.device, team.speed, updated_parameters(self.draft, held))
            self._tails[key] = update + exposed_s(
                self.model, self.draft, self.placement, team.device, team.speed, held, largest, once * (1 - FORWARD)
            )
        return self._tails[key]

    def objective(self, partition: Partition) -> float:
        chunks = self.shape.chunks
        return pipeline_s(self.shape, chunks * partition.busy_s, partition.pass_s) + chunks * partition.tail_s

    def upper_bound_s(self, cost: Cost, sums: LayerSums, stages: int) -> float:
        """Step time of a simple balanced cut, which bounds better solutions; inf if it does not fit."""
        edges = [0, *balanced_cuts(sums.busy, stages), sums.layers]
        whole = Partition((), (), 0.0, 0.0, 0.0)
        for stage in range(stages):
            price = cost(0, 0 if stage else None, edges[stage], edges[stage + 1], stage)
            if price is None:
                return inf
            whole = with_stage(whole, edges[stage], 0, price)
        return self.objective(whole)
