"""A training whose steps take a known time of one worker, and which writes down each step with its time and process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import fairlead

BATCH = 48


class Timed(nn.Module):
    """Takes its time for each sample, so that a gang of n takes an nth of it."""

    def __init__(self, sample_s: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.sample_s = sample_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(self.sample_s * len(x))
        scores: torch.Tensor = self.layer(x)
        return scores


class Logged(torch.optim.SGD):
    """Counts its steps in its state, which snapshots hold, and tells of each."""

    def __init__(self, params: Any, log: str) -> None:
        super().__init__(params, lr=1e-3)
        self.param_groups[0].setdefault("taken", 0)
        self._log = log

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = super().step(closure)
        self.param_groups[0]["taken"] += 1
        tell(self._log, str(self.param_groups[0]["taken"]))
        return loss


def tell(log: str, what: str) -> None:
    """One line; several processes may write to one log."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(file, f"{time.time():.4f} {os.getpid()} {what}\n".encode())
    finally:
        os.close(file)


def training(steps: int, step_s: float, log: str) -> fairlead.Training:
    x = torch.randn(steps * BATCH, 4, generator=torch.Generator().manual_seed(0))
    return fairlead.Training(
        model=lambda: Timed(step_s / BATCH),
        data=(x, (x[:, 0] > 0).long()),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: Logged(params, log),
        batch_size=BATCH,
        epochs=1,
        seed=1,
        plan="ddp",
    )
