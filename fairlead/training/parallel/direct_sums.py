"""Small sums over few ranks: everybody sends to everybody once, which wakes far fewer threads than a ring does."""

from __future__ import annotations

import torch

MOST_BYTES = 1 << 18
"""That a rank sends to all others together. A ring sends less of a large tensor, but in 4 (n - 1) messages; with gloo
on two and four ranks a direct exchange took a third to a half of its cpu time up to here (measured)."""

_SUMMED = (torch.float32, torch.float64)


def suits(tensor: torch.Tensor, ranks: int) -> bool:
    """Whether this is better summed directly."""
    sent = (ranks - 1) * tensor.numel() * tensor.element_size()
    return tensor.device.type == "cpu" and tensor.dtype in _SUMMED and sent <= MOST_BYTES and tensor.is_contiguous()


def spread_out(tensor: torch.Tensor, ranks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Room for everybody's tensors, and this one as often as it is sent."""
    flat = tensor.view(1, -1)
    return flat.new_empty(ranks, flat.shape[1]), flat.repeat(ranks, 1)


def add_up(stacked: torch.Tensor, tensor: torch.Tensor) -> None:
    """The sum in rank order, so that all ranks come to the same bits."""
    torch.sum(stacked, 0, out=tensor.view(-1))
