"""What the first passes of a model say about it, whoever else wants the cores."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch import nn

import fairlead
from fairlead import wire
from fairlead.profiling.first_passes import time_first_passes
from fairlead.training.session import Session

WAITS_S = 0.004


class Waits(nn.Module):
    """Asks something else about each sample, and computes next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(WAITS_S * len(x))
        return self.layer(x)  # type: ignore[no-any-return]


def _seen(model: Callable[[], nn.Module]) -> wire.Glance:
    x, y = torch.randn(64, 4), torch.zeros(64, dtype=torch.long)
    training = fairlead.Training(
        model=model, data=(x, y), loss=nn.CrossEntropyLoss(), batch_size=64, epochs=1,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )  # fmt: skip
    return time_first_passes(Session(training, 0), (x, y))


def test_a_model_that_waits_is_as_slow_as_one_that_computes() -> None:
    assert _seen(Waits).sample_s == pytest.approx(WAITS_S, rel=0.5)


def test_a_small_model_is_seen_to_be_small() -> None:
    assert _seen(lambda: nn.Linear(4, 2)).sample_s < WAITS_S / 4
