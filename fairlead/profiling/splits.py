"""Layers that tensor parallelism may cut: pairs of linear layers, embeddings, wide linear layers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from fairlead.planning.plan import Split

LARGE_TABLE = 100_000
"""Parameters from which on an embedding, or a linear layer on its own, is worth cutting."""

_POINTWISE = (
    nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Dropout, nn.Identity, nn.LeakyReLU, nn.ELU, nn.Softplus,
    nn.Hardswish, nn.ReLU6, nn.Mish,
)  # fmt: skip
"""Work on each number by itself, so they do not mind that a layer's outputs lie on several workers."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One layer, how it would be cut, and the width that the tensor degree must divide."""

    name: str
    how: Split
    width: int


def find_cuts(model: nn.Module) -> list[Cut]:
    """All of them, in the order of the model. Convolutions are left whole: DTensor computes them wrongly (measured)."""
    found: dict[str, Cut] = {}
    for name, module in model.named_modules():
        for cut in _within(name, module):
            found.setdefault(cut.name, cut)
    for name, module in model.named_modules():
        if name not in found and isinstance(module, nn.Embedding) and module.weight.numel() >= LARGE_TABLE:
            if module.padding_idx is None and module.max_norm is None and not module.sparse:
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
        first: tuple[str, nn.Linear] | None = None
        for key, child in module.named_children():
            if type(child) is nn.Linear:
                if first is None:
                    first = (f"{prefix}{key}", child)
                else:
                    yield from _pair(*first, f"{prefix}{key}")
                    first = None
            elif not isinstance(child, _POINTWISE):
                first = None


def _pair(left: str, layer: nn.Linear, right: str) -> Iterator[Cut]:
    yield Cut(left, "column", layer.out_features)
    yield Cut(right, "row", layer.out_features)
