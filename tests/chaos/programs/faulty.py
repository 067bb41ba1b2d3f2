"""Programs that go wrong."""

from __future__ import annotations

import os
import time

import torch
from torch import nn

import fairlead


class Faulty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        time.sleep(0.02)
        if self.training and self.calls > 10 and os.environ["FAIRLEAD_WORKER"] == "w1":
            raise ValueError("the cat sat on the keyboard")
        return self.layer(x)


def raises_on_one_rank() -> fairlead.Training:
    x = torch.randn(640, 4)
    return fairlead.Training(
        model=Faulty, data=(x, x.sum(dim=1, keepdim=True)), loss=nn.MSELoss(), batch_size=64, epochs=100,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.01), plan="dp",  # all compute, paying or not
    )  # fmt: skip
