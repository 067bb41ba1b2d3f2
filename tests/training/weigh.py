"""A process of its own that trains a few steps and tells the most bytes of tensors that were alive at once.

``python -m tests.training.weigh MODEL``: for each of :data:`PLANS` what was predicted and what was measured.
``python -m tests.training.weigh MODEL RANK FOLDER``: the same of one of two ranks that meet in a folder, for the best
plan of each of :data:`KINDS` that the model allows.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

import fairlead
from fairlead.local_wire import PlacedJoin
from fairlead.planning.cost import estimate
from fairlead.planning.plan import Plan
from fairlead.planning.plan_candidates import Shape
from fairlead.planning.profiles import ModelProfile
from fairlead.planning.search import search
from fairlead.planning.topology import Topology
from fairlead.profiling.forward_trace import PeakMemory, tensors
from fairlead.profiling.model_profile import profile_model
from fairlead.training.group import Group
from fairlead.training.parallel.engines import make_engine
from fairlead.training.session import Session
from fairlead.training.step_flags import RankFlags
from tests.planning.made import hardware

STEPS = 3
PLANS = (Plan(), Plan(microbatches=2), Plan(recompute=True))
KINDS: dict[str, Shape] = {
    "dp": Shape(data=2, sync="allreduce"),
    "ddp": Shape(data=2, sync="allreduce", buckets=True),
    "fsdp": Shape(data=2, sync="allreduce", sharded=True),
    "fsdp in two pieces": Shape(data=2, sync="allreduce", sharded=True, microbatches=2),
    "tensor": Shape(tensor=2),
    "1f1b": Shape(pipeline=2, schedule="1f1b", microbatches=4),
    "1f1b, computed again": Shape(pipeline=2, schedule="1f1b", microbatches=4, recompute=True),
    "interleaved": Shape(pipeline=2, schedule="interleaved", chunks=2, microbatches=4),
    "zero-bubble": Shape(pipeline=2, schedule="zero-bubble", microbatches=4),
}


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


class Parts(PeakMemory):
    """Weighs of distributed tensors the part that lies here."""

    def put(self, value: Any) -> None:
        super().put([getattr(tensor, "_local_tensor", tensor) for tensor in tensors(value)])


def weigh(name: str, plan: Plan) -> dict[str, float]:
    """Predicted and measured bytes of the fullest moment."""
    predicted = estimate(profiled(name), Topology(hardware(1)), plan).memory_bytes
    return {"predicted": predicted, "measured": measured(_made(name), plan, "nowhere", 0)}


def weigh_rank(name: str, kind: str, rank: int, folder: str) -> dict[str, float]:
    """The same of one of two ranks; nothing if the model cannot be spread so."""
    found = search(profiled(name), hardware(2), only=lambda shape: shape == KINDS[kind])
    if not found:
        return {}
    where = f"{folder}/{kind.replace(' ', '-')}"
    return {"predicted": found[0].memory_bytes, "measured": measured(_made(name), found[0].plan, where, rank)}


@cache
def profiled(name: str) -> ModelProfile:
    """Looked at once: that costs more than to train the few steps of any plan."""
    return profile_model(_made(name))


def _made(name: str) -> fairlead.Training:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return MODELS[name]()


def measured(training: fairlead.Training, plan: Plan, where: str, rank: int) -> float:
    """The most bytes that were alive at once in a few steps."""
    session = Session(training, 0)
    ranks = {str(each): each for each in range(plan.workers_used)}
    group = Group(PlacedJoin(1, ranks, [], 60.0, init_method=f"file://{where}"), str(rank), lambda: None)
    engine = make_engine(session, group, plan)
    index = torch.arange(training.batch_size)
    scale = Parts()
    scale.put(list(session.model.state_dict().values()))
    with scale:
        for step in range(STEPS):
            engine.step(step, index, RankFlags())
    engine.end()
    group.close()
    return float(scale.peak)


def main(name: str, rank: str = "", folder: str = "") -> None:
    if rank:
        found = {kind: weigh_rank(name, kind, int(rank), folder) for kind in KINDS}
    else:
        found = {plan.id: weigh(name, plan) for plan in PLANS}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # threads of torch's groups need not be waited for
