"""Attention heads divided over a tensor group: computes as nn.MultiheadAttention does, on this rank's weights."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from fairlead.training.parallel.gradients import Ranks
from fairlead.training.parallel.tensor_collectives import run_collective


def why_not_split(module: nn.MultiheadAttention) -> str:
    """Why the heads cannot be divided among ranks; empty if they can."""
    if not module._qkv_same_embed_dim:
        return "whose keys or values have a width of their own"
    return "with rows added to keys or values" if module.bias_k is not None or module.add_zero_attn else ""


def attend(
    module: nn.MultiheadAttention, axis: Ranks, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    key_padding_mask: torch.Tensor | None = None, need_weights: bool = True, attn_mask: torch.Tensor | None = None,
    average_attn_weights: bool = True, is_causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """The forward pass of the module. ``is_causal`` is ignored: torch passes it only together with a mask."""
    heads = module.num_heads // axis.size
    q, k, v = (_by_heads(each, heads) for each in _projected(module, query, key, value))
    mask = _mask(module, axis, attn_mask, key_padding_mask, q)
    dropout = module.dropout if module.training else 0.0
    if need_weights:
        mixed, weights = _with_weights(q, k, v, mask, dropout)
        weights = _of_all(module, axis, weights, average_attn_weights)
    else:
        mixed, weights = functional.scaled_dot_product_attention(q, k, v, mask, dropout), None
    joined = mixed.transpose(1, 2).flatten(2)
    whole = run_collective(module, "sum", functional.linear(joined, module.out_proj.weight))
    whole = whole if module.out_proj.bias is None else whole + module.out_proj.bias
    return (whole if module.batch_first else whole.transpose(0, 1)), weights


def _projected(
    module: nn.MultiheadAttention, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of this rank's heads, with samples in the first dimension."""
    first = {
        id(each): run_collective(module, "enter", each if module.batch_first else each.transpose(0, 1))
        for each in (query, key, value)
    }
    if len(first) == 1:
        packed = functional.linear(first[id(query)], module.in_proj_weight, module.in_proj_bias)
        return packed.chunk(3, -1)
    weights = module.in_proj_weight.chunk(3)
    biases = [None] * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    given = (first[id(each)] for each in (query, key, value))
    return tuple(functional.linear(x, w, b) for x, w, b in zip(given, weights, biases, strict=True))


def _by_heads(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


def _mask(
    module: nn.MultiheadAttention, axis: Ranks, attn_mask: torch.Tensor | None, padding: torch.Tensor | None,
    q: torch.Tensor,
) -> torch.Tensor | None:  # fmt: skip
    """Both masks as one additive mask for this rank's heads."""
    mask = None if attn_mask is None else _added(attn_mask, q)
    if mask is not None and mask.dim() == 3:  # one mask per sample and head
        mask = mask.reshape(-1, module.num_heads, *mask.shape[1:]).chunk(axis.size, 1)[axis.rank]
    if padding is None:
        return mask
    padded = _added(padding, q)[:, None, None, :]
    return padded if mask is None else mask + padded


def _added(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, -math.inf)


def _with_weights(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, dropout: float
) -> tuple[torch.Tensor, torch.Tensor]:
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(2, 3)
    weights = torch.softmax(scores if mask is None else scores + mask, -1)
    if dropout > 0:  # drawn as torch draws it: samples and heads in one dimension
        weights = functional.dropout(weights.flatten(0, 1), dropout).view_as(weights)
    return weights @ v, weights


def _of_all(module: nn.MultiheadAttention, axis: Ranks, weights: torch.Tensor, average: bool) -> torch.Tensor:
    """The weights as the caller expects them: the mean over all heads, or those of every head."""
    if average:
        summed = run_collective(module, "sum", weights.sum(1))
        return summed / float(module.num_heads)
    around = weights.new_zeros(weights.shape[0], axis.rank * weights.shape[1], *weights.shape[2:])
    behind = weights.new_zeros(
        weights.shape[0], module.num_heads - (axis.rank + 1) * weights.shape[1], *weights.shape[2:]
    )
    return run_collective(module, "sum", torch.cat([around, weights, behind], 1))
