"""Finds layers that tensor parallelism can split: pairs of linear layers or convolutions, heads, large tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from fairlead.planning.plan import Split
from fairlead.profiling.called_layers import LayerCalls, watch_calls
from fairlead.profiling.split_trials import SplitGroup, find_split_groups
from fairlead.training.parallel.attention_heads import why_not_split

LARGE_TABLE = 100_000
"""Parameters from which on it pays to split an embedding, or a linear layer on its own."""

_POINTWISE = (
    nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Dropout, nn.Identity, nn.LeakyReLU, nn.ELU, nn.Softplus,
    nn.Hardswish, nn.ReLU6, nn.Mish,
)  # fmt: skip
"""Work on each number by itself, so a layer's outputs may be divided among workers."""

_BY_CHANNEL = (
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Dropout2d, nn.Upsample, nn.ZeroPad2d,
)  # fmt: skip
"""Work on each channel by itself. Not batch norm: its statistics would be divided among workers."""


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """A layer, how to split it, and the width that the tensor degree must divide."""

    name: str
    how: Split
    width: int


def find_splits(model: nn.Module, inputs: Sequence[torch.Tensor]) -> list[LayerSplit]:
    """All splits in the order of the model: by its structure where that is what runs, else by trying its blocks.

    Layers whose weights are used elsewhere stay whole: by another layer, or by code that does not call them.
    """
    calls = watch_calls(model, inputs)
    found: dict[str, LayerSplit] = {}
    for group in _groups(model, inputs, calls):
        layers = [cut.name for cut in group if not _only_counts(model, cut)]
        if all(calls.owns_weights(name) for name in layers) and not any(cut.name in found for cut in group):
            found |= {cut.name: cut for cut in group}
    order = {name: place for place, (name, _) in enumerate(model.named_modules())}
    return sorted(found.values(), key=lambda cut: order[cut.name])


def try_splits(model: nn.Module, inputs: Sequence[torch.Tensor]) -> tuple[list[LayerSplit], str]:
    """The splits, or none and the reason: a model whose analysis fails still runs as copies."""
    try:
        return find_splits(model, inputs), ""
    except Exception as error:  # noqa: BLE001 (any error of user code means that its layers stay whole)
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        return [], f"its layers stay whole, because their analysis failed: {reason}"


def _groups(model: nn.Module, inputs: Sequence[torch.Tensor], calls: LayerCalls) -> Iterator[list[LayerSplit]]:
    """Layers that are split together or not at all."""
    modules = dict(model.named_modules())
    for name, module in modules.items():
        if calls.is_unmodified(name):
            yield from _within(name, module, calls)
    for name, module in modules.items():
        if type(module) is nn.MultiheadAttention and calls.is_unmodified(name) and not why_not_split(module):
            yield [LayerSplit(name, "heads", module.num_heads)]
    for name, each in find_split_groups(model, inputs, calls).items():
        yield from (list(_tried(name, one)) for one in each)
    for name, module in modules.items():
        if type(module) is nn.Embedding and module.weight.numel() >= LARGE_TABLE:
            if module.max_norm is None and not module.sparse and not module.scale_grad_by_freq:
                yield [LayerSplit(name, "vocabulary", module.num_embeddings)]
        elif type(module) is nn.Linear and module.weight.numel() >= LARGE_TABLE * 10:
            yield [LayerSplit(name, "column-gathered", module.out_features)]


def degree_limit(cuts: list[LayerSplit]) -> int:
    """The largest number of workers that divides all of them evenly."""
    return math.gcd(*(cut.width for cut in cuts)) if cuts else 1


def _only_counts(model: nn.Module, cut: LayerSplit) -> bool:
    """Whether it only divides a block's number of heads, while its layers have splits of their own."""
    return cut.how == "heads" and type(model.get_submodule(cut.name)) is not nn.MultiheadAttention


def _within(name: str, module: nn.Module, calls: LayerCalls) -> Iterator[list[LayerSplit]]:
    prefix = f"{name}." if name else ""
    if type(module) is nn.Sequential:
        for kind, between in ((nn.Linear, _POINTWISE), (nn.Conv2d, _POINTWISE + _BY_CHANNEL)):
            yield from _in_sequence(prefix, module, kind, between, calls)


def _in_sequence(
    prefix: str, module: nn.Sequential, kind: type[nn.Linear] | type[nn.Conv2d], between: tuple[type[nn.Module], ...],
    calls: LayerCalls,
) -> Iterator[list[LayerSplit]]:  # fmt: skip
    """Pairs of such layers with nothing between them that mixes or reads the channels."""
    first: tuple[str, nn.Module] | None = None
    for key, child in module.named_children():
        name = f"{prefix}{key}"
        if not calls.called_by_parent_only(name):
            first = None
        elif type(child) is kind and _even(child):
            if first is None:
                first = (name, child)
            else:
                yield _pair(*first, name)
                first = None
        elif type(child) not in between:
            first = None


def _even(layer: nn.Module) -> bool:
    """Convolutions only with many channels: for others the exchanges cost more than they save."""
    return not isinstance(layer, nn.Conv2d) or (layer.groups == 1 and layer.out_channels % 8 == 0)


def _tried(block: str, one: SplitGroup) -> Iterator[LayerSplit]:
    prefix = f"{block}." if block else ""
    yield from (LayerSplit(f"{prefix}{name}", "column", one.width) for name in one.left)
    yield LayerSplit(f"{prefix}{one.right}", "row", one.width)
    if one.counts and block:
        yield LayerSplit(block, "heads", one.width)


def _pair(left: str, layer: nn.Module, right: str) -> list[LayerSplit]:
    width = next(layer.parameters()).shape[0]
    return [LayerSplit(left, "column", width), LayerSplit(right, "row", width)]
