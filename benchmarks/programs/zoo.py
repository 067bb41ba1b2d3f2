"""The models of the planning benchmark, each with its data; made-up data of the same shape where there is none."""

from __future__ import annotations

import itertools
import os
import re
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import nn
from workloads import cnn, images, table

import fairlead

SAMPLES = 4096
WORDS, LENGTH = 4000, 32
IDS, FIELDS = 40_000, 8


class Transformer(nn.Module):
    """A small encoder that reads a review and says whether it is a kind one."""

    def __init__(self, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True) for _ in range(layers))
        )
        self.head = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(x) + self.places).mean(dim=1))


class Wide(nn.Module):
    """Many ids, little to compute: as in recommending."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.ids = nn.Embedding(IDS, width)
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(FIELDS * width, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self.ids(x))


def mlp(wide: int, hidden: int, layers: int, classes: int) -> nn.Module:
    sizes = [wide, *[hidden] * layers]
    body = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*body, nn.Linear(hidden, classes))


def connections() -> tuple[str, torch.Tensor, torch.Tensor]:
    """KDD 99: numbers as they are, words as their numbers, attack or not."""
    file = Path(os.environ.get("FAIRLEAD_DATA", "")) / "kdd99" / "kddcup_10_percent.parquet"
    if not file.is_file():
        return "made-up connections", *_made_up(41)
    import pyarrow.parquet as pq

    rows = pq.ParquetFile(file).read_row_group(0).slice(0, SAMPLES)
    columns = []
    for name in rows.column_names[:-1]:
        values = rows.column(name).to_numpy(zero_copy_only=False)
        numbers = values if values.dtype.kind in "fiub" else np.unique(values, return_inverse=True)[1]
        columns.append(np.log1p(np.abs(numbers.astype(np.float64))))
    label = rows.column(rows.column_names[-1]).to_numpy(zero_copy_only=False)
    attack = np.array(["normal" not in str(each) for each in label])
    return "KDD 99", torch.tensor(np.stack(columns, 1), dtype=torch.float32), torch.tensor(attack, dtype=torch.long)


def reviews() -> tuple[str, torch.Tensor, torch.Tensor]:
    """IMDB: the first words of each review, by hash."""
    file = Path(os.environ.get("FAIRLEAD_DATA", "")) / "imdb" / "imdb_train.parquet"
    if not file.is_file():
        draw = torch.Generator().manual_seed(0)
        return "made-up reviews", torch.randint(WORDS, (SAMPLES, LENGTH), generator=draw), _labels(draw)
    import pyarrow.parquet as pq

    rows = pq.read_table(file, columns=["text", "label"])
    step = len(rows) // SAMPLES
    chosen = rows.take(list(range(0, step * SAMPLES, step)))
    ids = torch.zeros(SAMPLES, LENGTH, dtype=torch.int64)
    for place, text in enumerate(chosen.column("text").to_pylist()):
        words = re.findall(r"[a-z']+", text.lower())[:LENGTH]
        ids[place, : len(words)] = torch.tensor([zlib.crc32(word.encode()) % WORDS for word in words])
    return "IMDB", ids, torch.tensor(chosen.column("label").to_pylist(), dtype=torch.long)


def clicks() -> tuple[str, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return "made-up ids", torch.randint(IDS, (SAMPLES, FIELDS), generator=draw), _labels(draw)


def _made_up(wide: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(SAMPLES, wide, generator=draw), _labels(draw)


def _labels(draw: torch.Generator) -> torch.Tensor:
    return torch.randint(2, (SAMPLES,), generator=draw)


def training(model: str, batch_size: int = 0) -> fairlead.Training:
    """One of: cnn, bank, kdd, transformer, wide, deep; in batches of its own size, unless another one is asked for."""
    source = {"cnn": images, "bank": table, "kdd": connections, "transformer": reviews, "wide": clicks}
    name, x, y = source.get(model, connections)()
    print(f"data: {name}", flush=True)
    x, y = x[:SAMPLES].clone(), y[:SAMPLES].clone()
    made = {
        "cnn": (lambda: cnn(x.shape[1], 10), 64),
        "bank": (lambda: mlp(x.shape[1], 128, 2, 2), 256),
        "kdd": (lambda: mlp(x.shape[1], 512, 3, 2), 256),
        "transformer": (Transformer, 16),
        "wide": (Wide, 256),
        "deep": (lambda: mlp(x.shape[1], 96, 24, 2), 512),
    }
    build, batch = made[model]
    return fairlead.Training(
        model=build, data=(x, y), loss=nn.CrossEntropyLoss(), optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3),
        batch_size=batch_size or batch, epochs=1,
    )  # fmt: skip
