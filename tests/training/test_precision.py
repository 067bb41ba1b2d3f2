"""Products are computed in bf16 only where that was asked for, or where it was allowed and measured to be faster."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fairlead import Training, wire
from fairlead.errors import InvalidSpec
from fairlead.planning.plan import SINGLE
from fairlead.training.group import Group
from fairlead.training.parallel.engines import make_engine
from fairlead.training.precision import agree_dtype, bf16_is_faster
from fairlead.training.session import Session
from fairlead.training.step_flags import RankFlags


def training(**more: object) -> Training:
    torch.manual_seed(1)
    x = torch.randn(24, 8)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
    values = {"model": model, "data": (x, (x.sum(1) > 0).long()), "loss": nn.CrossEntropyLoss()}
    return Training(**values, batch_size=12, epochs=1, **more)  # type: ignore[arg-type]


def alone() -> Group:
    return Group(wire.Join(1, {"w": 0}, [], 1.0), "w", lambda: None)


def losses(precision: str) -> tuple[list[float], Session]:
    session = Session(training(precision=precision), 0)
    engine = make_engine(session, alone(), SINGLE)
    return [engine.step(step, torch.arange(12), RankFlags()).loss for step in range(4)], session


def test_bf16_rounds_products_and_leaves_the_parameters_in_their_precision() -> None:
    plain, _ = losses("float32")
    rounded, session = losses("bf16")
    assert rounded != plain and rounded == pytest.approx(plain, abs=0.02)
    assert {p.dtype for p in session.model.parameters()} == {torch.float32}
    assert {v.dtype for state in session.optimizer.state.values() for v in state.values()} == {torch.float32}


def test_auto_keeps_the_maths_unless_it_may_change_and_the_device_gains() -> None:
    assert agree_dtype(training(), alone()) is None
    assert agree_dtype(training(precision="float32", exact=False), alone()) is None
    expected = torch.bfloat16 if bf16_is_faster("cpu") else None
    assert agree_dtype(training(exact=False), alone()) == expected
    if not torch.cpu._is_avx512_bf16_supported() and not torch.cpu._is_amx_tile_supported():
        assert expected is None


def test_a_precision_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidSpec) as told:
        training(precision="fp4")
    assert told.value.field == "precision"
