"""Estimates a plan: step time and its parts, and the memory of the fullest worker."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.errors import InvalidSpec
from fairlead.planning.collectives import send_s
from fairlead.planning.layers import FORWARD, LayerSums, layer_sums
from fairlead.planning.memory import USABLE, handover_bytes, worker_bytes
from fairlead.planning.plan import Plan
from fairlead.planning.plan_candidates import Shape
from fairlead.planning.profiles import Device, Link, ModelProfile, correction
from fairlead.planning.replica_sync import exposed_s, optimizer_s, step_messages_s, updated_parameters
from fairlead.planning.topology import Placement, Topology, slowed

PARTS = ("compute", "exchange", "tensor exchange", "bubble", "optimiser", "input", "waiting")

MORE_STEPS = {"local-sgd": 0.004, "parameter-server": 0.03, "int8": 0.01, "bf16": 0.0}
"""Additional steps for the same accuracy, as a fraction: per step of period, per step of staleness, by compression."""

SPLIT_BACKWARD = 1.08
"""Cost factor of a split backward pass (inputs first, weights later), which walks the graph twice."""


PIPELINE_SETUP = 2
"""Fixed cost of a pipeline step, in multiples of the per-micro-batch overhead."""

CORRECTION_RANGE = (0.1, 20.0)
"""Bounds of the search for a correction."""

LEAST_S = 1e-9
"""Lower bound of a step time, whatever a profile says."""

MOST_BYTES = 2.0**62
"""Upper bound of reported memory: fits any store and message as an integer."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The predicted time and memory of a plan."""

    plan: Plan
    step_s: float
    samples_per_s: float
    memory_bytes: float  # of the worker with the highest need relative to its device
    fits: bool
    parts: Mapping[str, float]  # seconds of the step by part
    steps_factor: float = 1.0  # steps to the same accuracy, relative to an exact plan

    @property
    def bottleneck(self) -> str:
        return max(PARTS, key=lambda part: self.parts.get(part, 0.0))

    @property
    def adjusted_step_s(self) -> float:
        """Step time multiplied by the steps to accuracy: plans are ranked by it."""
        return self.step_s * self.steps_factor


def plan_kind(plan: Plan | Shape) -> str:
    """The kind of a plan, such as ddp+tp. Corrections are learned per kind."""
    served = plan.sync == "parameter-server"
    names = [
        ("fsdp" if plan.sharded else "ddp" if plan.buckets else "ps" if served else "dp") if plan.data > 1 else "",
        "tp" if plan.tensor > 1 else "", f"pp-{plan.schedule}" if plan.pipeline > 1 else "",
    ]  # fmt: skip
    return "+".join(name for name in names if name) or "single"


def steps_factor(plan: Plan | Shape) -> float:
    factor = 1.0 + MORE_STEPS.get(plan.compression, 0.0)
    if plan.sync == "local-sgd":
        factor += MORE_STEPS["local-sgd"] * (plan.period - 1)
    return factor + MORE_STEPS["parameter-server"] * plan.staleness


def stage_edges(model: ModelProfile, plan: Plan) -> tuple[int, ...]:
    """Index of the first layer of each stage, and the number of layers."""
    names = {layer.name: place for place, layer in enumerate(model.layers)}
    missing = [cut for cut in plan.cuts if cut not in names]
    if missing:
        raise InvalidSpec(f"the model has no layer {missing[0]} to cut at", field="plan.cuts")
    return (0, *(names[cut] for cut in plan.cuts), len(model.layers))


def pipeline_s(plan: Plan | Shape, busy: float, passing: float) -> float:
    """Seconds for all micro-batches through all stages: the busiest stage sets the pace, the schedule the fill."""
    return (plan.microbatches * busy + max(0.0, passing - busy) * fill_fraction(plan)) * schedule_factor(plan)


def schedule_factor(plan: Plan | Shape) -> float:
    """Cost factor of a schedule itself."""
    return SPLIT_BACKWARD if plan.schedule == "zero-bubble" else 1.0


def fill_fraction(plan: Plan | Shape) -> float:
    """The fraction of the fill time that a schedule leaves idle."""
    if plan.schedule == "interleaved":
        return 1 / plan.chunks
    return FORWARD if plan.schedule == "zero-bubble" else 1.0


def stage_s(
    sums: LayerSums, start: int, stop: int, device: Device, speed: float, before: Link | None
) -> tuple[float, float]:
    """For one stage and micro-batch: seconds that the worker is busy, and seconds to pass the stage."""
    computing = sums.busy_s(start, stop)
    if stop - start < sums.layers:
        computing += device.microbatch_s / speed
    if before is None:
        return computing, computing
    sending = 2 * send_s(sums.outputs[start - 1], before)  # activations forward, gradients back
    handling = 2 * (device.message_s or device.step_s) / speed
    return max(computing + handling, sending), computing + handling + sending


@dataclass(frozen=True, slots=True)
class _ReplicaCost:
    total_s: float
    computing_s: float
    tensor_exchange_s: float  # within tensor groups
    bubble_s: float
    tail_s: float
    updating_s: float
    memory: float  # bytes of the fullest worker
    memory_fraction: float  # the largest need relative to its device


def estimate(model: ModelProfile, topology: Topology, plan: Plan, factor: float | None = None) -> Estimate:
    """Predict time and memory of one step, even of a plan that does not fit; ``factor`` replaces the known correction.

    A correction slows workers down, not links.
    """
    placement = topology.placement(plan)
    if factor is None:
        unlike = {device.name: device for row in placement.devices for device in row}
        factor = correction(model, unlike.values(), plan_kind(plan))
    placement = slowed(placement, factor)
    shares = plan.shares or (1 / plan.data,) * plan.data
    alike = placement.identical and len(set(shares)) == 1
    chosen = range(1) if alike else range(plan.data)
    replicas = [_replica_cost(model, plan, placement, at, shares[at] * model.batch_size) for at in chosen]
    fetch = model.calibration.input_s if model.calibration else 0.0
    inputs = [fetch * shares[at] * model.batch_size / min(row[at] for row in placement.speeds) for at in chosen]
    if plan.staleness:
        step = _asynchronous_step_s(
            plan, [one.total_s + put + one.tail_s for one, put in zip(replicas, inputs, strict=True)]
        )
    else:
        step = max(one.total_s + put for one, put in zip(replicas, inputs, strict=True))
        step += max(one.tail_s for one in replicas)
    step = max(step, LEAST_S)
    return Estimate(
        plan, step, model.batch_size / step, min(MOST_BYTES, max(0.0, *(one.memory for one in replicas))),
        max(one.memory_fraction for one in replicas) <= USABLE, _step_parts(replicas, inputs, step), steps_factor(plan),
    )  # fmt: skip


def fit_correction(model: ModelProfile, topology: Topology, plan: Plan, measured_s: float) -> float:
    """The correction factor with which the prediction for this plan equals the measured step time."""
    low, high = CORRECTION_RANGE
    for _ in range(24):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if estimate(model, topology, plan, middle).step_s > measured_s else (middle, high)
    return math.sqrt(low * high)


def _asynchronous_step_s(plan: Plan, pieces_s: Sequence[float]) -> float:
    """Step time of a parameter server, given each worker's seconds per piece.

    Speeds add up, unless one piece of the slowest worker lasts longer than the others may run ahead.
    """
    rates = [1 / max(piece_s, LEAST_S) for piece_s in pieces_s]
    whole = sum(rates) if len(rates) == plan.data else rates[0] * plan.data
    return max(plan.data / whole, max(pieces_s) / (plan.staleness + 1))


def _step_parts(replicas: Sequence[_ReplicaCost], inputs: Sequence[float], step: float) -> dict[str, float]:
    many = len(replicas)
    parts = {
        "compute": sum(one.computing_s - one.tensor_exchange_s for one in replicas) / many,
        "tensor exchange": sum(one.tensor_exchange_s for one in replicas) / many,
        "bubble": sum(one.bubble_s for one in replicas) / many,
        "optimiser": max(one.updating_s for one in replicas),
        "exchange": max(one.tail_s - one.updating_s for one in replicas),
        "input": sum(inputs) / many,
    }
    parts["waiting"] = max(0.0, step - sum(parts.values()))
    return parts


def _replica_cost(model: ModelProfile, plan: Plan, placement: Placement, at: int, samples: float) -> _ReplicaCost:
    edges = stage_edges(model, plan)
    busy, passing, talking, tails, updates, sizes, full = [], 0.0, 0.0, [], [], [], []
    for worker in range(plan.pipeline):
        device, speed = placement.devices[worker][at], placement.speeds[worker][at]
        sums = layer_sums(
            model, device, speed, samples / plan.microbatches, plan.tensor, placement.tensor, plan.recompute
        )
        own, talk, held, largest, spans = 0.0, 0.0, 0.0, 0.0, []
        for stage in range(worker, plan.stages, plan.pipeline):
            start, stop = edges[stage], edges[stage + 1]
            before = None if stage == 0 else placement.stages[worker - 1] if worker else placement.wrap_around
            once, through = stage_s(sums, start, stop, device, speed, before)
            own, passing, talk = own + once, passing + through, talk + sums.exchange_s(start, stop)
            held, largest = held + sums.parameter_count(start, stop), max(largest, sums.largest_layer(start, stop))
            spans.append((start, stop))
        backward = own * (1 - FORWARD)
        update = optimizer_s(model, device, speed, updated_parameters(plan, held))
        busy.append(own)
        talking = max(talking, talk * plan.microbatches)
        updates.append(update)
        exchanged = exposed_s(model, plan, placement, device, speed, held, largest, backward)
        besides = device.loop_s / speed + step_messages_s(plan, placement, device, speed)
        tails.append(update + exchanged + besides)
        size = worker_bytes(model, plan, sums, spans, worker)
        size += model.sample_bytes * samples + model.working_bytes * samples / plan.microbatches
        size += handover_bytes(model, plan, device)
        sizes.append(size)
        full.append(size / device.memory_bytes)
    total = pipeline_s(plan, max(busy), passing) if plan.pipeline > 1 else plan.microbatches * busy[0]
    if plan.pipeline > 1:
        slow = min(row[at] for row in placement.speeds)
        rest = max(0.0, 1 - slow) * placement.period_s  # a worker that waited runs at full speed for a while
        total -= min(max(0.0, total - plan.microbatches * max(busy)), rest)
        total += PIPELINE_SETUP * placement.devices[0][at].microbatch_s / slow
    computing = plan.microbatches * sum(busy) / len(busy)
    longest = max(range(len(tails)), key=tails.__getitem__)
    return _ReplicaCost(
        total, computing, min(talking, computing), max(0.0, total - computing), tails[longest], updates[longest],
        max(sizes), max(full),
    )  # fmt: skip
