"""Prefix sums over layers: time, parameters and bytes of any run of layers in constant time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from fairlead.planning.collectives import all_reduce_s, exchange_cost_s, ring_cpu_s
from fairlead.planning.profiles import Calibration, Device, Layer, Link, ModelProfile

FORWARD = 1 / 3
"""The forward pass's part of forward and backward: a backward pass computes two products for each forward product."""

TRAFFIC = 2.0
"""How often kept activations cross the memory bus in a forward pass: written once, read once."""


@dataclass(frozen=True, slots=True)
class LayerSums:
    """Prefix sums over the layers for one micro-batch size and tensor degree."""

    busy: tuple[float, ...]  # seconds of forward and backward, with recomputation and tensor exchanges
    exchange: tuple[float, ...]  # of these: tensor exchanges
    parameters: tuple[float, ...]  # on one worker
    kept: tuple[float, ...]  # bytes of activations on one worker, one micro-batch
    groups: tuple[int, ...]  # of each layer: layers of one group are recomputed together
    outputs: tuple[float, ...]  # output bytes of each layer, one micro-batch (not summed)
    frozen: tuple[float, ...]  # bytes of frozen weights
    buffers: tuple[float, ...]  # bytes of buffers

    @property
    def layers(self) -> int:
        return len(self.outputs)

    def busy_s(self, start: int, stop: int) -> float:
        return self.busy[stop] - self.busy[start]

    def exchange_s(self, start: int, stop: int) -> float:
        return self.exchange[stop] - self.exchange[start]

    def parameter_count(self, start: int, stop: int) -> float:
        """Parameters of these layers."""
        return self.parameters[stop] - self.parameters[start]

    def largest_layer(self, start: int, stop: int) -> float:
        """Parameters of the largest layer among these."""
        return max((self.parameters[at + 1] - self.parameters[at] for at in range(start, stop)), default=0.0)

    def frozen_bytes(self, start: int, stop: int) -> float:
        return self.frozen[stop] - self.frozen[start]

    def buffer_bytes(self, start: int, stop: int) -> float:
        return self.buffers[stop] - self.buffers[start]

    def activation_bytes(self, start: int, stop: int) -> float:
        return self.kept[stop] - self.kept[start]

    def input_bytes(self, start: int) -> float:
        """Bytes that the layer before ``start`` hands over."""
        return self.outputs[start - 1] if start else 0.0

    def recompute_bytes(self, start: int, stop: int, flight: float) -> tuple[float, float]:
        """Activation bytes with recomputation: the inputs of all groups, and all activations of the largest group."""
        kept = 0.0
        inside: dict[int, float] = {}
        for at in range(start, stop):
            group, own = self.groups[at], self.kept[at + 1] - self.kept[at]
            if group < 0:
                kept += own
                continue
            key = group or -at - 1
            if key not in inside:
                kept += self.input_bytes(at)
            inside[key] = inside.get(key, 0.0) + own
        return kept * flight, max(inside.values(), default=0.0)


def layer_sums(
    model: ModelProfile, device: Device, speed: float, samples: float, tensor: int, link: Link, recompute: bool = False
) -> LayerSums:
    """The cost of each layer on a device of this speed, with ``samples`` per micro-batch."""
    times, exchanges, parameters, kept, outputs = [], [], [], [], []
    known = model.calibration
    scales = _calibrated_times(model, device, known)
    for place, layer in enumerate(model.layers):
        part = _worker_part(layer, tensor)
        fixed, each = scales[place] if scales else _roofline_times(layer, device, model.dtype)
        time = (fixed + each * samples * part.flops) / speed * (1 + FORWARD if recompute else 1)
        talk = 0.0
        if tensor > 1 and layer.exchanges:
            size = layer.exchange_bytes * samples / layer.exchanges
            again = 1.5 if recompute else 1.0  # recomputation repeats the forward exchanges, half of all
            wire_s, cpu_s = all_reduce_s(tensor, size, link), ring_cpu_s(tensor, size, device)
            talk = again * layer.exchanges * exchange_cost_s(wire_s, cpu_s, device, speed)
        times.append(time + talk)
        exchanges.append(talk)
        parameters.append(part.parameters)
        kept.append(part.activation_bytes * samples)
        outputs.append(layer.output_bytes * samples)
    return LayerSums(
        _sums(times), _sums(exchanges), _sums(parameters), _sums(kept), tuple(layer.group for layer in model.layers),
        tuple(outputs), _sums(layer.frozen_bytes for layer in model.layers),
        _sums(layer.buffer_bytes for layer in model.layers),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _WorkerPart:
    flops: float  # as a fraction
    parameters: float
    activation_bytes: float


def _worker_part(layer: Layer, tensor: int) -> _WorkerPart:
    if tensor == 1 or not layer.splits:
        return _WorkerPart(1.0, layer.parameters, layer.activation_bytes)
    saved = 1 - 1 / tensor
    flops = 1 - saved * layer.split_flops / layer.flops if layer.flops else 1.0
    return _WorkerPart(
        flops, layer.parameters - saved * layer.split_parameters,
        layer.activation_bytes - saved * layer.split_activation_bytes,
    )  # fmt: skip


def _roofline_times(layer: Layer, device: Device, dtype: str) -> tuple[float, float]:
    """Seconds of forward and backward by the roofline model: (per pass, per sample)."""
    computing = layer.flops / (device.flops(dtype) * device.efficiency)
    moving = TRAFFIC * layer.activation_bytes / device.memory_bytes_per_s
    return layer.kernels * device.launch_s / FORWARD, (computing + moving) / FORWARD


def _calibrated_times(model: ModelProfile, device: Device, known: Calibration | None) -> list[tuple[float, float]]:
    """The measured time divided among layers, by their measured times or the roofline; empty if not measured."""
    if known is None or known.device != device.name:
        return []
    guessed = [_roofline_times(layer, device, model.dtype) for layer in model.layers]
    weights = [layer.seconds for layer in model.layers]
    if sum(weights) <= 0:
        weights = [each for _, each in guessed]
    whole, started = sum(weights) or 1.0, sum(layer.kernels for layer in model.layers) or 1
    return [
        (known.fixed_s * layer.kernels / started, known.sample_s * weight / whole)
        for layer, weight in zip(model.layers, weights, strict=True)
    ]


def _sums(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(accumulate(values, initial=0.0))
