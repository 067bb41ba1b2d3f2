"""Where the parts of a cut layer meet: what the ranks of a tensor group sum or gather, forward and backward."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import torch

from fairlead.training.parallel.gradients import Ranks

Kind = Literal["enter", "sum", "gather"]


class TensorCollective(torch.nn.Module):
    """A place of a model at which its tensor group talks. It is silent until it is closed, so that it can be traced.

    ``enter``: what comes in is everybody's, so gradients are summed on the way back. ``sum``: outputs are added up.
    ``gather``: outputs are laid side by side, along the last dimension.
    """

    def __init__(self, side: Ranks, kind: Kind) -> None:
        super().__init__()
        self.side, self.kind, self.closed = side, kind, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.closed:
            joined: torch.Tensor = _JOIN[self.kind](x, self.side)
            return joined
        # A stand-in of the same shape: an operation, because a trace forgets modules that do nothing.
        return torch.cat([x] * self.side.size, -1) if self.kind == "gather" else x.clone()


def meet(module: torch.nn.Module, kind: Kind, x: torch.Tensor) -> torch.Tensor:
    """Let the ranks talk at this seam of a layer."""
    met: torch.Tensor = module.get_submodule(kind)(x)
    return met


def close(model: torch.nn.Module) -> None:
    """From now on the ranks talk at all seams of this model."""
    for module in model.modules():
        if isinstance(module, TensorCollective):
            module.closed = True


def close_traced(stage: torch.nn.Module, seams: dict[str, TensorCollective]) -> None:
    """Put the seams into a stage whose trace holds their stand-ins, under the same names (``x@1``: called again)."""
    for name, _ in list(stage.named_modules()):
        seam = seams.get(re.sub(r"@\d+", "", name))
        if seam is not None:
            stage.set_submodule(name, seam)
    close(stage)


def seams_of(model: torch.nn.Module) -> dict[str, TensorCollective]:
    return {name: module for name, module in model.named_modules() if isinstance(module, TensorCollective)}


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, side: Ranks) -> torch.Tensor:
        ctx.side = side
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grads[0].clone(memory_format=torch.contiguous_format)
        ctx.side.sum(grad)
        return grad, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, side: Ranks) -> torch.Tensor:
        whole = x.clone(memory_format=torch.contiguous_format)
        side.sum(whole)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, side: Ranks) -> torch.Tensor:
        ctx.side = side
        return torch.cat(list(side.gather(x).unbind(0)), -1)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0].chunk(ctx.side.size, -1)[ctx.side.rank].contiguous(), None


_JOIN: dict[Kind, Callable[..., Any]] = {"enter": _Enter.apply, "sum": _Sum.apply, "gather": _Gather.apply}
