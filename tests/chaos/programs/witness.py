"""Trainings, and stages of a pipeline, that write down themselves what they did: the truth as seen from outside."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import fairlead
from fairlead import stage

OUTPUT = Path(os.environ["FAIRLEAD_OUTPUT"])
HURRY = OUTPUT / "hurry"
"""Made by the campaign at its end: the rest of the training takes no time."""

LIFE = f"{os.environ['FAIRLEAD_WORKER']}-{os.urandom(4).hex()}"  # one process of one worker
PROCESS = os.getpid()


def note(log: str, *words: object) -> None:
    """Append one line with the time; a single write, so that no line is torn by a kill."""
    line = " ".join(map(str, (f"{time.time():.6f}", *words))) + "\n"
    descriptor = os.open(OUTPUT / log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


class Net(nn.Module):
    """A small network with dropout, whose passes take as long as the campaign wants."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 2))
        self.pause_s = pause_s

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and not HURRY.exists():
            time.sleep(self.pause_s * len(x) / 64)  # a part of the batch takes a part of the time
        return self.layers(x)


def witnessed(parameters: Any) -> torch.optim.Optimizer:
    """Adam that notes the number of each step, which is part of its own state: restored wrongly, it shows."""
    optimizer = torch.optim.Adam(parameters, lr=1e-2)

    def stepped(made: torch.optim.Optimizer, *_: object) -> None:
        if os.getpid() == PROCESS and made.state:  # a process that only looks at the model is a fork
            note(f"steps-{LIFE}.log", int(next(iter(made.state.values()))["step"]))

    optimizer.register_step_post_hook(stepped)
    return optimizer


def training(steps: int = 100, pause_s: float = 0.1) -> fairlead.Training:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64 * 10, 16, generator=generator)
    y = (x[:, :4].sum(dim=1) > 0).long()
    return fairlead.Training(
        model=lambda: Net(pause_s), data=(x, y), loss=nn.CrossEntropyLoss(), optimizer=witnessed,
        batch_size=64, epochs=steps // 10, seed=1,
    )  # fmt: skip


@stage(cache=False)
def relay(value: int, ticks: int = 10) -> int:
    """One more than it was given, after some time."""
    note("runs.log", "begin", LIFE)
    for _ in range(ticks):
        time.sleep(0.2)
        note("runs.log", "tick", LIFE)
    note("runs.log", "done", LIFE)
    return value + 1
