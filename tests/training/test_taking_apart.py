"""What does not mind being taken apart gives the result of one process; everything else is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fairlead
from fairlead import wire
from fairlead.errors import InvalidSpec
from fairlead.planning.plan import Plan
from fairlead.training.batch_ranges import pass_ranges
from fairlead.training.optimizers import make_optimizer, why_not_sharded
from fairlead.training.session import Session
from tests.training.conftest import MakeGang
from tests.training.gang import Gang
from tests.training.test_exactness import assert_same_result, train
from tests.training.test_synchronising import run

NET = """
import torch
from torch import nn
import fairlead

class Net(nn.Module):
    def __init__(self, norm, counts, named):
        super().__init__()
        self.named = named
        self.a, self.norm, self.counts, self.t = nn.Linear(6, 8), nn.BatchNorm1d(8) if norm else None, counts, 1.0
        self.blocks = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)])
        self.head = nn.Linear(8, 3)
    def forward(self, x):
        if self.counts and self.training and torch.is_grad_enabled():
            self.t *= 0.9
        x = torch.tanh(self.a(x)) * self.t
        x = self.head(self.blocks(x if self.norm is None else self.norm(x)))
        return {"scores": x} if self.named else x

OPTIMIZERS = {
    "places": lambda p: torch.optim.AdamW([{"params": p[:2], "lr": 0.001}, {"params": p[2:], "lr": 0.02}]),
    "whole": lambda p: torch.optim.Adafactor(p, lr=0.02),
}

def training(optimizer: str = "places", norm: bool = False, counts: bool = False, frozen: bool = False,
             accumulate: int = 1, samples: int = 44, detached: bool = False, named: bool = False):
    torch.manual_seed(7)
    x = torch.randn(samples, 6, dtype=torch.float64)
    y = (x.sum(1) > 0).long() + (x[:, 0] > 1).long()
    def model():
        net = Net(norm, counts, named).double()
        for part in (net.a, net.blocks[0]):
            part.requires_grad_(not frozen)
        return net
    plain = nn.CrossEntropyLoss()
    if named:
        plain = lambda outputs, target: nn.functional.cross_entropy(outputs["scores"], target)
    loss = (lambda outputs, target: plain(outputs.detach(), target)) if detached else plain
    return fairlead.Training(model=model, data=(x, y), loss=loss, batch_size=12, epochs=2, seed=3, clip_grad_norm=0.5,
        optimizer=OPTIMIZERS[optimizer], accumulate=accumulate,
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.7))
"""

STAGES = Plan(pipeline=2, microbatches=2, schedule="1f1b", cuts=("blocks.1",))
SHARDS = Plan(data=2, sync="allreduce", sharded=True)


def refused(gang: Gang, plan: Plan) -> str:
    run(gang, plan, wait=False)
    gang.until(lambda: all(worker.code is not None for worker in gang.workers.values()), "everybody ended")
    said = {worker.last(wire.Raised).error for worker in gang.workers.values()}
    assert len(said) == 1, said
    return said.pop()


@pytest.mark.parametrize(
    ("params", "plan"),
    [
        ({}, STAGES),
        ({"frozen": True}, STAGES),
        ({"frozen": True}, Plan(pipeline=2, microbatches=2, schedule="zero-bubble", cuts=("blocks.1",))),
        ({"optimizer": "whole"}, STAGES),
        ({"named": True}, STAGES),
        ({"norm": True, "accumulate": 2}, Plan(data=2, sync="allreduce", shares=(0.7, 0.3))),
        ({"norm": True, "accumulate": 2}, SHARDS),
        ({"norm": True, "samples": 36}, Plan(pipeline=2, microbatches=1, schedule="gpipe", cuts=("blocks.1",))),
    ],
    ids=["groups", "frozen", "frozen-zero-bubble", "whole", "named", "norm-pieces", "norm-shards", "norm-stages"],
)
def test_what_does_not_mind_gives_the_result_of_one_process(
    make_gang: MakeGang, params: dict[str, Any], plan: Plan
) -> None:
    assert_same_result(train(make_gang(NET, params), 1), run(make_gang(NET, params), plan), 1e-9)


@pytest.mark.parametrize(
    ("params", "plan", "words"),
    [
        ({"optimizer": "whole"}, SHARDS, "Adafactor needs whole parameters"),
        ({"counts": True}, STAGES, "t changes in every pass, and stages cannot pass it on"),
        ({"norm": True}, STAGES, "batch norm would see parts of a batch"),
        (
            {"norm": True},
            Plan(pipeline=2, microbatches=1, schedule="gpipe", cuts=("blocks.1",)),
            "or padding",
        ),
    ],
)
def test_what_would_give_another_result_is_refused_by_everybody(
    make_gang: MakeGang, params: dict[str, Any], plan: Plan, words: str
) -> None:
    assert words in refused(make_gang(NET, params), plan)


@pytest.mark.parametrize("plan", [Plan(data=2, sync="allreduce"), STAGES], ids=["replicas", "stages"])
def test_a_loss_without_a_gradient_is_told_under_every_plan(make_gang: MakeGang, plan: Plan) -> None:
    gang = run(make_gang(NET, {"detached": True}), plan, wait=False)
    gang.until(lambda: any(worker.heard(wire.Raised) for worker in gang.workers.values()), "somebody raised")
    said = [worker.last(wire.Raised).error for worker in gang.workers.values() if worker.heard(wire.Raised)]
    assert said[0].startswith("loss: has no gradient, so nothing would be trained")


def made(model: torch.nn.Module, **more: Any) -> fairlead.Training:
    data = (torch.zeros(8, 4), torch.zeros(8, dtype=torch.int64))
    usual: dict[str, Any] = {"data": data, "loss": torch.nn.CrossEntropyLoss(), "batch_size": 4, "epochs": 1}
    return fairlead.Training(model=model, **usual | more)


class Rows(torch.optim.SGD):
    """Scales every row by its own norm: halves of the rows would do, halves of a row do not."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() > 1:
                    p.grad = p.grad / p.grad.norm(dim=-1, keepdim=True)
        super().step()


@pytest.mark.parametrize(
    ("optimizer", "whole"),
    [
        (torch.optim.AdamW, False), (lambda p: torch.optim.SGD(p, 0.1), False), (torch.optim.Adafactor, True),
        (lambda p: torch.optim.Muon([q for q in p if q.dim() == 2]), True), (Rows, True),
        (type("Mine", (torch.optim.AdamW,), {}), False),
    ],
)  # fmt: skip
def test_an_optimizer_is_tried_on_halves_of_parameters(optimizer: Any, whole: bool) -> None:
    model = torch.nn.Linear(4, 2)
    assert bool(why_not_sharded(made(model, optimizer=optimizer), model)) is whole


def test_an_optimizer_that_wants_a_closure_is_refused_by_name() -> None:
    model = torch.nn.Linear(4, 2)
    with pytest.raises(InvalidSpec, match="LBFGS calls a closure several times"):
        make_optimizer(made(model, optimizer=torch.optim.LBFGS), list(model.parameters()))


class Weighted(torch.nn.CrossEntropyLoss):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))


def test_parameters_that_would_not_be_trained_or_cannot_be_are_refused_by_name() -> None:
    with pytest.raises(InvalidSpec, match="its parameter scale would not be trained"):
        Session(made(torch.nn.Linear(4, 2), loss=Weighted()), 0)
    with pytest.raises(InvalidSpec, match="parameter weight is complex"):
        Session(made(torch.nn.Linear(4, 2, dtype=torch.complex64)), 0)


class Hidden(torch.nn.Linear):
    state: torch.Tensor | None = None
    table: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table = torch.ones(2) if self.table is None else self.table  # filled once: no state
        self.state = super().forward(x).detach().mean(0) + (0.0 if self.state is None else self.state)
        return super().forward(x) * self.table


def test_what_every_pass_changes_is_found_and_told() -> None:
    data = (torch.randn(8, 4), torch.zeros(8, dtype=torch.int64))
    findings = Session(made(torch.nn.Sequential(Hidden(4, 2)), data=data), 0).findings
    assert findings.state == ("0.state",) and "0.state changes in every pass" in findings.warnings[0]


@pytest.mark.parametrize("total", [1, 5, 12])
@pytest.mark.parametrize("together", [True, False])
def test_passes_over_a_batch_take_every_sample_once(total: int, together: bool) -> None:
    cuts = [pass_ranges(total, 3, (0.7, 0.2, 0.1), rank, together=together) for rank in range(3)]
    assert sorted(place for each in cuts for cut in each for place in cut) == list(range(total))
    if together:
        alone = pass_ranges(total, 3, (1.0,), 0, together=True)
        assert [sorted(place for cut in each for place in cut) for each in zip(*cuts, strict=True)] == [
            list(cut) for cut in alone
        ]
