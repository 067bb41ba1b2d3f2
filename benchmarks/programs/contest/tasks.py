"""The four tasks of the contest: the same numbers, network, batch and epochs for everybody who takes part."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

WORDS = 20_000
LEARNING_RATE = 1e-3
SEED = int(os.environ.get("CONTEST_SEED", "0"))


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be learned."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    model: Callable[[], nn.Module]
    batch_size: int
    epochs: int

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.x), torch.from_numpy(self.y)

    def test_tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.x_test), torch.from_numpy(self.y_test)

    def data(self, kind: str) -> Dataset[Any]:
        """``rows``: a data set that makes its samples one by one; ``tensors``: held whole."""
        return TensorDataset(*self.tensors()) if kind == "tensors" else Rows(self.x, self.y)


class Rows(Dataset[Any]):
    """A data set as tutorials write it."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(self.x[place]), torch.tensor(self.y[place])


class Reviews(nn.Module):
    """The mean of the words of a review, and two layers that judge it."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 64)
        self.judge = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.judge(self.words(x).mean(dim=1))


def _mlp(wide: int, hidden: tuple[int, ...], classes: int) -> nn.Module:
    sizes = [wide, *hidden]
    body = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*body, nn.Linear(sizes[-1], classes))


def _cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def load(name: str, folder: str | Path) -> Task:
    """One of cifar10, bank, kdd99, imdb, from the file that the benchmark prepared."""
    found = np.load(Path(folder) / f"{name}.npz")
    columns = {key: found[key] for key in ("x", "y", "x_test", "y_test")}
    wide, classes = columns["x"].shape[1], int(columns["y"].max()) + 1
    models = {
        "cifar10": (_cnn, 64), "bank": (lambda: _mlp(wide, (128, 64), classes), 256),
        "kdd99": (lambda: _mlp(wide, (256, 128), classes), 256), "imdb": (Reviews, 64),
    }  # fmt: skip
    model, batch = models[name]
    return Task(**columns, model=model, batch_size=batch, epochs=int(found["epochs"]))


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return float((outputs.argmax(dim=1) == targets).float().mean())


class Diary:
    """When the first step began and each epoch ended, and how good the model was then; written by rank 0."""

    def __init__(self, file: str | Path) -> None:
        self._file = Path(file)
        self.write(0, 0.0)

    def write(self, epoch: int, accuracy: float) -> None:
        with self._file.open("a") as lines:
            lines.write(f"{time.time()} {epoch} {accuracy} {os.getpid()}\n")
