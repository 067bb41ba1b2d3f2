"""What a worker must hold: parameters, gradients, optimiser state, activations in flight, buffers of exchanges."""

from __future__ import annotations

from fairlead.planning.layers import Table
from fairlead.planning.plan import Plan
from fairlead.planning.profiles import Device, ModelProfile

USABLE = 0.92
"""Of a device's memory; the rest goes to the runtime, fragments and the libraries' own buffers."""


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
    each = model.parameter_bytes + model.gradient_bytes + model.state_bytes
    working = model.parameter_bytes + model.gradient_bytes
    if plan.sharded:
        # Two layers are whole at any time: the one that computes and the one that is being gathered. In a pipeline the
        # stage stays whole from its first micro-batch to its last.
        whole = held if plan.pipeline > 1 else 2 * sums.largest(start, stop)
        fixed = held * each / plan.data + whole * working
    else:
        fixed = held * (each + (model.gradient_bytes if plan.data > 1 else 0.0))
        if plan.sync == "parameter-server":  # its own part twice more, and a buffer for each that asks
            fixed += held * 2 * model.parameter_bytes
    flight = in_flight(plan, stage)
    if not plan.recompute:
        kept = sums.kept_bytes(start, stop) * flight
    elif plan.pipeline > 1 and not model.blocks:  # a stage is computed again as a whole
        kept = sums.came_bytes(start) * flight + sums.kept_bytes(start, stop)
    else:
        kept = sums.again_bytes(start, stop, flight)
    return fixed + kept


def handover_bytes(model: ModelProfile, plan: Plan, device: Device) -> float:
    """On top, where workers that hold parts of a model make it whole to load it and to hand it over."""
    spread = plan.sharded or plan.tensor > 1 or plan.pipeline > 1
    whole = model.parameters * (2 * model.parameter_bytes + model.state_bytes)
    return device.gathers * whole if spread else 0.0


def fits(size: float, device: Device) -> bool:
    return size <= device.memory_bytes * USABLE
