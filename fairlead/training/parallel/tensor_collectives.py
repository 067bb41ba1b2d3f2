"""Collectives within split layers: what the ranks of a tensor group sum or gather, forward and backward."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import torch

from fairlead.training.parallel.gradients import Ranks

Kind = Literal["enter", "sum", "gather"]


class TensorCollective(torch.nn.Module):
    """A collective at a point of the model. Until it is enabled it does nothing, so that the model can be traced.

    ``enter``: the input is the same on all ranks, so gradients are summed backward. ``sum``: outputs are added up.
    ``gather``: outputs are joined along the last dimension.
    """

    def __init__(self, axis: Ranks, kind: Kind) -> None:
        super().__init__()
        self.axis, self.kind, self.enabled = axis, kind, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.enabled:
            joined: torch.Tensor = _JOIN[self.kind](x, self.axis)
            return joined
        # A placeholder of the same shape: an operation, because a trace drops modules that do nothing.
        return torch.cat([x] * self.axis.size, -1) if self.kind == "gather" else x.clone()


def run_collective(module: torch.nn.Module, kind: Kind, x: torch.Tensor) -> torch.Tensor:
    """Run this collective of a layer."""
    met: torch.Tensor = module.get_submodule(kind)(x)
    return met


def enable_collectives(model: torch.nn.Module) -> None:
    """From now on the collectives of this model communicate."""
    for module in model.modules():
        if isinstance(module, TensorCollective):
            module.enabled = True


def insert_collectives(stage: torch.nn.Module, collectives: dict[str, TensorCollective]) -> None:
    """Put the collectives into a stage whose trace holds their placeholders (``x@1`` is a second call of ``x``)."""
    for name, _ in list(stage.named_modules()):
        collective = collectives.get(re.sub(r"@\d+", "", name))
        if collective is not None:
            stage.set_submodule(name, collective)
    enable_collectives(stage)


def collectives_of(model: torch.nn.Module) -> dict[str, TensorCollective]:
    return {name: module for name, module in model.named_modules() if isinstance(module, TensorCollective)}


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Ranks) -> torch.Tensor:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grads[0].clone(memory_format=torch.contiguous_format)
        ctx.axis.sum(grad)
        return grad, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Ranks) -> torch.Tensor:
        whole = x.clone(memory_format=torch.contiguous_format)
        axis.sum(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Ranks) -> torch.Tensor:
        ctx.axis = axis
        return torch.cat(list(axis.gather(x).unbind(0)), -1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0].chunk(ctx.axis.size, -1)[ctx.axis.rank].contiguous(), None


_JOIN: dict[Kind, Callable[..., Any]] = {"enter": _Enter.apply, "sum": _Sum.apply, "gather": _Gather.apply}
