"""A small network that classifies handwritten digits (scikit-learn's bundled data set)."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

import fairlead


def accuracy(output: torch.Tensor, target: torch.Tensor) -> float:
    return float((output.argmax(dim=1) == target).float().mean())


def training(lr: float = 1e-2, epochs: int = 5, batch_size: int = 128) -> fairlead.Training:
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16.0
    y = torch.tensor(digits.target, dtype=torch.long)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1440], order[1440:]
    return fairlead.Training(
        model=lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        data=(x[train], y[train]),
        eval_data=(x[test], y[test]),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.AdamW(params, lr=lr),
        batch_size=batch_size,
        epochs=epochs,
        metrics={"accuracy": accuracy},
        seed=0,
    )
