"""Split layers: linear layers, embeddings, convolutions and attention of which each rank holds a part.

Plain tensors and one or two sums per pair of layers (Megatron's way), so they can be traced into pipeline stages and
sharded by FSDP2. Convolutions are right, which DTensor computes wrongly without an error (measured).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd

from fairlead.errors import InvalidSpec
from fairlead.planning.plan import Split
from fairlead.training.parallel.attention_heads import attend, why_not_split
from fairlead.training.parallel.gradients import Ranks
from fairlead.training.parallel.tensor_collectives import Kind, TensorCollective, run_collective


@dataclass(frozen=True, slots=True)
class ParameterSlice:
    """How a parameter is divided: equal parts along a dimension, of each of ``blocks`` blocks (q, k and v)."""

    shape: torch.Size  # of the whole
    parts: int
    dim: int = 0
    blocks: int = 1

    def part(self, whole: torch.Tensor, at: int) -> torch.Tensor:
        blocks = whole.chunk(self.blocks, self.dim)
        return torch.cat([block.chunk(self.parts, self.dim)[at] for block in blocks], self.dim)

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The whole, from all ranks' parts in their order."""
        pieces = [part.chunk(self.blocks, self.dim) for part in parts]
        return torch.cat([piece[block] for block in range(self.blocks) for piece in pieces], self.dim)

    def runs(self, at: int, start: int, length: int) -> Iterator[tuple[int, int, int]]:
        """Where rows ``start`` to ``start + length`` of a rank's part lie: (in the whole, in the part, count)."""
        each = self.shape[self.dim] // self.blocks // self.parts
        for block in range(self.blocks):
            first, last = max(start, block * each), min(start + length, (block + 1) * each)
            if first < last:
                yield (block * self.parts + at) * each + first - block * each, first, last - first


def cut_layer(name: str, module: nn.Module, how: Split, axis: Ranks) -> None:
    """Replace a layer by this rank's part of it; its collectives are not enabled yet."""
    kind = next((kind for kind in _KINDS if isinstance(module, kind)), None)
    cut = _CUT_RULES.get((kind, how)) if kind is not None else None
    wrong = _why_not_cut(module, how) if cut is not None else "which cannot be cut so"
    if cut is None or wrong:
        raise InvalidSpec(
            f"{name} is a {type(module).__name__}, {wrong} ({how})", field="plan.splits",
            fix="cut linear layers and convolutions by column or row, embeddings by vocabulary, attention by heads",
        )  # fmt: skip
    slices: dict[str, ParameterSlice] = {}
    for path, (dim, blocks) in cut.pieces.items():
        owner, _, last = path.rpartition(".")
        holder = module.get_submodule(owner)
        whole: nn.Parameter | None = getattr(holder, last)
        if whole is None:
            continue
        if whole.shape[dim] % (blocks * axis.size):
            raise InvalidSpec(
                f"{name}.{path} has {whole.shape[dim] // blocks} rows or columns, not divisible by {axis.size} ranks",
                field="plan.splits", fix="choose a tensor degree that divides them",
            )  # fmt: skip
        slices[path] = ParameterSlice(whole.shape, axis.size, dim, blocks)
        own = slices[path].part(whole.detach(), axis.rank).clone()
        holder.register_parameter(last, nn.Parameter(own, requires_grad=whole.requires_grad))
    for each in cut.collectives:
        module.add_module(each, TensorCollective(axis, each))
    if isinstance(module, nn.MultiheadAttention):
        module._qkv_same_embed_dim = (
            False  # else an enclosing layer would pass its weights to a kernel as if they were whole
        )
    module.slices = slices  # type: ignore[assignment]
    module.forward = partial(cut.forward, module, axis)


def slices_of(model: nn.Module) -> dict[str, ParameterSlice]:
    """All parameters of which this rank holds a part, by name."""
    return {
        f"{name}.{path}" if name else path: piece
        for name, module in model.named_modules()
        for path, piece in module.__dict__.get("slices", {}).items()
    }


def _why_not_cut(module: nn.Module, how: Split) -> str:
    if isinstance(module, _ConvNd) and (module.groups > 1 or module.transposed):
        return "with groups or transposed, which is not cut"
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
        return "which needs all of its rows"
    return why_not_split(module) if isinstance(module, nn.MultiheadAttention) else ""


# ---------------------------------------------------------------- forward passes


def _column(module: nn.Module, axis: Ranks, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = type(module).forward(module, run_collective(module, "enter", x))
    return result


def _column_gathered(module: nn.Module, axis: Ranks, x: torch.Tensor) -> torch.Tensor:
    return run_collective(module, "gather", _column(module, axis, x))


def _row_linear(module: nn.Linear, axis: Ranks, x: torch.Tensor) -> torch.Tensor:
    whole = run_collective(module, "sum", functional.linear(x, module.weight))
    return whole if module.bias is None else whole + module.bias


def _row_convolution(module: _ConvNd, axis: Ranks, x: torch.Tensor) -> torch.Tensor:
    whole = run_collective(module, "sum", module._conv_forward(x, module.weight, None))
    return whole if module.bias is None else whole + module.bias.view(-1, *[1] * (module.weight.dim() - 2))


def _vocabulary(module: nn.Embedding, axis: Ranks, tokens: torch.Tensor) -> torch.Tensor:
    rows = module.num_embeddings // axis.size
    local = tokens - axis.rank * rows
    foreign = (local < 0) | (local >= rows)
    found = functional.embedding(local.masked_fill(foreign, 0), module.weight)
    if module.padding_idx is not None:  # the padding row gets no gradient
        found = torch.where((tokens == module.padding_idx).unsqueeze(-1), found.detach(), found)
    return run_collective(module, "sum", found.masked_fill(foreign.unsqueeze(-1), 0.0))


def _embedding_gathered(module: nn.Embedding, axis: Ranks, tokens: torch.Tensor) -> torch.Tensor:
    found = functional.embedding(tokens, module.weight, module.padding_idx)
    return run_collective(module, "gather", found)


@dataclass(frozen=True, slots=True)
class _CutRule:
    """How to cut a layer: its parameters (dimension and blocks), its collectives, and its forward pass."""

    pieces: dict[str, tuple[int, int]]
    collectives: tuple[Kind, ...]
    forward: Callable[..., torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]]


_KINDS = (nn.Linear, _ConvNd, nn.Embedding, nn.MultiheadAttention)
_BOTH, _ROWS, _COLUMNS = {"weight": (0, 1), "bias": (0, 1)}, {"weight": (0, 1)}, {"weight": (1, 1)}
_HEADS = {"in_proj_weight": (0, 3), "in_proj_bias": (0, 3), "out_proj.weight": (1, 1)}
_CUT_RULES: dict[tuple[type, Split], _CutRule] = {
    (nn.Linear, "column"): _CutRule(_BOTH, ("enter",), _column),
    (nn.Linear, "column-gathered"): _CutRule(_BOTH, ("enter", "gather"), _column_gathered),
    (nn.Linear, "row"): _CutRule(_COLUMNS, ("sum",), _row_linear),
    (_ConvNd, "column"): _CutRule(_BOTH, ("enter",), _column),
    (_ConvNd, "row"): _CutRule(_COLUMNS, ("sum",), _row_convolution),
    (nn.Embedding, "vocabulary"): _CutRule(_ROWS, ("sum",), _vocabulary),
    (nn.Embedding, "column-gathered"): _CutRule(_COLUMNS, ("gather",), _embedding_gathered),
    (nn.MultiheadAttention, "heads"): _CutRule(_HEADS, ("enter", "sum"), attend),
}
