"""Times a few real steps of a model in one process: the scale of the cost model, in CPU seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fairlead.planning.profiles import Calibration
from fairlead.profiling.forward_trace import unit_seconds
from fairlead.profiling.model_profile import take_rows
from fairlead.training.definition import Training
from fairlead.training.model_probe import compute_loss, prefers_channels_last
from fairlead.training.optimizers import make_optimizer
from fairlead.training.precision import autocast, requested_dtype
from fairlead.training.samples import Resident, Samples

REPEATS, MOST_REPEATS = 4, 40
WORTH_S = 0.2
"""CPU seconds spent on each figure, unless MOST_REPEATS runs come first."""

ENOUGH_S = 4.0
"""A full batch is not timed if a quarter of it takes longer."""


def calibrate(training: Training, model: nn.Module, samples: Samples, device: str) -> Calibration:
    """The time of a step without the platform: forward and backward at two sizes, optimiser, input.

    Times are CPU seconds of one thread, which other processes hardly affect.
    """
    model.train()
    if isinstance(samples, Resident) and samples.images and prefers_channels_last(model):
        samples = samples.with_channels_last()  # as it will be trained
    optimizer = make_optimizer(training, [p for p in model.parameters() if p.requires_grad])
    whole = training.batch_size
    part = max(1, whole // 4)
    small_s = _pass_s(training, model, samples, part)
    large_s = _pass_s(training, model, samples, whole) if part < whole and small_s < ENOUGH_S else 0.0
    sample_s = (large_s - small_s) / (whole - part) if large_s > small_s else small_s / part
    return Calibration(
        device=device, fixed_s=max(0.0, small_s - sample_s * part), sample_s=sample_s,
        optimizer_s=_timed(optimizer.step), input_s=_timed(lambda: take_rows(samples, whole)) / whole,
    )  # fmt: skip


def layer_seconds(model: nn.Module, units: tuple[str, ...], samples: Samples, rows: int) -> list[float]:
    """CPU time of each unit of a forward pass: how the time of a step divides among the layers."""
    if len(units) == 1:
        return [1.0]  # all of it
    inputs = take_rows(samples, rows)[:-1]
    runs = [unit_seconds(model, units, lambda: model(*inputs)) for _ in range(REPEATS)]
    return [min(times) for times in zip(*runs, strict=True)]


def _pass_s(training: Training, model: nn.Module, samples: Samples, rows: int) -> float:
    batch = take_rows(samples, rows)

    def once() -> None:
        model.zero_grad(set_to_none=True)
        with autocast(requested_dtype(training), torch.device("cpu")):
            loss = compute_loss(model, training.loss, batch)
        loss.backward()  # type: ignore[no-untyped-call]

    return _timed(once)


def _timed(call: Callable[[], Any]) -> float:
    """The shortest of a few runs after a warm-up: disturbances only ever add CPU time.

    Short runs vary more and are repeated more often.
    """
    call()
    times: list[float] = []
    while len(times) < REPEATS or (len(times) < MOST_REPEATS and sum(times) < WORTH_S):
        begun = time.process_time()
        call()
        times.append(time.process_time() - begun)
    return min(times)
