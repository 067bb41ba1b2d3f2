"""Traces one forward pass per unit of the model: FLOPs, kept activations, operations, sizes of layers."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


@dataclass(slots=True)
class Record:
    """Measurements of one unit: from its start until the next unit starts."""

    flops: float = 0.0
    kept: list[float] = field(default_factory=list)  # bytes of each storage that autograd keeps
    kernels: int = 0
    output_bytes: float = 0.0
    seconds: float = 0.0

    @property
    def kept_bytes(self) -> float:
        return sum(self.kept)


@dataclass(slots=True)
class ForwardTrace:
    """Records of all units by name; bytes in, bytes out and FLOPs of selected layers."""

    units: dict[str, Record] = field(default_factory=dict)
    layers: dict[str, tuple[float, float, float]] = field(default_factory=dict)


def trace_forward(
    model: nn.Module, units: Sequence[str], layers: Sequence[str], run: Callable[[], Any]
) -> ForwardTrace:
    """Run a forward pass (on any device, also meta) and record what each unit does."""
    seen = ForwardTrace({name: Record() for name in units})
    current = [units[0]]
    counter = FlopCounterMode(display=False)
    flops_before = [0.0]
    starts: dict[str, float] = {}

    def turn(name: str) -> None:
        total = float(counter.get_total_flops())
        seen.units[current[0]].flops += total - flops_before[0]
        flops_before[0], current[0] = total, name

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: turn(name)

    def leave(name: str) -> Callable[..., None]:
        def note(_module: nn.Module, _given: Any, result: Any) -> None:
            seen.units[name].output_bytes = sum(size_of(tensor) for tensor in tensors(result))

        return note

    def begin(name: str) -> Callable[..., None]:
        return lambda *_: starts.__setitem__(name, float(counter.get_total_flops()))

    def measure(name: str) -> Callable[..., None]:
        def note(_module: nn.Module, given: Any, result: Any) -> None:
            came, went = (sum(size_of(tensor) for tensor in tensors(each)) for each in (given, result))
            seen.layers[name] = (came, went, float(counter.get_total_flops()) - starts[name])

        return note

    with ExitStack() as stack:
        for name in units:
            module = model.get_submodule(name)
            stack.enter_context(_hook(module.register_forward_pre_hook(enter(name))))
            stack.enter_context(_hook(module.register_forward_hook(leave(name))))
        for name in layers:
            module = model.get_submodule(name)
            stack.enter_context(_hook(module.register_forward_pre_hook(begin(name))))
            stack.enter_context(_hook(module.register_forward_hook(measure(name))))
        stack.enter_context(_kept(model, seen, current))
        stack.enter_context(_Kernels(seen, current))
        stack.enter_context(counter)
        run()
        turn(current[0])
    return seen


def unit_seconds(model: nn.Module, units: Sequence[str], run: Callable[[], Any]) -> list[float]:
    """CPU time of each unit in a real forward pass: from its start until the next unit starts."""
    spent = dict.fromkeys(units, 0.0)
    current, since = [units[0]], [0.0]

    def enter(name: str) -> Callable[..., None]:
        def note(*_: Any) -> None:
            now = time.process_time()
            spent[current[0]] += now - since[0]
            current[0], since[0] = name, now

        return note

    with ExitStack() as stack:
        for name in units:
            stack.enter_context(_hook(model.get_submodule(name).register_forward_pre_hook(enter(name))))
        since[0] = time.process_time()
        run()
        spent[current[0]] += time.process_time() - since[0]
    return [spent[name] for name in units]


@contextmanager
def _hook(handle: Any) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _kept(model: nn.Module, seen: ForwardTrace, current: list[str]) -> Iterator[None]:
    """Record the bytes that autograd keeps for the backward pass, each storage once, without the parameters."""
    known = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    alive: list[Any] = []  # keeps storages alive: a freed one's id could be used again

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            known.add(storage._cdata)
            alive.append(storage)
            seen.units[current[0]].kept.append(float(storage.nbytes()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


def peak_activation_bytes(model: nn.Module, run: Callable[[], Any]) -> float:
    """The peak memory of a forward and backward pass, besides parameters and their gradients."""
    scale = PeakMemory([*model.parameters(), *model.buffers()])

    def forget(parameter: torch.Tensor) -> None:
        parameter.grad = None

    with ExitStack() as stack:
        for parameter in model.parameters():
            if parameter.requires_grad:
                handle = parameter.register_post_accumulate_grad_hook(forget)  # type: ignore[no-untyped-call]
                stack.enter_context(_hook(handle))
        stack.enter_context(scale)
        ends = [tensor.sum() for tensor in tensors(run()) if tensor.requires_grad]
        torch.autograd.backward(ends)
    return float(scale.peak)


class PeakMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the storages of all tensors that operations return, each while it lives; leaves out ``besides``."""

    def __init__(self, besides: Sequence[torch.Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._alive: dict[int, Any] = {id(tensor.untyped_storage()): tensor for tensor in besides}
        shapes = [tuple(tensor.shape) for tensor in besides]
        self._besides = {*shapes, *(shape[::-1] for shape in shapes)}  # gradients of these are no activations, either

    def put(self, value: Any) -> None:
        for tensor in tensors(value):
            if id(tensor.untyped_storage()) not in self._alive and tuple(tensor.shape) not in self._besides:
                self._weigh(tensor.untyped_storage())

    def _weigh(self, storage: torch.UntypedStorage) -> None:
        size, key = storage.nbytes(), id(storage)

        def gone(_: object) -> None:
            self.now -= size
            del self._alive[key]

        self._alive[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.put(result)
        return result


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations that compute; views cost next to nothing."""

    def __init__(self, seen: ForwardTrace, current: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen, self._current = seen, current

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self._seen.units[self._current[0]].kernels += 1
        return func(*args, **(kwargs or {}))


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in a nested output."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for each in value for tensor in tensors(each)] if isinstance(value, list | tuple) else []


def size_of(tensor: torch.Tensor) -> float:
    return float(tensor.numel() * tensor.element_size())
