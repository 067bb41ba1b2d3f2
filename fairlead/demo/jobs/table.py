"""A network on a table: Bank Marketing from FAIRLEAD_DATA, or scikit-learn's breast cancer data without it."""

import csv
import gzip
import os
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fairlead

NUMBERS = ("age", "balance", "day", "campaign", "pdays", "previous")
WORDS = ("job", "marital", "education", "default", "housing", "loan", "contact", "month", "poutcome")


def accuracy(output: torch.Tensor, target: torch.Tensor) -> float:
    return float((output.argmax(dim=1) == target).float().mean())


def recall(output: torch.Tensor, target: torch.Tensor) -> float:
    """The part of the rare class that the model finds."""
    return float((output.argmax(dim=1) == target)[target == 1].float().mean())


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Cross entropy in which the rare class counts double; still a mean over the samples."""
    each = nn.functional.cross_entropy(output, target, reduction="none")
    return (each * (1 + target)).mean()


def bank(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """Calls of a campaign, and whether the client subscribed. Without the call's length, which is not known before."""
    with gzip.open(file, "rt", encoding="utf-8", newline="") as text:
        rows = list(csv.DictReader(text, delimiter=";"))
    numbers = np.array([[float(row[name]) for name in NUMBERS] for row in rows], dtype=np.float32)
    columns = [np.sign(numbers) * np.log1p(np.abs(numbers))]
    for name in WORDS:
        values = np.array([row[name] for row in rows])
        columns.append((values[:, None] == np.unique(values)[None, :]).astype(np.float32))
    return np.concatenate(columns, axis=1), np.array([row["y"] == "yes" for row in rows], dtype=np.int64)


def cancer() -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_breast_cancer

    bundled = load_breast_cancer()
    return bundled.data.astype(np.float32), (bundled.target == 0).astype(np.int64)


def training(epochs: int = 10, width: int = 256, lr: float = 1e-3) -> fairlead.Training:
    file = Path(os.environ.get("FAIRLEAD_DATA", "")) / "bank_marketing" / "bank-full.csv.gz"
    x, y = bank(file) if file.is_file() else cancer()
    x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6)
    order = np.random.default_rng(0).permutation(len(x))
    test, train = order[: len(x) // 5], order[len(x) // 5 :]
    print(f"{len(train)} rows of {x.shape[1]} columns to learn from, {len(test)} to be tested on")
    return fairlead.Training(
        model=lambda: nn.Sequential(
            nn.Linear(x.shape[1], width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
        ),
        data=(x[train], y[train]),
        eval_data=(x[test], y[test]),
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=lr),
        batch_size=256,
        epochs=epochs,
        metrics={"accuracy": accuracy, "recall": recall},
    )
