"""Measures what a step of the training loop costs besides the model's own computing, in CPU seconds on this node."""

from __future__ import annotations

import itertools
import time

import torch
from torch import nn

from fairlead import wire
from fairlead.planning.plan import SINGLE
from fairlead.training.definition import Training
from fairlead.training.optimizers import make_optimizer
from fairlead.training.plan_measurement import SilentConnection, quiet_loop

STEPS, REPEATS, WARM_UP = 100, 3, 20
_ROWS = 16


def loop_seconds() -> float:
    """The time of a loop's step with a tiny model, less that of its model, optimiser and input alone."""
    training = Training(
        model=lambda: nn.Linear(8, 2), data=(torch.randn(4 * _ROWS, 8), torch.randint(2, (4 * _ROWS,))),
        loss=nn.CrossEntropyLoss(), batch_size=_ROWS, epochs=1,
    )  # fmt: skip
    return max(min(_looped(training)) - _bare(training), 1e-6)


def _looped(training: Training) -> list[float]:
    clock = _Clock()
    loop, _, _ = quiet_loop(
        training, SINGLE, wire.Join(1, {"0": 0}, [], 60.0), 0, clock, steps=WARM_UP + REPEATS * STEPS
    )
    loop.run()
    marks = [*clock.spent[WARM_UP::STEPS], time.process_time()]
    return [(after - before) / STEPS for before, after in itertools.pairwise(marks)]


class _Clock(SilentConnection):
    """A control connection that records the CPU time at the start of each step."""

    def __init__(self) -> None:
        self.spent: list[float] = []

    def pending(self) -> bool:
        self.spent.append(time.process_time())
        return False


def _bare(training: Training) -> float:
    x, y = training.data
    model = nn.Linear(8, 2)
    loss = nn.CrossEntropyLoss()
    optimizer = make_optimizer(training, list(model.parameters()))
    rows = torch.arange(_ROWS)
    times = []
    for _ in range(REPEATS):
        begun = time.process_time()
        for _ in range(STEPS):
            model.zero_grad(set_to_none=True)
            batch = x.index_select(0, rows), y.index_select(0, rows)
            loss(model(batch[0]), batch[1]).backward()
            optimizer.step()
        times.append((time.process_time() - begun) / STEPS)
    return min(times)
