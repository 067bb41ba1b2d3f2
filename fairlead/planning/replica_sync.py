"""The cost of synchronising replicas: gradient exchange, sharded parameters and the optimiser step (D4)."""

from __future__ import annotations

import math

from fairlead.planning.collectives import (
    RING_MESSAGES,
    STEP_MESSAGE_BYTES,
    all_gather_s,
    all_reduce_s,
    exchange_cost_s,
    gather_cpu_s,
    hierarchical_s,
    message_count,
    quota_wait_s,
    reduce_scatter_s,
    ring_cpu_s,
    sum_cpu_s,
    sum_wire_s,
)
from fairlead.planning.layers import FORWARD
from fairlead.planning.plan import Plan
from fairlead.planning.profiles import Device, ModelProfile
from fairlead.planning.topology import Placement

BUCKET_BYTES = 25e6
FIRST_BUCKET_BYTES = 1 << 20
SENT_DURING_BACKWARD = 0.8
"""Fraction of the backward pass during which ready gradients are sent."""

WIRE_BYTES = {"none": 1.0, "bf16": 0.5, "int8": 0.25}
"""Bytes sent for each byte of a float32 gradient."""

QUANTISED, WIDENED = 12, 4.25
"""How often int8 gradients cross the memory bus: to quantise with error feedback, and to widen those of each rank."""

SERVER_TRIPS = 2
"""Round trips per piece: pull it and report the last one; push gradients and get parameters."""

STATISTICS_BYTES = 4096.0
"""Bytes of a batch-norm layer's mean, variance and count per channel."""


def optimizer_s(model: ModelProfile, device: Device, speed: float, held: float) -> float:
    """Seconds to update ``held`` parameters: measured, or by memory bandwidth."""
    known = model.calibration
    if known is not None and known.device == device.name and model.parameters:
        return known.optimizer_s * held / model.parameters / speed
    each = 2 * model.state_bytes + 2 * model.parameter_bytes + model.gradient_bytes
    return held * each / device.memory_bytes_per_s / speed


def updated_parameters(plan: Plan, held: float) -> float:
    """Parameters that one worker updates, of those that its stage holds."""
    return held / plan.data if plan.sharded or plan.sync == "parameter-server" else held


def exposed_s(
    model: ModelProfile, plan: Plan, placement: Placement, device: Device, speed: float, held: float, largest: float,
    backward_s: float,
) -> float:  # fmt: skip
    """Seconds per step that workers wait for exchanges between replicas, beyond the part hidden by the backward pass.

    ``held`` and ``largest`` are the parameters of this worker and of its largest layer; gradients become ready one by
    one during ``backward_s``.
    """
    if plan.data == 1:
        return 0.0
    few = (
        sum_wire_s(plan.data, STATISTICS_BYTES, placement.data, device),
        sum_cpu_s(plan.data, STATISTICS_BYTES, device),
    )
    norms = model.batch_norm * 2 * exchange_cost_s(*few, device, speed)
    if plan.sharded:
        return norms + _fsdp_exchange_s(model, plan, placement, device, speed, held, largest, backward_s)
    if plan.compression == "int8":
        return norms + _int8_exchange_s(model, plan, placement, device, speed, held, backward_s)
    size = held * model.gradient_bytes * WIRE_BYTES[plan.compression]
    copies = 2 * 2 * held * model.gradient_bytes / device.memory_bytes_per_s / speed
    whole = _uncovered_wire_s(plan, placement, size)
    if plan.sync == "local-sgd":
        return (whole + copies + device.step_s / speed) / plan.period
    if plan.sync == "parameter-server":  # no overlap with computing; batch norm sees one piece
        return 2 * copies + 3 * device.step_s / speed + whole
    computing_s = backward_s / (1 - FORWARD)
    if plan.buckets:
        each = plan.bucket_bytes or BUCKET_BYTES
        count = 1 + math.ceil(max(0.0, size - min(each, FIRST_BUCKET_BYTES)) / each)
        last = max(1 / count, min(1.0, model.layers[0].parameters / max(1, model.parameters)))
        overlap = SENT_DURING_BACKWARD if device.byte_s else device.overlap  # if CPU time is counted separately
        hidden = max(whole * last, whole - overlap * backward_s)
        cpu_s = ring_cpu_s(plan.data, size, device) + (count - 1) * ring_cpu_s(plan.data, 0.0, device)
        paid = exchange_cost_s(hidden, cpu_s, device, speed, period_s=placement.period_s, busy_s=computing_s)
        late = quota_wait_s(
            RING_MESSAGES * (plan.data - 1), speed, placement.period_s
        )  # the other messages wait during computing
        return norms + copies + (count - 1) * device.step_s / speed + paid + late
    cpu_s = sum_cpu_s(plan.data, size, device)
    if plan.sync == "allreduce":
        whole = sum_wire_s(plan.data, size, placement.data, device)
    paid = exchange_cost_s(whole, cpu_s, device, speed, period_s=placement.period_s, busy_s=computing_s)
    return norms + copies + paid + quota_wait_s(message_count(plan.data, size, device), speed, placement.period_s)


def _int8_exchange_s(
    model: ModelProfile, plan: Plan, placement: Placement, device: Device, speed: float, held: float, backward_s: float
) -> float:
    """Seconds of an int8 exchange, which gathers all ranks' gradients (scales differ): it grows with the replicas."""
    many, whole = plan.data, held * model.gradient_bytes
    size = whole * WIRE_BYTES["int8"]
    wire_s = all_gather_s(many, many * size, placement.data, device.backend)
    cpu_s = gather_cpu_s(many, size, device)
    moved = (QUANTISED + WIDENED * many) * whole / device.memory_bytes_per_s / speed
    busy_s = backward_s / (1 - FORWARD)
    paid = exchange_cost_s(wire_s, cpu_s, device, speed, period_s=placement.period_s, busy_s=busy_s)
    scales = exchange_cost_s(placement.data.latency_s, gather_cpu_s(many, 4.0, device), device, speed)
    return moved + paid + scales + quota_wait_s(2 * (many - 1), speed, placement.period_s)


def step_messages_s(plan: Plan, placement: Placement, device: Device, speed: float) -> float:
    """Seconds of the control messages of a step, unless they travel with the gradients."""
    many = plan.workers_used
    if many == 1 or not device.message_s or (plan.data == many and not plan.buckets and not plan.sharded):
        return 0.0
    link = max((placement.data, placement.tensor, *placement.stages), key=lambda each: each.latency_s)
    cpu_s = sum_cpu_s(many, STEP_MESSAGE_BYTES, device)
    paid = exchange_cost_s(sum_wire_s(many, STEP_MESSAGE_BYTES, link, device), cpu_s, device, speed)
    return paid + quota_wait_s(message_count(many, STEP_MESSAGE_BYTES, device), speed, placement.period_s)


def _uncovered_wire_s(plan: Plan, placement: Placement, size: float) -> float:
    if plan.sync == "hierarchical":
        return hierarchical_s(plan.data // plan.group, plan.group, size, placement.inner, placement.outer)
    if plan.sync == "parameter-server":  # sharded over workers: each exchanges all parts but its own
        sent = 2 * (plan.data - 1) / plan.data * size
        return SERVER_TRIPS * 2 * placement.data.latency_s + sent / placement.data.bytes_per_s
    return all_reduce_s(plan.data, size, placement.data)


def _fsdp_exchange_s(
    model: ModelProfile, plan: Plan, placement: Placement, device: Device, speed: float, held: float, largest: float,
    backward_s: float,
) -> float:  # fmt: skip
    """Seconds of FSDP2: per micro-batch two all-gathers (forward, backward) and a reduce-scatter of gradients."""
    weights, gradients = held * model.parameter_bytes, held * model.gradient_bytes
    gather = all_gather_s(plan.data, weights, placement.data, device.backend)
    scatter = reduce_scatter_s(plan.data, gradients, placement.data, device.backend)
    rounds = plan.microbatches
    layers = max(1.0, len(model.layers) / plan.pipeline)
    cpu_s = 3 * layers * ring_cpu_s(plan.data, 0.0, device) + 2 * ring_cpu_s(plan.data, weights, device)
    started = rounds * (3 * layers * (device.step_s / speed + placement.data.latency_s) + cpu_s / speed)
    whole = rounds * max(0.0, 2 * gather + scatter - cpu_s / speed)
    computing = rounds * backward_s / (1 - FORWARD)
    first = largest / held * (gather + scatter) if held else 0.0
    return started + max(first, whole - device.overlap * computing)
