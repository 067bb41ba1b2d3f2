"""The models and data of the speed benchmark, used alike by Fairlead, a plain loop and DDP."""

from __future__ import annotations

import csv
import gzip
import io
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fairlead

NUMBERS = ("age", "balance", "day", "duration", "campaign", "pdays", "previous")
WORDS = ("job", "marital", "education", "default", "housing", "loan", "contact", "month", "poutcome")
STRIP = 500  # images in one file of the archive


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing to train: what it is called, its samples, its network and its batch."""

    name: str
    x: torch.Tensor
    y: torch.Tensor
    model: Callable[[], nn.Module]
    batch_size: int


def load(kind: str, samples: int = 0) -> Workload:
    """The table or the images; the first so many samples, or all. Real data if FAIRLEAD_DATA holds them."""
    name, x, y = table() if kind == "mlp" else images()
    if samples:
        x, y = x[:samples], y[:samples]
    wide, classes = x.shape[1], int(y.max()) + 1
    if kind == "mlp":
        return Workload(f"MLP on {name}", x, y, lambda: mlp(wide, classes), 256)
    return Workload(f"CNN on {name}", x, y, lambda: cnn(wide, classes), 64)


def mlp(wide: int, classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(wide, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, classes))


def cnn(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, classes),
    )  # fmt: skip


def table() -> tuple[str, torch.Tensor, torch.Tensor]:
    file = Path(os.environ.get("FAIRLEAD_DATA", "")) / "bank_marketing" / "bank-full.csv.gz"
    if not file.is_file():
        from sklearn.datasets import load_breast_cancer

        bundled = load_breast_cancer()
        return "breast cancer x 40", *_tensors(np.tile(bundled.data, (40, 1)), np.tile(bundled.target, 40))
    with gzip.open(file, "rt", encoding="utf-8", newline="") as text:
        rows = list(csv.DictReader(text, delimiter=";"))
    columns = [np.array([[float(row[name]) for name in NUMBERS] for row in rows])]
    for name in WORDS:
        values = np.array([row[name] for row in rows])
        columns.append(values[:, None] == np.unique(values)[None, :])
    return "Bank Marketing", *_tensors(np.concatenate(columns, axis=1), np.array([row["y"] == "yes" for row in rows]))


def _tensors(x: np.ndarray, y: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    x = (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-6)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.long)


def images() -> tuple[str, torch.Tensor, torch.Tensor]:
    archive = Path(os.environ.get("FAIRLEAD_DATA", "")) / "cifar10" / "data_batch_1.zip"
    if not archive.is_file():
        from sklearn.datasets import load_digits

        bundled = load_digits()
        pixels = torch.tensor(bundled.images, dtype=torch.float32).unsqueeze(1) / 16.0
        return "digits", pixels, torch.tensor(bundled.target, dtype=torch.long)
    from PIL import Image

    with zipfile.ZipFile(archive) as batch:
        strips = sorted(name for name in batch.namelist() if name.endswith(".webp"))
        decoded = [np.asarray(Image.open(io.BytesIO(batch.read(name))).convert("RGB")) for name in strips[:10]]
        labels = np.frombuffer(batch.read("labels.bin"), np.uint8)
    pixels = torch.tensor(np.concatenate([strip.reshape(-1, 32, 32, 3) for strip in decoded]))
    return "CIFAR-10", pixels.permute(0, 3, 1, 2).float() / 255.0, torch.tensor(labels[: len(pixels)], dtype=torch.long)


def training(kind: str, epochs: int, samples: int = 0) -> fairlead.Training:
    """As a Fairlead job."""
    work = load(kind, samples)
    return fairlead.Training(
        model=work.model,
        data=(work.x, work.y),
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        batch_size=work.batch_size,
        epochs=epochs,
    )
