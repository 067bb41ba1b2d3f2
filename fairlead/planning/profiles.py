"""The planner's inputs: the profile of a model by layers, and the hardware with devices, workers and links."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any, TypeVar

import msgspec

from fairlead.errors import InvalidSpec
from fairlead.planning.plan import Split

T = TypeVar("T")
ALL_KINDS = "*"
"""Key of the correction common to all kinds of plans, which changes no ranking."""


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A unit of the model that a pipeline does not cut; figures are per sample of the forward pass."""

    name: str  # its first submodule
    parameters: int = 0  # trained ones
    frozen_bytes: float = 0.0  # of parameters that are not trained
    buffer_bytes: float = 0.0
    flops: float = 0.0
    activation_bytes: float = 0.0  # kept for the backward pass
    output_bytes: float = 0.0  # handed to the next layer
    kernels: int = 1  # operations launched one by one
    seconds: float = 0.0  # measured part of forward and backward on the reference device; 0: not measured
    splits: tuple[tuple[str, Split], ...] = ()  # how tensor parallelism splits it
    split_parameters: int = 0  # of ``parameters``: divided by tensor parallelism
    split_flops: float = 0.0
    split_activation_bytes: float = 0.0
    exchange_bytes: float = 0.0  # summed by a tensor group, in forward and backward together
    exchanges: int = 0  # number of these collectives
    group: int = 0  # recomputed with all layers of this number; 0: alone; -1: never


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Measured times of this model in one process on one device of a type."""

    device: str
    fixed_s: float  # forward and backward: per pass, however small the batch
    sample_s: float  # and per sample
    optimizer_s: float  # one step of the optimiser over all parameters
    input_s: float = 0.0  # to fetch one sample
    factors: dict[str, float] = {}  # learned from measured plans: kind of plan (or ALL_KINDS) -> measured / predicted


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A model with its data and optimiser, as far as they matter for planning."""

    layers: tuple[Layer, ...]
    batch_size: int
    samples: int = 0  # of an epoch; 0: unknown
    sample_bytes: float = 0.0
    dtype: str = "float32"  # of the computation
    parameter_bytes: float = 4.0  # per parameter: the copy that computes
    gradient_bytes: float = 4.0
    state_bytes: float = 8.0  # of the optimiser, with master weights if there are any
    blocks: bool = True  # in pipeline stages recompute by block, not by whole stage
    tensor_limit: int = 1  # the largest tensor degree that divides all split layers
    batch_norm: int = 0  # layers with statistics over the batch
    working_bytes: float = 0.0  # largest temporary buffer of any layer, per sample
    limits: tuple[str, ...] = ()  # why some plans are impossible, in words
    copies_only: bool = False  # runs only in whole copies, because it has its own training loop
    exact: bool = True  # only plans with the results of one process
    calibration: Calibration | None = None

    @cached_property
    def parameters(self) -> int:  # cached: a search asks thousands of times
        return sum(layer.parameters for layer in self.layers)

    @cached_property
    def fixed_bytes(self) -> float:
        """Bytes of frozen weights and buffers."""
        return sum(layer.frozen_bytes + layer.buffer_bytes for layer in self.layers)

    @property
    def flops(self) -> float:
        """FLOPs of the forward pass of one sample."""
        return sum(layer.flops for layer in self.layers)


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device type, from a data sheet or measured."""

    name: str
    flops_per_s: dict[str, float]  # peak by dtype
    efficiency: float = 0.5  # fraction of the peak that large matrix products reach
    memory_bytes: float
    memory_bytes_per_s: float
    launch_s: float = 5e-6  # to launch one operation
    overlap: float = 0.8  # fraction of the computing time that can hide communication
    backend: str = "nccl"
    step_s: float = 0.0  # fixed cost of each exchange of a step: waking up, copying, bookkeeping
    message_s: float = 0.0  # CPU time per message of an exchange, if the computing cores also send
    byte_s: float = 0.0  # CPU time per byte sent
    loop_s: float = 0.0  # CPU time of a step besides computing: choosing samples, bookkeeping
    microbatch_s: float = 0.0  # overhead of a pipeline stage per micro-batch
    gathers: float = 0.0  # copies of the whole state on a worker when a distributed model hands over its state
    factors: dict[str, float] = {}  # default corrections until some are learned: kind -> factor

    def flops(self, dtype: str) -> float:
        """Peak FLOP/s for ``dtype``; unnamed types count as float32."""
        return self.flops_per_s.get(dtype) or self.flops_per_s["float32"]


class Link(msgspec.Struct, frozen=True):
    """A link between two workers: a message takes ``latency_s`` + bytes / ``bytes_per_s`` (α and 1/β)."""

    latency_s: float
    bytes_per_s: float


class Seat(msgspec.Struct, frozen=True):
    """The place of a worker: device type, node and speed."""

    device: str
    node: str
    speed: float = 1.0  # relative to its device type: a quota, a slower clock, a busy neighbour
    path: tuple[str, ...] = ()  # domains around the node, from the widest to the narrowest


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The workers that a training may use. ``links[level]``: 0 within a node, 1 between nodes of one domain, ...

    Each device has its own link within a node; all devices of a node share its wider links.
    """

    devices: dict[str, Device]
    seats: tuple[Seat, ...]
    links: tuple[Link, ...]
    cores: dict[str, float] = {}  # by node, if its workers share cores; a worker uses at most one
    period_s: float = 0.0  # period of CPU quotas: a worker that waited then runs at full speed

    def __post_init__(self) -> None:
        unknown = sorted({seat.device for seat in self.seats} - set(self.devices))
        if unknown or not self.seats or not self.links:
            what = f"unknown devices: {', '.join(unknown)}" if unknown else "there are no workers or no links"
            raise InvalidSpec(what, field="hardware", fix=f"use one of: {', '.join(sorted(self.devices))}")

    def device(self, worker: int) -> Device:
        return self.devices[self.seats[worker].device]

    def speed(self, worker: int, busy_on_node: int = 1) -> float:
        """Speed of this worker while ``busy_on_node`` workers of its node are active."""
        seat = self.seats[worker]
        cores = self.cores.get(seat.node)
        return seat.speed if cores is None else min(seat.speed, cores / max(1, busy_on_node))

    def level(self, workers: Sequence[int]) -> int:
        """The widest topology level that these workers cross, limited to the known links."""
        seats = [self.seats[worker] for worker in workers]
        if len({seat.node for seat in seats}) <= 1:
            return 0
        depth = max(len(seat.path) for seat in seats)
        common = 0
        for steps in zip(*{seat.path for seat in seats}, strict=False):
            if len(set(steps)) > 1:
                break
            common += 1
        return min(1 + depth - common, len(self.links) - 1)


def correction(model: ModelProfile, devices: Iterable[Device], kind: str) -> float:
    """How many times slower plans of this kind are than predicted: learned, else the devices' default."""
    known = model.calibration.factors if model.calibration else {}
    usual = max((prod(device.factors.get(part, 1.0) for part in kind.split("+")) for device in devices), default=1.0)
    return known.get(ALL_KINDS, 1.0) * (1.0 if kind == ALL_KINDS else known.get(kind, usual))


def to_plain(profile: ModelProfile | Hardware | Calibration) -> dict[str, Any]:
    """The profile as plain values, for files and messages."""
    plain: dict[str, Any] = msgspec.to_builtins(profile)
    return plain


def model_from(plain: Mapping[str, Any]) -> ModelProfile:
    return _read(plain, ModelProfile)


def device_from(plain: Mapping[str, Any]) -> Device:
    return _read(plain, Device)


def _read(plain: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(dict(plain), kind)
    except msgspec.ValidationError as error:
        raise InvalidSpec(f"is not a profile: {error}", field=kind.__name__) from None
