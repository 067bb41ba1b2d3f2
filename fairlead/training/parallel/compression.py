"""Gradients made smaller on their way: half the bytes, or a quarter, with what was lost carried over."""

from __future__ import annotations

from typing import Protocol

import torch

from fairlead.planning.plan import Compression


class Ranks(Protocol):
    """Those between whom gradients are summed."""

    def sum(self, tensor: torch.Tensor) -> None: ...
    def gather(self, tensor: torch.Tensor) -> torch.Tensor: ...


class CompressedSum(Protocol):
    """A way to sum that sends fewer bytes."""

    def sum(self, ranks: Ranks, tensor: torch.Tensor) -> None: ...


class Bf16Sum:
    """As bfloat16: the range of float32 with fewer digits."""

    def sum(self, ranks: Ranks, tensor: torch.Tensor) -> None:
        half = tensor.to(torch.bfloat16)
        ranks.sum(half)
        tensor.copy_(half)


class Int8Sum:
    """As whole numbers from -127 to 127 and one scale; the rounding is added to the next step's gradient."""

    def __init__(self) -> None:
        self._lost: dict[int, torch.Tensor] = {}

    def sum(self, ranks: Ranks, tensor: torch.Tensor) -> None:
        key = tensor.data_ptr()
        wanted = tensor + self._lost[key] if key in self._lost else tensor.clone()
        scale = (wanted.abs().max() / 127).clamp(min=torch.finfo(tensor.dtype).tiny)
        sent = (wanted / scale).round().to(torch.int8)
        self._lost[key] = wanted - sent.to(tensor.dtype) * scale
        scales = ranks.gather(scale.reshape(1))
        every = ranks.gather(sent)
        tensor.copy_((every.to(tensor.dtype) * scales).sum(0))


def smaller(compression: Compression) -> CompressedSum | None:
    """The way that the plan names; None: as they are."""
    return {"none": lambda: None, "bf16": Bf16Sum, "int8": Int8Sum}[compression]()
