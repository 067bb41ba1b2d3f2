"""What a training, a model or a gang says against a plan, and how a lost peer is told from a user's mistake."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fairlead
from fairlead.planning.plan import Plan
from fairlead.training.group import PeerLost, explain_error, is_peer_loss
from fairlead.training.parallel.engines import _objection, loses_state_with_worker, splits_model
from fairlead.training.parallel.mesh import translate_peer_errors
from fairlead.training.session import Session

PIPE = Plan(pipeline=2, microbatches=2, schedule="1f1b", cuts=("1",))
TENSOR = Plan(tensor=2, splits=(("0", "column"), ("1", "row")))
SHARDED = Plan(data=2, sync="allreduce", sharded=True)
COPIES = Plan(data=2, sync="allreduce")
SERVERS, LOCAL = Plan(data=2, sync="parameter-server"), Plan(data=2, sync="local-sgd", period=4)


class Hidden(nn.Module):
    """Keeps something from pass to pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.state = nn.Linear(3, 2), 0.0

    def forward(self, x: torch.Tensor) -> Any:
        self.state += 1.0
        return self.layer(x)


class Whole(torch.optim.SGD):
    """Looks at parameters as a whole."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.data -= 0.1 * parameter.grad / (1 + parameter.grad.norm())


def session(**more: Any) -> Session:
    common: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), "loss": nn.CrossEntropyLoss(),
        "data": (torch.randn(16, 3), torch.randint(0, 2, (16,))), "batch_size": 8, "epochs": 1, "seed": 3,
    }  # fmt: skip
    return Session(fairlead.Training(**(common | more)), 0)


NORMED = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
LOOSE: dict[str, Any] = {"exact": False}


@pytest.mark.parametrize(
    ("plan", "made", "why"),
    [
        (COPIES, {}, None), (PIPE, {}, None), (TENSOR, {}, None), (SHARDED, {}, None),
        (SERVERS, LOOSE, None), (LOCAL, LOOSE, None),
        (SERVERS, {}, "changes the maths"), (LOCAL, {}, "changes the maths"),
        (Plan(data=2, sync="allreduce", compression="bf16"), {}, "changes the maths"),
        (Plan(data=2, sync="allreduce", compression="bf16"), LOOSE, None),
        (Plan(data=2, sync="allreduce", buckets=True), {}, None),
        (Plan(pipeline=2, microbatches=2, schedule="zero-bubble", cuts=("1",), recompute=True), {},
         "walks a stage's graph twice"),
        (Plan(pipeline=2, microbatches=2, schedule="1f1b", cuts=("1",), recompute=True), {}, None),
        (PIPE, {"model": Hidden}, "state changes in every pass"), (COPIES, {"model": Hidden}, None),
        (SHARDED, {"model": Hidden}, None), (PIPE, {"model": lambda: NORMED}, "batch norm would see parts of a batch"),
        (Plan(pipeline=2, microbatches=1, schedule="gpipe", cuts=("1",)), {"model": lambda: NORMED}, None),
        (Plan(pipeline=2, microbatches=1, schedule="gpipe", cuts=("1",)), {"model": lambda: NORMED, "batch_size": 5},
         "batch norm would see parts"),
        (PIPE, {"model": lambda: NORMED, **LOOSE}, None), (COPIES, {"model": lambda: NORMED}, None),
        (SHARDED, {"optimizer": lambda p: Whole(p, lr=0.1)}, "needs whole parameters"),
        (TENSOR, {"optimizer": lambda p: Whole(p, lr=0.1)}, "needs whole parameters"),
        (PIPE, {"optimizer": lambda p: Whole(p, lr=0.1)}, None),
        (COPIES, {"optimizer": lambda p: Whole(p, lr=0.1)}, None),
    ],
)  # fmt: skip
def test_a_plan_is_carried_out_where_it_can_be_and_else_the_reason_is_told(
    plan: Plan, made: dict[str, Any], why: str | None
) -> None:
    said = _objection(plan, session(**made), SimpleNamespace(size=plan.workers_used))  # type: ignore[arg-type]
    assert said is None if why is None else said is not None and why in said


def test_a_plan_is_for_as_many_workers_as_it_says() -> None:
    for size in (1, 3):
        said = _objection(COPIES, session(), SimpleNamespace(size=size))  # type: ignore[arg-type]
        assert said == f"{COPIES.id} is for 2 workers, this gang has {size}"


def test_spread_plans_and_servers_lose_a_part_with_a_worker() -> None:
    assert [splits_model(plan) for plan in (COPIES, SERVERS, PIPE, TENSOR, SHARDED)] == [False, False, True, True, True]
    assert [loses_state_with_worker(plan) for plan in (COPIES, SERVERS, PIPE)] == [False, True, True]


# ---------------------------------------------------------------- lost peers


@pytest.mark.parametrize(
    ("text", "loss", "words"),
    [
        ("[/a/b.cc:12] Connection reset by peer", True, "the connection to another rank is gone"),
        ("Broken pipe", True, "the connection to another rank is gone"),
        ("Timed out waiting 30000ms for recv", True, "another rank did not answer in time"),
        ("the query timed out", False, "another rank did not answer in time"),
        ("[/a/b.cpp:7] shapes differ " + "x" * 300, False, "shapes differ " + "x" * 186),
    ],
)
def test_what_torch_says_of_a_lost_peer_is_understood(text: str, loss: bool, words: str) -> None:
    error = RuntimeError(text)
    assert is_peer_loss(error) is loss and explain_error(error) == words
    assert is_peer_loss(torch.distributed.DistNetworkError("anything"))


def raised(error: BaseException, cause: BaseException | None = None) -> None:
    with translate_peer_errors():
        raise error from cause


def test_a_lost_peer_within_a_stage_is_told_from_a_mistake_there() -> None:
    for error, cause in (
        (RuntimeError("Connection closed"), None), (RuntimeError("stage 1 failed to run"), RuntimeError("Broken pipe")),
    ):  # fmt: skip
        with pytest.raises(PeerLost, match="the connection to another rank is gone"):
            raised(error, cause)
    with pytest.raises(ValueError, match="mine"):
        raised(RuntimeError("stage 1 failed to run forward"), ValueError("mine"))
    with pytest.raises(RuntimeError, match="something else") as kept:
        raised(RuntimeError("something else"), ValueError("mine"))
    assert isinstance(kept.value.__cause__, ValueError)
    with pytest.raises(RuntimeError, match="plain"):
        raised(RuntimeError("plain"))
    with pytest.raises(KeyError):
        raised(KeyError("not a RuntimeError"))


@pytest.mark.parametrize("more", [{"buckets": True}, {"sync": "local-sgd", "period": 4}, {"sharded": True}])
def test_only_gradients_that_go_in_one_piece_are_compressed(more: dict[str, Any]) -> None:
    inexact = session(exact=False)
    group: Any = SimpleNamespace(size=2)
    told = _objection(Plan(**({"data": 2, "sync": "allreduce", "compression": "bf16"} | more)), inexact, group)
    assert told is not None and "only gradients that are sent in one piece are compressed" in told
    assert _objection(Plan(data=2, sync="allreduce", compression="bf16"), inexact, group) is None
