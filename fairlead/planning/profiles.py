"""What the planner knows: a model layer by layer, the devices, where they sit, and the links between them."""

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
"""What all kinds of plans have in common in a correction: it changes no ranking."""


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the model that stays whole in a pipeline; figures are of the forward pass and of one sample."""

    name: str  # the submodule with which it begins
    parameters: int = 0  # that are trained
    frozen_bytes: float = 0.0  # of those that are not
    buffer_bytes: float = 0.0
    flops: float = 0.0
    activation_bytes: float = 0.0  # kept for the backward pass
    output_bytes: float = 0.0  # handed to the next layer
    kernels: int = 1  # operations that are started one by one
    seconds: float = 0.0  # measured on the reference device: its part of forward and backward; 0: not measured
    splits: tuple[tuple[str, Split], ...] = ()  # how tensor parallelism would cut it
    split_parameters: int = 0  # of ``parameters``: divided by tensor parallelism
    split_flops: float = 0.0
    split_activation_bytes: float = 0.0
    exchange_bytes: float = 0.0  # that a tensor group sums, in forward and backward together
    exchanges: int = 0  # in as many collectives
    group: int = 0  # computed again with all others of this number; 0: by itself; -1: never, it is kept


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What a few steps of this model took in one process on one device of this type."""

    device: str
    fixed_s: float  # forward and backward: per pass, however small the batch
    sample_s: float  # and per sample
    optimizer_s: float  # one step of the optimiser over all parameters
    input_s: float = 0.0  # to fetch one sample
    factors: dict[str, float] = {}  # learned from measured plans: kind of plan (or EVERY) -> measured / predicted


class ModelProfile(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A model with its data and optimiser, as far as they matter for how it is run."""

    layers: tuple[Layer, ...]
    batch_size: int
    samples: int = 0  # of an epoch; 0: unknown
    sample_bytes: float = 0.0
    dtype: str = "float32"  # of the computation
    parameter_bytes: float = 4.0  # per parameter: the copy that computes
    gradient_bytes: float = 4.0
    state_bytes: float = 8.0  # of the optimiser, with master weights if there are any
    blocks: bool = True  # recomputation goes block by block also within pipeline stages, not by whole stages
    tensor_limit: int = 1  # the largest tensor degree that divides all that is split
    batch_norm: int = 0  # layers with statistics over the batch
    working_bytes: float = 0.0  # the largest passing need of any layer, per sample
    limits: tuple[str, ...] = ()  # why it cannot be spread in some way, in words
    copies_only: bool = False  # it runs in whole copies only: it trains itself
    exact: bool = True  # only plans that keep the maths of one process
    calibration: Calibration | None = None

    @cached_property
    def parameters(self) -> int:  # asked for thousands of times in a search
        return sum(layer.parameters for layer in self.layers)

    @cached_property
    def fixed_bytes(self) -> float:
        """Of all that is held without being trained."""
        return sum(layer.frozen_bytes + layer.buffer_bytes for layer in self.layers)

    @property
    def flops(self) -> float:
        """Of the forward pass of one sample."""
        return sum(layer.flops for layer in self.layers)


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A type of device, or one that was measured."""

    name: str
    flops_per_s: dict[str, float]  # peak by dtype
    efficiency: float = 0.5  # of the peak that large matrix products reach
    memory_bytes: float
    memory_bytes_per_s: float
    launch_s: float = 5e-6  # to start one operation
    overlap: float = 0.8  # of the computing time that can hide communication
    backend: str = "nccl"
    step_s: float = 0.0  # what every exchange of a step costs besides its bytes: waking up, copying, bookkeeping
    message_s: float = 0.0  # cpu time of each message of an exchange, where the cores that compute also send
    byte_s: float = 0.0  # and of each byte sent
    loop_s: float = 0.0  # cpu time of a step besides computing: choosing samples, keeping count
    microbatch_s: float = 0.0  # what a stage of a pipeline costs per micro-batch besides computing
    gathers: float = 0.0  # copies of the whole state that a worker holds when a spread model hands over its state
    factors: dict[str, float] = {}  # what a way of running costs here on top, where nothing was learned: kind -> factor

    def flops(self, dtype: str) -> float:
        """Peak for computing in ``dtype``; types that it does not name run as float32."""
        return self.flops_per_s.get(dtype) or self.flops_per_s["float32"]


class Link(msgspec.Struct, frozen=True):
    """Between two workers: ``latency_s`` + bytes / ``bytes_per_s`` for each message (α and 1/β)."""

    latency_s: float
    bytes_per_s: float


class Seat(msgspec.Struct, frozen=True):
    """Where a worker would run."""

    device: str
    node: str
    speed: float = 1.0  # of its device, relative to what the type can do: a quota, a slower clock, a busy neighbour
    path: tuple[str, ...] = ()  # domains around the node, from the widest to the narrowest


class Hardware(msgspec.Struct, frozen=True, kw_only=True):
    """The workers that a training may use. ``links[level]``: 0 within a node, 1 between nodes of one domain, ...

    The link within a node is each device's own; a wider one is the whole node's, shared by all that leaves it.
    """

    devices: dict[str, Device]
    seats: tuple[Seat, ...]
    links: tuple[Link, ...]
    cores: dict[str, float] = {}  # of nodes whose workers share cores; a worker uses at most one
    period_s: float = 0.0  # speeds are quotas, given out anew so often: a worker that waited then runs at full speed

    def __post_init__(self) -> None:
        unknown = sorted({seat.device for seat in self.seats} - set(self.devices))
        if unknown or not self.seats or not self.links:
            what = f"nothing is known about {', '.join(unknown)}" if unknown else "there are no workers or no links"
            raise InvalidSpec(what, field="hardware", fix=f"use one of: {', '.join(sorted(self.devices))}")

    def device(self, worker: int) -> Device:
        return self.devices[self.seats[worker].device]

    def speed(self, worker: int, busy_on_node: int = 1) -> float:
        """Of this worker when so many of its node are at work."""
        seat = self.seats[worker]
        cores = self.cores.get(seat.node)
        return seat.speed if cores is None else min(seat.speed, cores / max(1, busy_on_node))

    def level(self, workers: Sequence[int]) -> int:
        """The widest level that these workers cross, no wider than there are links."""
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
    """By how much plans of this kind are slower than computed: as learned with this model, else as usual here."""
    known = model.calibration.factors if model.calibration else {}
    usual = max((prod(device.factors.get(part, 1.0) for part in kind.split("+")) for device in devices), default=1.0)
    return known.get(ALL_KINDS, 1.0) * (1.0 if kind == ALL_KINDS else known.get(kind, usual))


def to_plain(profile: ModelProfile | Hardware | Calibration) -> dict[str, Any]:
    """As plain values, for files and messages."""
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
