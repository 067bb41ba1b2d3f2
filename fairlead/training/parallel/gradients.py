"""The gradients of all workers summed in one flat buffer, with a few words along for the ride.

One all-reduce per step and dtype beats many small ones for models of this size (measured).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from fairlead.planning.plan import Compression
from fairlead.training import step_flags
from fairlead.training.parallel.compression import smaller
from fairlead.training.step_flags import GroupFlags, RankFlags


class Ranks(Protocol):
    """Those who share a batch: all ranks of a generation, or some of them."""

    rank: int
    size: int
    device: torch.device

    def sum(self, tensor: torch.Tensor) -> None:
        """Sum over all of them, in place."""

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same-shaped tensors of all of them, stacked in rank order."""


class FlatGradients:
    """Puts gradients into the buffer, sums them over the group and hands them back as views of it.

    A parameter without a gradient on every worker stays without one, as in a single process: an optimizer with weight
    decay must not touch it. So every parameter has a word in the buffer that says whether anybody has a gradient.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], group: Ranks, compression: Compression = "none") -> None:
        self._group = group
        self._smaller = smaller(compression)
        self._parameters = [p for p in parameters if p.requires_grad]
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for parameter in self._parameters:
            by_dtype.setdefault(parameter.dtype, []).append(parameter)
        wide = max(by_dtype, key=lambda dtype: torch.finfo(dtype).bits, default=torch.float32)
        if torch.finfo(wide).bits < 32:
            wide = torch.float32  # counts and the loss need more digits than half precision has
        by_dtype.setdefault(wide, [])
        self._said = step_flags.count(group.size)
        self._buffers: list[torch.Tensor] = []
        self._gradients: list[torch.Tensor] = []  # the buffers without the words
        self._views: dict[torch.Tensor, torch.Tensor] = {}
        for dtype, members in by_dtype.items():
            extra = self._said + len(self._parameters) if dtype is wide else 0
            buffer = torch.zeros(extra + sum(p.numel() for p in members), dtype=dtype, device=group.device)
            self._buffers.append(buffer)
            self._gradients.append(buffer[extra:])
            if extra:
                self._words = buffer[:extra]
            self._cut(buffer, extra, members)

    def _cut(self, buffer: torch.Tensor, start: int, members: Sequence[torch.Tensor]) -> None:
        for parameter in members:
            self._views[parameter] = buffer[start : start + parameter.numel()].view(parameter.shape)
            start += parameter.numel()

    def exchange(self, word: RankFlags) -> GroupFlags:
        """Sum gradients and words over all workers; afterwards ``p.grad`` is everybody's."""
        has = [p.grad is not None for p in self._parameters]
        said = step_flags.pack(word, self._group.rank, self._group.size)
        self._words.copy_(torch.tensor([*said, *map(float, has)], dtype=torch.float64))
        present = [p for p, own in zip(self._parameters, has, strict=True) if own]
        absent = [self._views[p] for p, own in zip(self._parameters, has, strict=True) if not own]
        if present:
            torch._foreach_copy_([self._views[p] for p in present], [p.grad for p in present if p.grad is not None])
        if absent:
            torch._foreach_zero_(absent)
        self._sum()
        heard = self._words.tolist()
        for parameter, holders in zip(self._parameters, heard[self._said :], strict=True):
            parameter.grad = self._views[parameter] if holders > 0 else None
        return step_flags.unpack(heard[: self._said], self._group.size)

    def _sum(self) -> None:
        if self._smaller is None:
            for buffer in self._buffers:
                self._group.sum(buffer)
            return
        self._group.sum(self._words)  # counts and the loss are never rounded
        for gradients in self._gradients:
            self._smaller.sum(self._group, gradients)
