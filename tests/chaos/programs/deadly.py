"""Programs whose own code ends their process."""

from __future__ import annotations

import ctypes
import os
import signal

import torch
from torch import nn

import fairlead


def _die(how: str) -> None:
    match how:
        case "segv":
            ctypes.string_at(0)
        case "exit-0":
            os._exit(0)
        case "exit-5":
            os._exit(5)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "memory":
            kept = []
            while True:
                kept.append(bytearray(os.urandom(1 << 20)))


class Deadly(nn.Module):
    """Dies in the forward pass of one step."""

    def __init__(self, at_call: int, how: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.at_call, self.how = at_call, how
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls += 1
            if int(self.calls) == self.at_call:
                _die(self.how)
        return self.layer(x)


def training(how: str, at: str = "start", worker: str = "", step: int = 1, epochs: int = 100) -> fairlead.Training:
    """Dies while it is loaded, or in one step; of a gang all workers, or only the one that is named."""
    mine = worker in ("", os.environ["FAIRLEAD_WORKER"])
    if mine and at == "start":
        _die(how)
    if at == "start-of-others" and os.environ["FAIRLEAD_WORKER"] != worker:
        _die(how)
    x = torch.randn(64 * 10, 4)
    return fairlead.Training(
        model=lambda: Deadly(step if mine and at == "step" else -1, how), data=(x, x.sum(dim=1, keepdim=True)),
        loss=nn.MSELoss(), batch_size=64, epochs=epochs,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.01), plan="dp",
    )  # fmt: skip
