"""Fairlead's way: the parts, and nothing about how they are run."""

from __future__ import annotations

import torch
from tasks import LEARNING_RATE, accuracy, load
from torch import nn

import fairlead


def training(name: str, folder: str, seed: int = 0) -> fairlead.Training:
    task = load(name, folder)
    return fairlead.Training(
        model=task.model, data=task.tensors(), eval_data=task.test_tensors(), loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.AdamW(params, lr=LEARNING_RATE), batch_size=task.batch_size,
        epochs=task.epochs, metrics={"accuracy": accuracy}, seed=seed,
    )  # fmt: skip
