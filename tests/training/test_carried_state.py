"""Whatever a step depends on is carried from one worker to the next, bit by bit: stopped anywhere, nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import fairlead
from fairlead import wire
from fairlead.training.evaluation import evaluate
from fairlead.training.group import Group
from fairlead.training.parallel.engine import Engine
from fairlead.training.parallel.engines import make_engine
from fairlead.training.seeds import epoch_order, seed_everything
from fairlead.training.session import Session
from fairlead.training.snapshots.flat_state import FlatState, flatten_state
from fairlead.training.step_flags import RankFlags

Make = Callable[[Any], Any]
EPOCHS, SAMPLES, BATCH = 6, 53, 12  # the last batch of an epoch is short
STOPS = ((7, False), (10, True), (18, False))  # within an epoch and at the end of one; over the wire or from the grid


def made(**fields: Any) -> fairlead.Training:
    """A network with all that has a state of its own, in float32 and with a kink: a lost digit grows."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 6, generator=generator)
    y = (x.sum(1) > 0).long()
    usual: dict[str, Any] = {
        "model": lambda: nn.Sequential(
            nn.Linear(6, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3)
        ),
        "data": (x, y), "eval_data": (x[:20], y[:20]), "loss": nn.CrossEntropyLoss(), "batch_size": BATCH,
        "epochs": EPOCHS, "seed": 3, "optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    }  # fmt: skip
    return fairlead.Training(**(usual | fields))


def begun(training: fairlead.Training) -> tuple[Session, Group, Engine]:
    session = Session(training, 0)
    group = Group(wire.Join(1, {"w": 0}, [], 5.0), "w", lambda: None)
    session.model.train()
    return session, group, make_engine(session, group, None)


def handed_over(session: Session, *, flat: bool) -> bytes | FlatState:
    """The state as another worker gets it: over the wire, or out of the grid."""
    if not flat:
        return session.dump()
    apart = flatten_state(session.full_state())
    return FlatState(apart.head, apart.mark, tuple(tensor.clone() for tensor in apart.tensors))


def trained(make: Callable[[], fairlead.Training], stop: int | None, *, flat: bool = False) -> tuple[list[float], Any]:
    """Losses and weights; after ``stop`` steps a fresh worker goes on, half a step later."""
    seed_everything(0)
    session, group, engine = begun(make())
    losses: list[float] = []
    while True:
        if session.evaluation_due and session.close_epoch(evaluate(session, group, engine.outputs(lambda: None))):
            session.early_stopping.keep(engine.state()["model"])
        if session.done:
            return losses, {**session.model.state_dict(), "best": session.early_stopping.state()["model"]}
        if session.step == stop:
            stop = None
            half_a_step(session, engine)
            state = handed_over(session, flat=flat)
            torch.rand(7)  # another worker has drawn other numbers before
            session, group, engine = begun(make())
            session.load(state)
        heard = engine.step(session.step, batch(session), RankFlags(leaving=False, snapshot=False))
        session.complete_step(time.time(), heard.loss)
        losses.append(heard.loss)


def batch(session: Session) -> torch.Tensor:
    epoch, place = divmod(session.step, session.steps_per_epoch)
    return epoch_order(session.seed, epoch, len(session.samples))[place * BATCH : (place + 1) * BATCH]


def half_a_step(session: Session, engine: Engine) -> None:
    """As a worker makes that is told of a lost peer after its pass."""
    session.save_buffers()
    engine._backward(session.step, batch(session))  # type: ignore[attr-defined]
    session.roll_back_step()


def same(make: Callable[[], fairlead.Training]) -> None:
    losses, weights = trained(make, None)
    for stop, flat in STOPS:
        found, left = trained(make, stop, flat=flat)
        assert found == losses, f"stopped after step {stop}: {first_difference(losses, found)}"
        torch.testing.assert_close(left, weights, rtol=0, atol=0)


def first_difference(one: list[float], other: list[float]) -> str:
    pairs = zip(one, other, strict=False)
    return next((f"step {at}: {a!r} and {b!r}" for at, (a, b) in enumerate(pairs, 1) if a != b), "other lengths")


class Wide(torch.optim.Optimizer):
    """Keeps moments in float64, a counter and a mask, beside parameters in float32."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.02})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["count"] = torch.zeros((), dtype=torch.int64)
                    state["moment"] = torch.zeros_like(p, dtype=torch.float64)
                    state["seen"] = torch.zeros_like(p, dtype=torch.bool)
                state["count"] += 1
                state["seen"] |= p.grad != 0
                state["moment"].mul_(0.9).add_(p.grad.double())
                p.add_((state["moment"] * state["seen"] * (-group["lr"] / (1 + 0.01 * int(state["count"])))).float())


OPTIMIZERS: dict[str, Make] = {
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.02, amsgrad=True),
    "foreach": lambda p: torch.optim.AdamW(p, lr=0.02, foreach=True),
    "tensor-rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.02), foreach=False),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.01),
    "adadelta": torch.optim.Adadelta,
    "adamax": torch.optim.Adamax,
    "asgd": lambda p: torch.optim.ASGD(p, t0=5.0),
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
    "rprop": torch.optim.Rprop,
    "adafactor": torch.optim.Adafactor,
    "of-other-types": Wide,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizers_state_is_carried_bit_by_bit(name: str) -> None:
    same(lambda: made(optimizer=OPTIMIZERS[name]))


SCHEDULES: dict[str, tuple[Make, str]] = {
    "lambda": (lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.95**step), "step"),
    "one-cycle": (lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=60), "step"),
    "warm-restarts": (lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3), "epoch"),
    "plateau": (lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, factor=0.5), "epoch"),
    "in-sequence": (
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, 0.1, 1, 5), lr_scheduler.ExponentialLR(o, 0.97)], [5]
        ),
        "step",
    ),
    "cyclic": (lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=4, cycle_momentum=True), "step"),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_goes_on_where_it_was(name: str) -> None:
    scheduler, every = SCHEDULES[name]
    same(lambda: made(scheduler=scheduler, scheduler_every=every))


class Remembers(nn.Module):
    """A running mean that is left out of the model's state, beside one that is not, and weights that are normed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 16))
        self.second = nn.utils.parametrizations.weight_norm(nn.Linear(16, 3))
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("unsaved", torch.zeros(16), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(x))
        if self.training:
            for buffer in (self.mean, self.unsaved):
                buffer.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
        return self.second(hidden - self.mean - 0.5 * self.unsaved)  # type: ignore[no-any-return]


MODELS: dict[str, Callable[[], nn.Module]] = {
    "remembers": Remembers,
    "cumulative-norm": lambda: nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16, momentum=None), nn.ReLU(), nn.Linear(16, 3)
    ),
    "draws": lambda: nn.Sequential(nn.Linear(6, 16), nn.RReLU(), nn.AlphaDropout(0.2), nn.Linear(16, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_what_a_model_remembers_and_draws_is_carried(name: str) -> None:
    same(lambda: made(model=MODELS[name]))


def test_the_best_epoch_and_the_patience_are_carried() -> None:
    same(lambda: made(early_stopping=2, keep_best=True, monitor="eval_loss"))


def test_gradients_that_are_clipped_and_gathered_in_pieces_are_the_same() -> None:
    plain = lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))  # noqa: E731
    same(lambda: made(model=plain, clip_grad_norm=0.3, accumulate=3))
