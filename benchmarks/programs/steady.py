"""A tiny network whose samples take a known time: more workers are faster, and a gap between steps is lost time."""

from __future__ import annotations

import time

import torch
from torch import nn

import fairlead


class Net(nn.Module):
    def __init__(self, sample_s: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 2))
        self.sample_s = sample_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self.sample_s * len(x))
        scores: torch.Tensor = self.layers(x)
        return scores


def training(steps: int = 100_000, sample_s: float = 0.001) -> fairlead.Training:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(640, 16, generator=generator)
    return fairlead.Training(
        model=lambda: Net(sample_s),
        data=(x, (x[:, :4].sum(dim=1) > 0).long()),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.Adam(params, lr=1e-2),
        batch_size=64,
        epochs=max(1, steps // 10),
        seed=1,
    )
