"""What a worker must hold: parameters, gradients, optimiser state, activations in flight, buffers of exchanges."""

from __future__ import annotations

from fairlead.planning.layers import Table
from fairlead.planning.plan import Plan
from fairlead.planning.profiles import Device, ModelProfile

USABLE = 0.92
"""Of a device's memory; the rest goes to the runtime, fragments and the libraries' own buffers."""

LARGE_BYTES = float(1 << 30)
"""A state beyond this is not gathered on one worker."""


def in_flight(plan: Plan, stage: int) -> float:
    """Micro-batches whose activations a worker keeps at once; ``stage`` counts workers, from the input."""
    many, depth = plan.microbatches, plan.pipeline
    if depth == 1:
        return 1.0
    if plan.schedule == "gpipe":
        return float(many)
    if plan.schedule == "interleaved":
        chunks = (depth - stage - 1) * 2 + (plan.chunks - 1) * depth + 1
        return min(many, chunks / plan.chunks)
    if plan.schedule == "zero-bubble":
        return float(min(many, depth))
    return float(min(many, depth - stage))


def stage_bytes(model: ModelProfile, plan: Plan, sums: Table, start: int, stop: int, stage: int) -> float:
    """Of a worker that holds these layers as this stage, for the micro-batches that ``sums`` was made for."""
    held = sums.held(start, stop)
    still = held * (model.parameter_bytes + model.state_bytes)
    gradients = held * model.gradient_bytes
    if plan.sharded:
        # Two layers are whole at any time: the one that computes and the one that is being gathered. In a pipeline the
        # stage stays whole from its first micro-batch to its last.
        whole = held if plan.pipeline > 1 else 2 * sums.largest(start, stop)
        still = (still + gradients) / plan.data + whole * (model.parameter_bytes + model.gradient_bytes)
        return still + _kept(model, plan, sums, start, stop, stage)
    if plan.data > 1:
        still += gradients * (1 + _on_the_way(plan))  # the buffer in which they are exchanged
    if plan.sync == "parameter-server":  # its own part twice more, and a buffer for each that asks
        still += held * 2 * model.parameter_bytes
    if plan.pipeline > 1 or plan.microbatches > 1:
        return still + gradients + _kept(model, plan, sums, start, stop, stage)
    return still + _passing(model, plan, sums)


def _on_the_way(plan: Plan) -> float:
    """What compressed gradients need on top, in sizes of the gradients (fairlead/training/compression.py).

    As int8 everybody's are held at once: as they came, widened, and widened with their scales; and what was lost.
    """
    if plan.compression == "int8":
        return 2.25 * plan.data + 2.25
    return 0.5 if plan.compression == "bf16" else 0.0


def _kept(model: ModelProfile, plan: Plan, sums: Table, start: int, stop: int, stage: int) -> float:
    """Activations of all micro-batches that are under way."""
    flight = in_flight(plan, stage)
    if not plan.recompute:
        return sums.kept_bytes(start, stop) * flight
    if plan.pipeline > 1 and not model.blocks:  # a stage is computed again as a whole
        return sums.came_bytes(start) * flight + sums.kept_bytes(start, stop)
    return sum(sums.again_bytes(start, stop, flight))


def _passing(model: ModelProfile, plan: Plan, sums: Table) -> float:
    """Activations and gradients of one pass: a layer's activations go when its gradients come."""
    count = sums.layers
    if plan.recompute:
        edges, heaviest = sums.again_bytes(0, count, 1.0)
        return heaviest + max(edges, sums.held(0, count) * model.gradient_bytes)
    return max(sums.kept_bytes(0, at + 1) + sums.held(at, count) * model.gradient_bytes for at in range(count))


def handover_bytes(model: ModelProfile, plan: Plan, device: Device) -> float:
    """On top, where workers that hold parts of a model make it whole to load it and to hand it over."""
    if not plan.sharded and plan.tensor == 1 and plan.pipeline == 1:
        return 0.0
    weights = model.parameters * model.parameter_bytes
    if 3 * weights > LARGE_BYTES:  # handed over in parts; only a pipeline is made whole, to be evaluated
        return device.gathers * weights * (2 if plan.pipeline > 1 else 1)
    return device.gathers * (2 * weights + model.parameters * model.state_bytes)


def fits(size: float, device: Device) -> bool:
    return size <= device.memory_bytes * USABLE
