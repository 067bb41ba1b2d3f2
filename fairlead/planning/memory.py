"""Estimates the memory of a worker: parameters, gradients, optimiser state, activations in flight, buffers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from fairlead.planning.layers import LayerSums
from fairlead.planning.plan import Plan
from fairlead.planning.profiles import Device, ModelProfile

USABLE = 0.92
"""Usable fraction of a device's memory; runtime, fragmentation and library buffers take the rest."""

DEFERRED = 0.35
"""Extra activations of zero-bubble on its last stage, as a fraction, kept for the delayed weight gradients (measured on
two stages; the first keeps no more than with other schedules)."""

LARGE_BYTES = float(1 << 30)
"""A larger state is not gathered on one worker."""


def in_flight(plan: Plan, stage: int) -> float:
    """Micro-batches whose activations a worker keeps at once; ``stage`` counts workers from the input."""
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
    """Micro-batches in flight per chunk of an interleaved worker, at each moment that may be the fullest.

    The first chunk fills before the others, and its activations may be the largest.
    """
    each = microbatches // max(1, microbatches // depth)  # micro-batches of one chunk before the next takes its turn
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
    """Bytes of a worker that holds these runs of layers, each a stage."""
    if plan.schedule != "interleaved":
        return sum(stage_bytes(model, plan, sums, start, stop, stage) for start, stop in spans)
    return max(
        sum(stage_bytes(model, plan, sums, *span, stage, count) for span, count in zip(spans, counts, strict=True))
        for counts in in_flight_by_chunk(plan.microbatches, plan.pipeline, plan.chunks, stage)
    )


def stage_bytes(
    model: ModelProfile, plan: Plan, sums: LayerSums, start: int, stop: int, stage: int, flight: float | None = None
) -> float:
    """Bytes of a worker that holds these layers as a stage, for the micro-batch size of ``sums``.

    ``flight``: micro-batches at once, if not the usual number of the schedule.
    """
    held, largest = sums.parameter_count(start, stop), sums.largest_layer(start, stop)
    flight = in_flight(plan, stage) if flight is None else flight
    still = held * (model.parameter_bytes + model.state_bytes) + sums.frozen_bytes(start, stop)
    gradients = held * model.gradient_bytes
    many = plan.pipeline > 1 or plan.microbatches > 1
    besides = sums.buffer_bytes(start, stop) + _boundary_bytes(plan, sums, start, stop, flight)
    if plan.sharded:
        # Two layers are gathered at any time: the one that computes and the next; a third while gradients accumulate.
        # In a pipeline the stage stays gathered from its first micro-batch to its last.
        whole = held if plan.pipeline > 1 else (3 if many else 2) * largest
        still = (still + gradients) / plan.data + whole * (model.parameter_bytes + model.gradient_bytes)
        return still + besides + _activation_bytes(model, plan, sums, start, stop, flight)
    if plan.data > 1:
        still += gradients * (1 + _compression_buffers(plan))  # the exchange buffer
    if plan.sync == "parameter-server":  # two more copies of its part, and a buffer per requester
        still += held * 2 * model.parameter_bytes
    if many:  # gradients accumulate: the largest layer's exist twice for a moment
        adding = largest * model.gradient_bytes
        return still + gradients + adding + besides + _activation_bytes(model, plan, sums, start, stop, flight)
    return still + besides + _single_pass_bytes(model, plan, sums)


def _boundary_bytes(plan: Plan, sums: LayerSums, start: int, stop: int, flight: float) -> float:
    """Bytes of a stage's inputs, and of the gradients from the next stage."""
    if plan.pipeline == 1:
        return 0.0
    ahead = sums.outputs[stop - 1] if stop < sums.layers else 0.0
    return flight * (sums.input_bytes(start) + ahead)


def _compression_buffers(plan: Plan) -> float:
    """Extra buffers of compressed gradients, in sizes of the gradients (fairlead/training/parallel/compression.py).

    int8 holds all ranks' gradients at once: as received, widened, and scaled; and the rounding error.
    """
    if plan.compression == "int8":
        return 2.25 * plan.data + 2.25
    return 0.5 if plan.compression == "bf16" else 0.0


def _activation_bytes(model: ModelProfile, plan: Plan, sums: LayerSums, start: int, stop: int, flight: float) -> float:
    """Activation bytes of all micro-batches in flight."""
    if not plan.recompute:
        return sums.activation_bytes(start, stop) * flight
    if plan.pipeline > 1 and not model.blocks:  # the stage is recomputed as a whole
        return sums.input_bytes(start) * flight + sums.activation_bytes(start, stop)
    return sum(sums.recompute_bytes(start, stop, flight))


def _single_pass_bytes(model: ModelProfile, plan: Plan, sums: LayerSums) -> float:
    """Peak of activations and gradients in one pass: a layer's activations are freed as its gradients appear."""
    count = sums.layers
    if plan.recompute:
        edges, heaviest = sums.recompute_bytes(0, count, 1.0)
        return heaviest + max(edges, sums.parameter_count(0, count) * model.gradient_bytes)
    return max(
        sums.activation_bytes(0, at + 1) + sums.parameter_count(at, count) * model.gradient_bytes for at in range(count)
    )


def handover_bytes(model: ModelProfile, plan: Plan, device: Device) -> float:
    """Extra bytes of a worker that gathers a distributed model to load or hand over its state."""
    if not plan.sharded and plan.tensor == 1 and plan.pipeline == 1:
        return 0.0
    weights = model.parameters * model.parameter_bytes + model.fixed_bytes
    if 3 * weights > LARGE_BYTES:  # handed over in parts; only a pipeline is gathered, for evaluation
        return device.gathers * weights * (2 if plan.pipeline > 1 else 1)
    return device.gathers * (2 * weights + model.parameters * model.state_bytes)


def fits(size: float, device: Device) -> bool:
    return size <= device.memory_bytes * USABLE
