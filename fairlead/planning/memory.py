"""What a worker must hold: parameters, gradients, optimiser state, activations in flight, buffers of exchanges."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from fairlead.planning.layers import LayerSums
from fairlead.planning.plan import Plan
from fairlead.planning.profiles import Device, ModelProfile

USABLE = 0.92
"""Of a device's memory; the rest goes to the runtime, fragments and the libraries' own buffers."""

DEFERRED = 0.35
"""Of the activations of its last stage: what zero-bubble keeps on top for the gradients of weights, which it computes
later (measured on two stages; the first keeps no more than others do)."""

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
        return min(many, depth) * (1 + DEFERRED * stage / (depth - 1))
    return float(min(many, depth - stage))


@lru_cache(maxsize=4096)
def in_flight_by_chunk(microbatches: int, depth: int, chunks: int, stage: int) -> tuple[tuple[int, ...], ...]:
    """Of a worker with several stages that take turns: how many micro-batches each has in flight at full moments.

    The first of its stages fills up before the others, and its activations may be the largest.
    """
    each = microbatches // max(1, microbatches // depth)  # of a stage, before it is the next one's turn
    total = microbatches * chunks
    ahead = min(total, (depth - stage - 1) * 2 + (chunks - 1) * each)
    counts, seen = [0] * chunks, set[tuple[int, ...]]()
    for forward in range(total):
        counts[forward // each % chunks] += 1
        seen.add(tuple(counts))
        if forward >= ahead:
            counts[chunks - 1 - (forward - ahead) // each % chunks] -= 1
    fuller = {one for one in seen if any(all(a <= b for a, b in zip(one, other, strict=True)) and one != other
                                         for other in seen)}  # fmt: skip
    return tuple(sorted(seen - fuller))


def worker_bytes(
    model: ModelProfile, plan: Plan, sums: LayerSums, spans: Sequence[tuple[int, int]], stage: int
) -> float:
    """Of a worker that holds these runs of layers, each a stage of its own."""
    if plan.schedule != "interleaved":
        return sum(stage_bytes(model, plan, sums, start, stop, stage) for start, stop in spans)
    return max(
        sum(stage_bytes(model, plan, sums, *span, stage, count) for span, count in zip(spans, counts, strict=True))
        for counts in in_flight_by_chunk(plan.microbatches, plan.pipeline, plan.chunks, stage)
    )


def stage_bytes(
    model: ModelProfile, plan: Plan, sums: LayerSums, start: int, stop: int, stage: int, flight: float | None = None
) -> float:
    """Of a worker that holds these layers as this stage, for the micro-batches that ``sums`` was made for.

    ``flight``: as many of them at once, if it is not what is usual for the schedule.
    """
    held, largest = sums.parameter_count(start, stop), sums.largest_layer(start, stop)
    flight = in_flight(plan, stage) if flight is None else flight
    still = held * (model.parameter_bytes + model.state_bytes) + sums.frozen_bytes(start, stop)
    gradients = held * model.gradient_bytes
    many = plan.pipeline > 1 or plan.microbatches > 1
    besides = sums.buffer_bytes(start, stop) + _boundary_bytes(plan, sums, start, stop, flight)
    if plan.sharded:
        # Two layers are whole at any time: the one that computes and the one that is being gathered; a third while
        # gradients add up. In a pipeline the stage stays whole from its first micro-batch to its last.
        whole = held if plan.pipeline > 1 else (3 if many else 2) * largest
        still = (still + gradients) / plan.data + whole * (model.parameter_bytes + model.gradient_bytes)
        return still + besides + _activation_bytes(model, plan, sums, start, stop, flight)
    if plan.data > 1:
        still += gradients * (1 + _compression_buffers(plan))  # the buffer in which they are exchanged
    if plan.sync == "parameter-server":  # its own part twice more, and a buffer for each that asks
        still += held * 2 * model.parameter_bytes
    if many:  # gradients add up: those of the largest layer are there twice for a moment
        adding = largest * model.gradient_bytes
        return still + gradients + adding + besides + _activation_bytes(model, plan, sums, start, stop, flight)
    return still + besides + _single_pass_bytes(model, plan, sums)


def _boundary_bytes(plan: Plan, sums: LayerSums, start: int, stop: int, flight: float) -> float:
    """Room of a stage for what comes in, and for gradients from ahead."""
    if plan.pipeline == 1:
        return 0.0
    ahead = sums.outputs[stop - 1] if stop < sums.layers else 0.0
    return flight * (sums.input_bytes(start) + ahead)


def _compression_buffers(plan: Plan) -> float:
    """What compressed gradients need on top, in sizes of the gradients (fairlead/training/parallel/compression.py).

    As int8 everybody's are held at once: as they came, widened, and widened with their scales; and what was lost.
    """
    if plan.compression == "int8":
        return 2.25 * plan.data + 2.25
    return 0.5 if plan.compression == "bf16" else 0.0


def _activation_bytes(model: ModelProfile, plan: Plan, sums: LayerSums, start: int, stop: int, flight: float) -> float:
    """Activations of all micro-batches that are under way."""
    if not plan.recompute:
        return sums.activation_bytes(start, stop) * flight
    if plan.pipeline > 1 and not model.blocks:  # a stage is computed again as a whole
        return sums.input_bytes(start) * flight + sums.activation_bytes(start, stop)
    return sum(sums.recompute_bytes(start, stop, flight))


def _single_pass_bytes(model: ModelProfile, plan: Plan, sums: LayerSums) -> float:
    """Activations and gradients of one pass: a layer's activations go when its gradients come."""
    count = sums.layers
    if plan.recompute:
        edges, heaviest = sums.recompute_bytes(0, count, 1.0)
        return heaviest + max(edges, sums.parameter_count(0, count) * model.gradient_bytes)
    return max(
        sums.activation_bytes(0, at + 1) + sums.parameter_count(at, count) * model.gradient_bytes for at in range(count)
    )


def handover_bytes(model: ModelProfile, plan: Plan, device: Device) -> float:
    """On top, where workers that hold parts of a model make it whole to load it and to hand it over."""
    if not plan.sharded and plan.tensor == 1 and plan.pipeline == 1:
        return 0.0
    weights = model.parameters * model.parameter_bytes + model.fixed_bytes
    if 3 * weights > LARGE_BYTES:  # handed over in parts; only a pipeline is made whole, to be evaluated
        return device.gathers * weights * (2 if plan.pipeline > 1 else 1)
    return device.gathers * (2 * weights + model.parameters * model.state_bytes)


def fits(size: float, device: Device) -> bool:
    return size <= device.memory_bytes * USABLE
