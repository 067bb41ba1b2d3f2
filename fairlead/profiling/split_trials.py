"""Finds by trial whether ranks can divide the linear layers of a user's own block: attention heads, inner widths.

A block is run whole, and with half of some layers' outputs. If the layer behind them then gets exactly its half of the
whole input, nothing between them mixes the halves, whatever the code looks like.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from fairlead.planning.plan import HEADS
from fairlead.profiling.called_layers import LayerCalls
from fairlead.profiling.forward_trace import tensors
from fairlead.training.model_probe import preserving_buffers

NAMES = (
    (("q", "k", "v"), ("out", "o", "proj")), (("q_proj", "k_proj", "v_proj"), ("o_proj", "out_proj")),
    (("query", "key", "value"), ("out", "output", "dense")), (("wq", "wk", "wv"), ("wo",)),
    (("to_q", "to_k", "to_v"), ("to_out",)),
)  # fmt: skip
"""Usual names of attention layers: those in front, and the one behind."""

TRIES = (0, 1)
"""The halves: what holds for two parts holds for every divisor of the width, or of the heads."""


@dataclass(frozen=True, slots=True)
class SplitGroup:
    """Layers whose outputs may be divided, the layer behind them, and the width that the degree must divide."""

    left: tuple[str, ...]
    right: str
    width: int
    counts: bool = False  # the block's number of heads must be reduced


@dataclass(slots=True)
class _Call:
    """The arguments of a block's call, and inputs and outputs of its layers."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    came: dict[str, torch.Tensor]
    went: dict[str, Any]
    result: Any = None


def find_split_groups(
    model: nn.Module, inputs: Sequence[torch.Tensor], calls: LayerCalls
) -> dict[str, list[SplitGroup]]:
    """Split groups by block name. Every block is tried: two of one class may contain other functions."""
    blocks = {name: module for name, module in model.named_modules() if name in calls.called and _candidates(module)}
    if not blocks:
        return {}
    found: dict[str, list[SplitGroup]] = {}
    with preserving_buffers(model), torch.no_grad(), _as_in_training():
        model.eval()
        seen = _watch(model, blocks, inputs)
        for name, call in seen.items():
            known = [one for one in _candidates(blocks[name]) if _called_by(name, one, calls)]
            tries = (_tried(blocks[name], candidate, call) for candidate in known)
            found[name] = [one for one in tries if one is not None]
    return {name: each for name, each in found.items() if each}


@contextmanager
def _as_in_training() -> Iterator[None]:
    """Disable torch's fast path for transformers in eval mode, which does not call their layers."""
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


def _called_by(block: str, candidate: tuple[tuple[str, ...], str], calls: LayerCalls) -> bool:
    """Whether only the block itself calls these layers: only its own code is tried."""
    left, right = candidate
    return all(calls.called_by_parent_only(f"{block}.{name}" if block else name) for name in (*left, right))


def _linear(module: nn.Module) -> list[tuple[str, nn.Linear]]:
    return [(name, child) for name, child in module.named_children() if type(child) is nn.Linear]


def _candidates(module: nn.Module) -> list[tuple[tuple[str, ...], str]]:
    """Layers in front and the one behind them, by names or by widths that fit."""
    if type(module) is nn.Sequential:
        return []  # known by its structure
    layers = dict(_linear(module))
    found: list[tuple[tuple[str, ...], str]] = []
    for left, rights in NAMES:
        right = next((name for name in rights if name in layers), None)
        if right is not None and all(name in layers for name in left) and _heads(module):
            found.append((left, right))
    taken = {name for left, right in found for name in (*left, right)}
    free = [(name, layer) for name, layer in layers.items() if name not in taken]
    for (left_name, left_layer), (right_name, right_layer) in pairwise(free):
        if left_layer.out_features == right_layer.in_features and left_name not in taken:
            found.append(((left_name,), right_name))
            taken |= {left_name, right_name}
    return found


def _heads(module: nn.Module) -> dict[str, int]:
    return {name: value for name in HEADS if isinstance(value := getattr(module, name, None), int)}


def _watch(model: nn.Module, blocks: dict[str, nn.Module], inputs: Sequence[torch.Tensor]) -> dict[str, _Call]:
    """The first call of each block, with inputs and outputs of its layers."""
    calls: dict[str, _Call] = {}
    done: set[str] = set()

    def began(name: str) -> Any:
        return lambda _module, args, kwargs: calls.setdefault(name, _Call(args, kwargs, {}, {})) and None

    def passed(name: str, layer: str) -> Any:
        def note(_module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
            if name in calls and name not in done:
                calls[name].came.setdefault(layer, next(iter((*args, *kwargs.values()))))
                calls[name].went.setdefault(layer, result)

        return note

    def ended(name: str) -> Any:
        def note(_module: nn.Module, _args: Any, result: Any) -> None:
            if name not in done:
                calls[name].result = result
                done.add(name)

        return note

    with ExitStack() as stack:
        for name, block in blocks.items():
            hooks = [block.register_forward_pre_hook(began(name), with_kwargs=True)]
            hooks += [block.register_forward_hook(ended(name))]
            hooks += [
                child.register_forward_hook(passed(name, path), with_kwargs=True) for path, child in _linear(block)
            ]
            for hook in hooks:
                stack.callback(hook.remove)
        model(*inputs)
    return calls


def _tried(module: nn.Module, candidate: tuple[tuple[str, ...], str], call: _Call) -> SplitGroup | None:
    left, right = candidate
    if right not in call.came:
        return None
    heads = _heads(module) if len(left) > 1 else {}
    width = min(heads.values(), default=call.came[right].shape[-1])
    if width % len(TRIES):
        return None
    for counts in (False, True) if heads else (False,):
        if all(_same(module, left, right, call, at, counts) for at in TRIES):
            return SplitGroup(left, right, width, counts)
    return None


def _same(module: nn.Module, left: Sequence[str], right: str, call: _Call, at: int, counts: bool) -> bool:
    """Whether the layer behind gets exactly its half when the layers in front compute only theirs."""
    stop = _Stop(call.went[right])
    try:
        result = _halved(module, left, right, stop, at, counts)(*call.args, **call.kwargs)
    except Exception:  # noqa: BLE001 (an error of a halved block means that it relies on the whole width)
        return False
    pairs = [(stop.came, call.came[right].chunk(2, -1)[at])]
    given, expected = tensors(result), tensors(call.result)
    pairs += list(zip(given, expected, strict=False))  # and no other code has used the half
    return len(given) == len(expected) and all(
        own is not None and own.shape == each.shape and torch.allclose(own, each, 1e-4, 1e-6) for own, each in pairs
    )


def _halved(module: nn.Module, left: Sequence[str], right: str, stop: _Stop, at: int, counts: bool) -> nn.Module:
    """The block with half of the layers in front, and ``stop`` in place of the layer behind."""
    half = copy.deepcopy(module)
    for name in left:
        layer: nn.Linear = half.get_submodule(name)  # type: ignore[assignment]
        layer.weight = nn.Parameter(layer.weight.detach().chunk(2)[at])
        if layer.bias is not None:
            layer.bias = nn.Parameter(layer.bias.detach().chunk(2)[at])
    for name, value in _heads(module).items() if counts else ():
        setattr(half, name, value // 2)
    half.set_submodule(right, stop)
    return half.eval()


class _Stop(nn.Module):
    """Replaces the layer behind: records its input and returns the whole layer's output."""

    def __init__(self, answer: torch.Tensor) -> None:
        super().__init__()
        self._answer = answer
        self.came: torch.Tensor | None = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # as nn.Linear calls it
        self.came = input
        return self._answer
