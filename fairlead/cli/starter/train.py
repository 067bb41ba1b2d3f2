"""A small network that learns which of two spirals a point lies on. Replace it with your own model and data."""

from __future__ import annotations

import math

import torch
from torch import nn

import fairlead


def spirals(points: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of two interleaved spirals, labelled by spiral."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(2, (points,), generator=generator)
    radius = torch.rand(points, generator=generator).sqrt()
    angle = 2.5 * math.pi * radius + math.pi * label
    place = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return place + 0.02 * torch.randn(points, 2, generator=generator), label


def accuracy(output: torch.Tensor, target: torch.Tensor) -> float:
    return float((output.argmax(dim=1) == target).float().mean())


def training(epochs: int = 20, lr: float = 1e-2) -> fairlead.Training:
    """Called in every worker with the params of job.yaml, independent of the number of workers."""
    return fairlead.Training(
        # A function that builds the model, so that all workers start with the same weights.
        model=lambda: nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)),
        data=spirals(4096, seed=0),  # tensors of one length, (input, ..., target), or a torch Dataset
        eval_data=spirals(1024, seed=1),  # evaluated after every epoch
        loss=nn.CrossEntropyLoss(),  # the mean over the samples
        optimizer=lambda params: torch.optim.AdamW(params, lr=lr),
        batch_size=128,  # of the whole gang, divided among its workers
        epochs=epochs,
        metrics={"accuracy": accuracy},
    )
