"""Layers that tensor parallelism may cut: pairs of linear layers or convolutions, attention heads, large tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fairlead.planning.plan import Split
from fairlead.profiling.trying import Found, shareable
from fairlead.training.heads import objection

LARGE_TABLE = 100_000
"""Parameters from which on an embedding, or a linear layer on its own, is worth cutting."""

_POINTWISE = (
    nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Dropout, nn.Identity, nn.LeakyReLU, nn.ELU, nn.Softplus,
    nn.Hardswish, nn.ReLU6, nn.Mish,
)  # fmt: skip
"""Work on each number by itself, so they do not mind that a layer's outputs lie on several workers."""

_BY_CHANNEL = (
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Dropout2d, nn.Upsample, nn.ZeroPad2d,
)  # fmt: skip
"""Work on each channel by itself. Not batch norm: its statistics would lie on several workers."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One layer, how it would be cut, and the width that the tensor degree must divide."""

    name: str
    how: Split
    width: int


def find_cuts(model: nn.Module, inputs: Sequence[torch.Tensor] | None = None) -> list[Cut]:
    """All of them, in the order of the model: by its structure, and with ``inputs`` also by trying its own blocks."""
    found: dict[str, Cut] = {}
    for name, module in model.named_modules():
        for cut in _within(name, module):
            found.setdefault(cut.name, cut)
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and not objection(module):
            found[name] = Cut(name, "heads", module.num_heads)
    for name, each in (shareable(model, inputs) if inputs is not None else {}).items():
        for cut in _tried(name, each):
            found.setdefault(cut.name, cut)
    for name, module in model.named_modules():
        if name not in found and isinstance(module, nn.Embedding) and module.weight.numel() >= LARGE_TABLE:
            if module.max_norm is None and not module.sparse and not module.scale_grad_by_freq:
                found[name] = Cut(name, "vocabulary", module.num_embeddings)
        elif name not in found and type(module) is nn.Linear and module.weight.numel() >= LARGE_TABLE * 10:
            found[name] = Cut(name, "column-gathered", module.out_features)
    order = {name: place for place, (name, _) in enumerate(model.named_modules())}
    return sorted(found.values(), key=lambda cut: order[cut.name])


def degree_limit(cuts: list[Cut]) -> int:
    """The largest number of workers by which all of them can be divided evenly."""
    return math.gcd(*(cut.width for cut in cuts)) if cuts else 1


def _within(name: str, module: nn.Module) -> Iterator[Cut]:
    prefix = f"{name}." if name else ""
    if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        yield from _pair(f"{prefix}linear1", module.linear1, f"{prefix}linear2")
    elif type(module) is nn.Sequential:
        for kind, between in ((nn.Linear, _POINTWISE), (nn.Conv2d, _POINTWISE + _BY_CHANNEL)):
            yield from _in_sequence(prefix, module, kind, between)


def _in_sequence(
    prefix: str, module: nn.Sequential, kind: type[nn.Linear] | type[nn.Conv2d], between: tuple[type[nn.Module], ...]
) -> Iterator[Cut]:
    """Pairs of such layers with nothing between them that would mix the channels."""
    first: tuple[str, nn.Module] | None = None
    for key, child in module.named_children():
        if type(child) is kind and _even(child):
            if first is None:
                first = (f"{prefix}{key}", child)
            else:
                yield from _pair(*first, f"{prefix}{key}")
                first = None
        elif not isinstance(child, between):
            first = None


def _even(layer: nn.Module) -> bool:
    """Of convolutions only those with many channels: the rest would cost more in exchanges than it saves."""
    return not isinstance(layer, nn.Conv2d) or (layer.groups == 1 and layer.out_channels % 8 == 0)


def _tried(block: str, found: Sequence[Found]) -> Iterator[Cut]:
    prefix = f"{block}." if block else ""
    for one in found:
        yield from (Cut(f"{prefix}{name}", "column", one.width) for name in one.left)
        yield Cut(f"{prefix}{one.right}", "row", one.width)
        if one.counts and block:
            yield Cut(block, "heads", one.width)


def _pair(left: str, layer: nn.Module, right: str) -> Iterator[Cut]:
    width = next(layer.parameters()).shape[0]
    yield Cut(left, "column", width)
    yield Cut(right, "row", width)
