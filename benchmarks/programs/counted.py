"""A training without end that counts its steps in a file, where they can be read at any moment."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

import torch
from torch import nn
from workloads import load

import fairlead

ENDLESS = 1_000_000


class Counting(nn.Module):
    """The usual loss; each call is a step."""

    def __init__(self) -> None:
        super().__init__()
        file = Path(os.environ["FAIRLEAD_OUTPUT"], "steps")
        file.write_bytes(bytes(8))
        with file.open("r+b") as opened:
            self._count = mmap.mmap(opened.fileno(), 8)
        self._steps = 0

    def forward(self, said: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        self._steps += 1
        self._count[:] = struct.pack("<q", self._steps)
        return nn.functional.cross_entropy(said, right)


def training() -> fairlead.Training:
    work = load("mlp")
    return fairlead.Training(
        model=work.model, data=(work.x, work.y), loss=Counting(), batch_size=work.batch_size, epochs=ENDLESS,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    )  # fmt: skip
