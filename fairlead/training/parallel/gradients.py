"""Sums the gradients of all ranks in one flat buffer, together with the step flags.

One all-reduce per step and dtype is faster than many small ones for models of this size (measured).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from fairlead.planning.plan import Compression
from fairlead.training import step_flags
from fairlead.training.parallel.compression import make_compression
from fairlead.training.step_flags import GroupFlags, RankFlags


class Ranks(Protocol):
    """The ranks that share a batch: all of a generation, or some of them."""

    rank: int
    size: int
    device: torch.device

    def sum(self, tensor: torch.Tensor) -> None:
        """Sum over these ranks, in place."""

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same-shaped tensors of these ranks, stacked in rank order."""


class FlatGradients:
    """Copies gradients into the buffer, sums them over the group and hands them back as views of it.

    A parameter that has no gradient on any rank stays without one, as in a single process: an optimizer with weight
    decay must not touch it. So the buffer has one number per parameter that counts the ranks with a gradient.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], group: Ranks, compression: Compression = "none") -> None:
        self._group = group
        self._compression = make_compression(compression)
        self._parameters = [p for p in parameters if p.requires_grad]
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for parameter in self._parameters:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
        wide = max(by_dtype, key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32)
        if torch.finfo(wide).bits < 32:
            wide = torch.float32  # flags and the loss need more digits than half precision has
        by_dtype.setdefault(wide, [])
        self._flag_count = step_flags.flag_count(group.size)
        self._buffers: list[torch.Tensor] = []
        self._gradients: list[torch.Tensor] = []  # the buffers without the flags
        self._views: dict[torch.Tensor, torch.Tensor] = {}
        for dtype, members in by_dtype.items():
            extra = self._flag_count + len(self._parameters) if dtype is wide else 0
            buffer = torch.zeros(extra + sum(p.numel() for p in members), dtype=dtype, device=group.device)
            self._buffers.append(buffer)
            self._gradients.append(buffer[extra:])
            if extra:
                self._flags = buffer[:extra]
            self._cut(buffer, extra, members)

    def _cut(self, buffer: torch.Tensor, start: int, members: Sequence[torch.Tensor]) -> None:
        for parameter in members:
            self._views[parameter] = buffer[start : start + parameter.numel()].view(parameter.shape)
            start += parameter.numel()

    def exchange(self, own: RankFlags) -> GroupFlags:
        """Sum gradients and flags over all ranks; afterwards ``p.grad`` is the sum."""
        has = [p.grad is not None for p in self._parameters]
        packed = step_flags.pack(own, self._group.rank, self._group.size)
        self._flags.copy_(torch.tensor([*packed, *map(float, has)], dtype=torch.float64))
        present = [p for p, there in zip(self._parameters, has, strict=True) if there]
        absent = [self._views[p] for p, there in zip(self._parameters, has, strict=True) if not there]
        if present:
            torch._foreach_copy_([self._views[p] for p in present], [p.grad for p in present if p.grad is not None])
        if absent:
            torch._foreach_zero_(absent)
        self._sum()
        summed = self._flags.tolist()
        for parameter, holders in zip(self._parameters, summed[self._flag_count :], strict=True):
            parameter.grad = self._views[parameter] if holders > 0 else None
        return step_flags.unpack(summed[: self._flag_count], self._group.size)

    def _sum(self) -> None:
        if self._compression is None:
            for buffer in self._buffers:
                self._group.sum(buffer)
            return
        self._group.sum(self._flags)  # flags and the loss are never rounded
        for gradients in self._gradients:
            self._compression.sum(self._group, gradients)
