"""A small network that trains for as long as a test wants to watch it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import nn

import fairlead

HURRY = Path(os.environ["FAIRLEAD_OUTPUT"]) / "hurry"
"""Made by a test that has seen enough: the rest of the training takes no time."""


class Net(nn.Module):
    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))
        self.pause_s = pause_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and not HURRY.exists():
            time.sleep(self.pause_s)
        return self.layers(x)


def training(steps: int = 60, pause_s: float = 0.02) -> fairlead.Training:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64 * 10, 16, generator=generator)
    y = (x[:, :4].sum(dim=1) > 0).long()
    return fairlead.Training(
        model=lambda: Net(pause_s),
        data=(x, y),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-2),
        batch_size=64,
        epochs=steps // 10,
        seed=1,
    )
