"""Trainings of several kinds, as users write them, for the profiling tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import fairlead


class Normed(nn.Module):
    """A small network for images, with batch norm and functions between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.out = nn.Conv2d(8, 16, 3, padding=1), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.second(torch.relu(self.norm(self.first(x)))))
        return self.out(x.mean((2, 3)))


class Reader(nn.Module):
    """A transformer over words."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.words = nn.Embedding(4000, 32)
        self.blocks = nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.out = nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.blocks(self.words(x)).mean(1))


class Attention(nn.Module):
    """As people write it: it counts its heads itself."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 2
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (each(x).view(rows, length, self.heads, 8).transpose(1, 2) for each in (self.q, self.k, self.v))
        mixed = torch.softmax(q @ k.transpose(2, 3) / 8**0.5, -1) @ v
        return self.out(mixed.transpose(1, 2).reshape(rows, length, 8 * self.heads))


class Own(nn.Module):
    """A block whose inner width may be shared, and a pair of layers that looks as if it might: softmax mixes it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.mixing, self.last = nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(x)
        x = x + self.down(torch.tanh(self.up(x)))
        return self.last(torch.softmax(self.mixing(x), -1))


class Recurrent(nn.Module):
    """An LSTM, whose FLOPs torch does not count on a cpu."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cells, self.out = nn.Embedding(100, 16), nn.LSTM(16, 32, batch_first=True), nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.cells(self.words(x))[0][:, -1])


class Looking(nn.Module):
    """Decides by its numbers what to compute: nothing can trace that."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.a(x)
        return self.b(x * 2 if float(x.sum()) > 0 else x)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.words(x).mean(1))


class OwnStep(nn.Module):
    """As Lightning's modules are: the loss is the model's own business."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def training_step(self, batch: tuple[torch.Tensor, ...], index: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layer(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.1)


def made(model: Any, x: torch.Tensor, classes: int, **more: Any) -> fairlead.Training:
    y = torch.arange(len(x)) % classes
    return fairlead.Training(model=model, data=(x, y), loss=nn.CrossEntropyLoss(), batch_size=16, epochs=1, **more)


def words(high: int) -> torch.Tensor:
    return (torch.arange(64 * 8) % high).reshape(64, 8)


def mlp(width: int = 32) -> fairlead.Training:
    layers = [nn.Linear(16, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 4)]
    return made(lambda: nn.Sequential(*layers), torch.ones(64, 16), 4)


def images() -> fairlead.Training:
    return made(Normed, torch.ones(64, 3, 8, 8), 10, optimizer=lambda params: torch.optim.SGD(params, 0.1))


def text() -> fairlead.Training:
    return made(Reader, words(4000), 2)


def recurrent() -> fairlead.Training:
    return made(Recurrent, words(100), 2)


def looking() -> fairlead.Training:
    return made(Looking, torch.ones(64, 16), 4)


class Costly(nn.Module):
    """Gives a number for all rows beside what it gives for each."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.first(x))
        return self.out(x), x.square().mean()


def costly() -> fairlead.Training:
    def loss(given: tuple[torch.Tensor, torch.Tensor], target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(given[0], target) + given[1]

    data = (torch.ones(64, 16), torch.arange(64) % 4)
    return fairlead.Training(model=Costly, data=data, loss=loss, batch_size=16, epochs=1)


def tied() -> fairlead.Training:
    return made(Tied, words(50), 50)


def own_step() -> fairlead.Training:
    x, y = torch.ones(64, 16), torch.arange(64) % 4
    return fairlead.Training(model=OwnStep(), data=(x, y), batch_size=16, epochs=1)


def broken() -> fairlead.Training:
    raise KeyError("missing")
