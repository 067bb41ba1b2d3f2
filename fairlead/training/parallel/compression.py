"""Compresses gradients for an all-reduce: to bf16, or to int8 with error feedback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from fairlead.planning.plan import Compression

if TYPE_CHECKING:
    from fairlead.training.parallel.gradients import Ranks


class CompressedSum(Protocol):
    """An all-reduce that sends fewer bytes."""

    def sum(self, ranks: Ranks, tensor: torch.Tensor) -> None: ...


class Bf16Sum:
    """Sends bfloat16: the range of float32 with fewer digits."""

    def sum(self, ranks: Ranks, tensor: torch.Tensor) -> None:
        half = tensor.to(torch.bfloat16)
        ranks.sum(half)
        tensor.copy_(half)


class Int8Sum:
    """Sends integers from -127 to 127 and one scale; the rounding error is added to the next step's gradient."""

    def __init__(self) -> None:
        self._residuals: dict[int, torch.Tensor] = {}

    def sum(self, ranks: Ranks, tensor: torch.Tensor) -> None:
        key = tensor.data_ptr()
        wanted = tensor + self._residuals[key] if key in self._residuals else tensor.clone()
        scale = (wanted.abs().max() / 127).clamp(min=torch.finfo(tensor.dtype).tiny)
        sent = (wanted / scale).round().to(torch.int8)
        self._residuals[key] = wanted - sent.to(tensor.dtype) * scale
        scales = ranks.gather(scale.reshape(1))
        every = ranks.gather(sent)
        tensor.copy_((every.to(tensor.dtype) * scales).sum(0))


def make_compression(compression: Compression) -> CompressedSum | None:
    """The compression that the plan names; None: gradients are sent as they are."""
    return {"none": lambda: None, "bf16": Bf16Sum, "int8": Int8Sum}[compression]()
