"""A process of its own that trains a few steps and tells the most bytes of tensors that were alive at once.

``python -m tests.training.weigh MODEL``: for each of :data:`PLANS` what was predicted and what was measured.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import torch
from torch import nn

import fairlead
from fairlead import wire
from fairlead.planning.cost import estimate
from fairlead.planning.ground import Ground
from fairlead.planning.plan import Plan
from fairlead.profiling.model import profile_model
from fairlead.profiling.watching import Scale
from fairlead.training.engines import make_engine
from fairlead.training.group import Group
from fairlead.training.session import Session
from fairlead.training.words import Word
from tests.planning.made import hardware

STEPS = 3
PLANS = (Plan(), Plan(microbatches=2), Plan(recompute=True))


def wide() -> fairlead.Training:
    """Nearly all of it is parameters."""
    layers = [nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU()]
    data = (torch.randn(64, 256), torch.randint(0, 10, (64,)))
    return _training(nn.Sequential(*layers, nn.Linear(768, 10)), data, 64)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(500, 64)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True) for _ in range(6)
        )
        self.out = nn.Linear(64, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.out(x.mean(1))


def reader() -> fairlead.Training:
    """Activations outweigh the parameters."""
    data = (torch.randint(0, 500, (32, 48)), torch.randint(0, 4, (32,)))
    return _training(Reader(), data, 32)


def images() -> fairlead.Training:
    """Convolutions: almost only activations."""
    blocks = [
        nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        for a, b in ((3, 16), (16, 32), (32, 64))
    ]
    model = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64 * 16, 10))
    return _training(model, (torch.randn(48, 3, 32, 32), torch.randint(0, 10, (48,))), 48)


MODELS: dict[str, Callable[[], fairlead.Training]] = {"wide": wide, "reader": reader, "images": images}


def _training(model: nn.Module, data: tuple[torch.Tensor, ...], batch: int) -> fairlead.Training:
    return fairlead.Training(
        model=model, data=data, loss=nn.CrossEntropyLoss(), batch_size=batch, epochs=STEPS, optimizer=torch.optim.AdamW
    )


def weigh(name: str, plan: Plan) -> dict[str, float]:
    """Predicted and measured bytes of the fullest moment."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    training = MODELS[name]()
    predicted = estimate(profile_model(training), Ground(hardware(1)), plan).memory_bytes
    session = Session(training, 0)
    group = Group(wire.Join(1, {"w": 0}, "file:///nowhere", [], 1.0), "w", lambda: None)
    engine = make_engine(session, group, plan)
    index = torch.arange(training.batch_size)
    scale = Scale()
    scale.put(list(session.model.state_dict().values()))
    with scale:
        for step in range(STEPS):
            engine.step(step, index, Word())
    return {"predicted": predicted, "measured": float(scale.peak)}


if __name__ == "__main__":
    print(json.dumps({plan.id: weigh(sys.argv[1], plan) for plan in PLANS}))
