"""A text classifier over word vectors: IMDB reviews from FAIRLEAD_DATA; without it, digits read pixel by pixel."""

import os
import re
import zlib
from pathlib import Path

import torch
from torch import nn

import fairlead

WORD = re.compile(r"[a-z']+")
WORDS = 10_000  # word vectors; words share them by their hash
LENGTH = 200  # words of a review that are used


def accuracy(output: torch.Tensor, target: torch.Tensor) -> float:
    return float((output.argmax(dim=1) == target).float().mean())


def reviews(file: Path, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Equally many good and bad reviews as word numbers (0: no word), with label 1 for a good one."""
    from pyarrow import parquet

    table = parquet.read_table(file, columns=["text", "label"])
    middle = table.num_rows // 2  # the file has all bad reviews first, then all good ones
    rows = [*range(count // 2), *range(middle, middle + count // 2)]
    chosen = table.take(rows)
    numbers = torch.zeros(len(rows), LENGTH, dtype=torch.long)
    for row, text in enumerate(chosen["text"].to_pylist()):
        words = WORD.findall(text.lower().replace("<br />", " "))[:LENGTH]
        numbers[row, : len(words)] = torch.tensor([1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in words])
    return numbers, torch.tensor(chosen["label"].to_pylist(), dtype=torch.long)


class Reader(nn.Module):
    """Word vectors, a layer on each, their mean over the words of the text, and a classifier."""

    def __init__(self, words: int, width: int, classes: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(words, width, padding_idx=0)
        self.layer = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.verdict = nn.Sequential(nn.Dropout(0.3), nn.Linear(width, classes))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        there = (words > 0).float().unsqueeze(2)
        mean = (self.layer(self.vectors(words)) * there).sum(1) / there.sum(1).clamp(min=1.0)
        verdict: torch.Tensor = self.verdict(mean)
        return verdict


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """scikit-learn's handwritten digits as texts: every pixel is a word that says where it is and how dark."""
    from sklearn.datasets import load_digits

    bundled = load_digits()
    words = 1 + 17 * torch.arange(64) + torch.tensor(bundled.data, dtype=torch.long)
    order = torch.randperm(len(words), generator=torch.Generator().manual_seed(0))
    return words[order], torch.tensor(bundled.target, dtype=torch.long)[order]


def training(epochs: int = 10, texts: int = 6000, width: int = 64, lr: float = 2e-3) -> fairlead.Training:
    folder = Path(os.environ.get("FAIRLEAD_DATA", "")) / "imdb"
    if folder.is_dir():
        train, test = reviews(folder / "imdb_train.parquet", texts), reviews(folder / "imdb_test.parquet", 1000)
    else:
        x, y = digits()
        train, test = (x[:1440], y[:1440]), (x[1440:], y[1440:])
    words, classes = (WORDS, 2) if folder.is_dir() else (1 + 17 * 64, 10)
    print(f"{len(train[0])} texts to learn from, {len(test[0])} to be tested on")
    return fairlead.Training(
        model=lambda: Reader(words, width, classes),
        data=train,
        eval_data=test,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.AdamW(params, lr=lr),
        batch_size=128,
        epochs=epochs,
        metrics={"accuracy": accuracy},
    )
