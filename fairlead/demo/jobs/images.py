"""A small convolutional network: CIFAR-10 from FAIRLEAD_DATA, or scikit-learn's handwritten digits without it."""

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fairlead

STRIP = 500  # images in one file of the archive


def accuracy(output: torch.Tensor, target: torch.Tensor) -> float:
    return float((output.argmax(dim=1) == target).float().mean())


def cifar(archive: Path, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first images of one batch, as floats around zero, with their labels."""
    from PIL import Image

    with zipfile.ZipFile(archive) as batch:
        strips = sorted(name for name in batch.namelist() if name.endswith(".webp"))[: -(-count // STRIP)]
        pixels = [np.asarray(Image.open(io.BytesIO(batch.read(name))).convert("RGB")) for name in strips]
        labels = np.frombuffer(batch.read("labels.bin"), np.uint8)[:count]
    images = np.concatenate([strip.reshape(-1, 32, 32, 3) for strip in pixels])[:count]
    x = torch.tensor(images).permute(0, 3, 1, 2).float() / 255.0
    return (x - 0.47) / 0.25, torch.tensor(labels, dtype=torch.long)


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    bundled = load_digits()
    x = torch.tensor(bundled.images, dtype=torch.float32).unsqueeze(1) / 8.0 - 1.0
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order], torch.tensor(bundled.target, dtype=torch.long)[order]


class Net(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(8 * width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.features(x))
        return scores


def training(epochs: int = 10, images: int = 4000, width: int = 24, lr: float = 2e-3) -> fairlead.Training:
    folder = Path(os.environ.get("FAIRLEAD_DATA", "")) / "cifar10"
    if folder.is_dir():
        train, test, channels = cifar(folder / "data_batch_1.zip", images), cifar(folder / "test_batch.zip", 1000), 3
    else:
        x, y = digits()
        train, test, channels = (x[:1440], y[:1440]), (x[1440:], y[1440:]), 1
    print(f"{len(train[0])} images to learn from, {len(test[0])} to be tested on")
    return fairlead.Training(
        model=lambda: Net(channels, width),
        data=train,
        eval_data=test,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.AdamW(params, lr=lr),
        batch_size=128,
        epochs=epochs,
        metrics={"accuracy": accuracy},
    )
