"""Small trainings for a platform that plans: one that is best left on one worker, and one of many layers."""

from __future__ import annotations

import time

import torch
from torch import nn

import fairlead


def _training(model: nn.Module, width: int, epochs: int, plan: str = "auto") -> fairlead.Training:
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(1600, width, generator=draw)
    y = torch.randint(0, 4, (1600,), generator=draw)
    return fairlead.Training(
        model=lambda: model, data=(x, y), loss=nn.CrossEntropyLoss(), batch_size=128, epochs=epochs, plan=plan,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    )  # fmt: skip


def small(epochs: int = 20_000) -> fairlead.Training:
    torch.manual_seed(3)
    return _training(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)), 16, epochs)


class _Sleepy(nn.Module):
    """Takes its time over the first pass, as models do that compile themselves: a glance at it shows nothing."""

    asleep = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.asleep and torch.is_grad_enabled():
            self.asleep = False
            until_s = time.process_time() + 1.5
            while time.process_time() < until_s:
                pass
        return x


def sleepy(epochs: int = 20_000) -> fairlead.Training:
    torch.manual_seed(3)
    return _training(nn.Sequential(_Sleepy(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4)), 16, epochs)


def whole(epochs: int = 20_000) -> fairlead.Training:
    """One layer, which nothing can be cut out of."""
    torch.manual_seed(3)
    return _training(nn.Linear(32, 4), 32, epochs, plan="pp")


def deep(epochs: int = 20_000) -> fairlead.Training:
    torch.manual_seed(3)
    layers = [part for at in range(4) for part in (nn.Linear(32 if at == 0 else 64, 64), nn.ReLU())]
    return _training(nn.Sequential(*layers, nn.Linear(64, 4)), 32, epochs, plan="pp")
