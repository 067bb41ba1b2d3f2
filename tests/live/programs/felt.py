"""A small network whose steps take longer while a test lets it feel a neighbour."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import nn

import fairlead

FEELS = Path(os.environ["FAIRLEAD_OUTPUT"]) / "feels"


class Net(nn.Module):
    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.pause_s = pause_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self.pause_s * (5 if FEELS.exists() else 1))
        return self.layer(x)


def training(steps: int, pause_s: float) -> fairlead.Training:
    x = torch.randn(640, 4, generator=torch.Generator().manual_seed(0))
    return fairlead.Training(
        model=lambda: Net(pause_s), data=(x, x.sum(dim=1, keepdim=True)), loss=nn.MSELoss(), batch_size=64,
        epochs=steps // 10, optimizer=lambda params: torch.optim.SGD(params, lr=0.01),
    )  # fmt: skip
