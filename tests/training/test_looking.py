"""Promises about looking at a model before it trains: what is refused and told, and that it stays as it was."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fairlead.errors import InvalidSpec
from fairlead.planning.plan import Plan
from fairlead.training.early_stopping import EarlyStopping
from fairlead.training.evaluation import _together
from fairlead.training.model_probe import (
    check_loss,
    find_kept_state,
    has_batch_norm,
    prefers_channels_last,
    preserving_buffers,
    probe_model,
    require_gradient,
    trainable_parameters,
)
from fairlead.training.parallel.pipeline import schedule_of, stages_of
from fairlead.training.randomness import Layout, sample_mask
from fairlead.training.seeds import digest, epoch_order, mix, seed_everything

GOLDEN_MIX = [
    0,
    8147104208329303767,
    5225608189600411232,
    6804074658870690613,
    8085905411993364802,
    8245168133484221968,
]
GOLDEN_DIGEST = 1795509175753372915
GOLDEN_ORDER = [6, 0, 4, 1, 5, 3, 7, 2]
GOLDEN_MASK = [[1, 1, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 0], [0, 1, 0, 0, 1, 0, 1, 1]]
GOLDEN_DRAWN = (297827, 329824, 297827)
BATCH = (torch.arange(24.0).reshape(12, 2), torch.arange(12) % 2)


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))


class Counting(nn.Module):
    """Has an attribute and a buffer of its own that passes change."""

    def __init__(self, *, counts: bool = False, fills: bool = False, buffer: bool = False) -> None:
        super().__init__()
        self.layer, self.counts, self.fills, self.buffered = nn.Linear(2, 2), counts, fills, buffer
        self.passes, self.cache = 0, None
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> Any:
        if self.counts:
            self.passes += 1
        if self.fills and self.cache is None:
            self.cache = "filled"
        if self.buffered:
            self.seen.add_(1)
        return self.layer(x)


Loss = Callable[..., Any]


@pytest.mark.parametrize(
    ("loss", "what"),
    [
        (lambda out, y: 0.5, "returns float, not one number"),
        (lambda out, y: out.sum(1), r"returns a tensor of shape \(12,\), not one number"),
        (nn.CrossEntropyLoss(reduction="sum"), "is not a mean over the samples"),
        (lambda out, y: nn.functional.cross_entropy(out, y) + len(y) * 1e-3, "is not a mean over the samples"),
    ],
)
def test_a_loss_that_is_no_mean_is_refused(loss: Loss, what: str) -> None:
    model = plain()
    with pytest.raises(InvalidSpec, match=what) as refused:
        check_loss(model, loss, BATCH)
    assert refused.value.field == "loss" and model.training


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(), lambda out, y: out.mean().reshape(1), lambda out, y: out.mean() * math.nan,
        lambda out, y: out.mean() + torch.rand(()),  # it draws: two calls cannot be compared
        lambda out, y: out.mean() + 1e-6 * len(y),  # rounding
    ],
)  # fmt: skip
def test_a_mean_is_taken_as_one(loss: Loss) -> None:
    check_loss(plain(), loss, BATCH)


def test_one_sample_cannot_tell() -> None:
    check_loss(plain(), nn.CrossEntropyLoss(reduction="sum"), tuple(column[:1] for column in BATCH))


def test_a_batch_of_one_is_not_taken_apart_into_one_and_none() -> None:
    def loss(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        assert len(target) > 1, "nobody asks"
        return nn.functional.cross_entropy(outputs, target)

    check_loss(plain(), loss, tuple(column[:1] for column in BATCH))
    with pytest.raises(AssertionError):
        check_loss(plain(), loss, tuple(column[:2] for column in BATCH))


def test_what_a_pass_changes_is_told_and_undone() -> None:
    loss = nn.CrossEntropyLoss()
    for model, state, changing, words in (
        (plain(), (), (), []),
        (Counting(counts=True), ("passes",), (), ["passes changes in every pass"]),
        (Counting(fills=True), (), (), []),
        (Counting(buffer=True), (), ("seen",), ["buffers seen are kept per worker"]),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), (), ("1.running_mean", "1.running_var",
                                                                  "1.num_batches_tracked"), []),
    ):  # fmt: skip
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        found = probe_model(model, loss, BATCH)
        assert (found.state, set(found.changing)) == (state, set(changing))
        assert len(found.warnings) == len(words)
        assert all(word in told for word, told in zip(words, found.warnings, strict=True))
        assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers()) and model.training


def test_a_hidden_state_is_found_and_a_cache_is_none() -> None:
    assert find_kept_state(Counting(counts=True), BATCH[:1]) == "passes"
    assert find_kept_state(Counting(fills=True), BATCH[:1]) == ""
    assert find_kept_state(plain(), BATCH[:1]) == ""


def test_a_model_that_draws_is_told_apart_from_one_with_dropout() -> None:
    class Draws(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return self.layer(x + torch.randn_like(x))

    drawing = probe_model(Draws(), nn.CrossEntropyLoss(), BATCH)
    assert not drawing.random.exact and "draws random numbers itself" in drawing.warnings[0]
    dropping = probe_model(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), nn.CrossEntropyLoss(), BATCH)
    assert dropping.random.exact and not dropping.warnings and len(dropping.random.layouts) == 1


def test_mode_and_buffers_are_as_before_whatever_happens_inside() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    model[1].eval()
    with pytest.raises(RuntimeError, match="inside"), preserving_buffers(model):
        model.train()
        model(torch.ones(4, 2) * 7)
        raise RuntimeError("inside")
    assert model[0].training and not model[1].training
    assert torch.equal(model[0].running_mean, torch.zeros(2)) and int(model[0].num_batches_tracked) == 0


def test_models_that_cannot_be_trained_are_refused_by_what_is_wrong() -> None:
    frozen = plain().requires_grad_(False)
    with pytest.raises(InvalidSpec, match="has no parameters to train"):
        trainable_parameters(frozen)
    frozen[0].bias.requires_grad_(True)
    assert trainable_parameters(frozen) == [frozen[0].bias]
    with pytest.raises(InvalidSpec, match="layer 0 makes sparse gradients"):
        probe_model(nn.Sequential(nn.Embedding(4, 2, sparse=True)), nn.CrossEntropyLoss(), BATCH)
    odd = plain()
    odd.register_parameter("odd", nn.Parameter(torch.zeros(1, dtype=torch.complex64)))
    with pytest.raises(InvalidSpec, match="parameter odd is complex"):
        probe_model(odd, nn.CrossEntropyLoss(), BATCH)
    with pytest.raises(InvalidSpec, match="has no gradient"):
        require_gradient(torch.ones(()))
    assert require_gradient(odd[0].weight.sum()).requires_grad


def test_kinds_of_layers_are_found_inside_of_others() -> None:
    deep = nn.Sequential(nn.Sequential(nn.Conv2d(1, 1, 1)), nn.BatchNorm2d(1))
    assert has_batch_norm(deep) and prefers_channels_last(deep)
    assert not has_batch_norm(deep[0]) and not prefers_channels_last(plain())
    assert not prefers_channels_last(deep.to("meta"))


# ---------------------------------------------------------------- figures of an evaluation


def test_outputs_of_all_rows_come_together_in_their_order() -> None:
    like, rows = torch.zeros(1), [2, 1]
    parts = [torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]])]
    assert torch.equal(_together(parts, rows, like), torch.tensor([[1.0], [2.0], [3.0]]))
    assert float(_together([torch.tensor(1.0), torch.tensor(4.0)], rows, like)) == pytest.approx(2.0)
    for strange in ([torch.zeros(2), torch.zeros(3)], [torch.zeros(2), torch.tensor(1.0)], [torch.zeros(5, 2)] * 2):
        assert _together(strange, rows, like) is None, "it belongs to no row"
    assert _together([None, None], rows, "as it is") == "as it is"


class Monitored:
    """As much of a Training as is judged by."""

    def __init__(self, mode: str, patience: int | None) -> None:
        self.monitor, self.monitor_mode, self.early_stopping = "figure", mode, patience


@pytest.mark.parametrize(
    ("mode", "figures", "best", "enough"),
    [
        ("min", [3, 2, 2, 1, 4], [1, 1, 0, 1, 0], [0, 0, 0, 0, 0]),
        ("max", [3, 2, 2, 4, 4], [1, 0, 0, 1, 0], [0, 0, 1, 0, 0]),
        ("min", [math.nan, math.nan, 5, math.nan], [0, 0, 1, 0], [0, 1, 0, 0]),
        ("min", [1, 1, 1, 0], [1, 0, 0, 1], [0, 0, 1, 0]),
    ],
)
def test_the_best_epoch_is_the_first_of_equals_and_patience_counts_from_it(
    mode: str, figures: list[float], best: list[int], enough: list[int]
) -> None:
    judgement, endless = EarlyStopping(Monitored(mode, 2)), EarlyStopping(Monitored(mode, None))  # type: ignore[arg-type]
    for step, (figure, good, over) in enumerate(zip(figures, best, enough, strict=True), start=10):
        assert judgement.judge(step, {"figure": figure, "other": -1.0}) is bool(good)
        assert judgement.should_stop is bool(over) and judgement.judged_step == step
        assert endless.judge(step, {"figure": figure}) is bool(good) and not endless.should_stop
        if good:
            assert (judgement.best, judgement.best_step) == (figure, step)
        again = EarlyStopping(Monitored(mode, 2))  # type: ignore[arg-type]
        again.load(judgement.state())
        assert again.should_stop == judgement.should_stop and again.best_step == judgement.best_step
        judgement = again


def test_the_best_model_is_kept_as_it_was_then() -> None:
    judgement, model = EarlyStopping(Monitored("min", None)), plain()  # type: ignore[arg-type]
    judgement.keep(model.state_dict())
    was = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.add_(1)
    assert torch.equal(judgement.model["0.weight"], was)


# ---------------------------------------------------------------- what a replay draws


def test_numbers_that_snapshots_and_reruns_rely_on_are_those_of_every_version() -> None:
    """A training that is resumed by a newer Fairlead visits the same samples and drops the same neurons."""
    assert [mix(), mix(0), mix(1), mix(1, 2), mix(2, 1), mix(-1)] == GOLDEN_MIX
    assert digest("train.py") == GOLDEN_DIGEST
    assert epoch_order(7, 1, 8).tolist() == GOLDEN_ORDER and epoch_order(7, 2, 8).tolist() != GOLDEN_ORDER
    samples = torch.tensor([3, 9, 4])
    mask = sample_mask(mix(5, 6), samples, Layout(0, 1), torch.Size((3, 8)), 0.5)
    assert mask.int().tolist() == GOLDEN_MASK
    seed_everything(2**32 + 5)
    drawn = (int(torch.randint(1 << 20, ())), random.randrange(1 << 20), int(np.random.randint(1 << 20)))
    assert drawn == GOLDEN_DRAWN


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
def test_a_mask_keeps_its_share_and_depends_on_sample_and_key_alone(keep: float) -> None:
    samples = torch.arange(64)
    mask = sample_mask(1, samples, Layout(0, 1), torch.Size((64, 500)), keep)
    assert float(mask.float().mean()) == pytest.approx(keep, abs=0.01)
    some = torch.tensor([40, 7])
    assert torch.equal(sample_mask(1, some, Layout(0, 1), torch.Size((2, 500)), keep), mask[some])
    assert not torch.equal(sample_mask(2, samples, Layout(0, 1), torch.Size((64, 500)), keep), mask)
    aside = sample_mask(1, samples, Layout(1, 1), torch.Size((500, 64)), keep)
    assert torch.equal(aside.movedim(1, 0), mask)
    assert sample_mask(1, some, Layout(0, 1), torch.Size((2, 9)), 1.0).all()
    heads = sample_mask(1, some, Layout(0, 4), torch.Size((8, 125)), keep)
    assert torch.equal(heads.reshape(2, 500), mask[some])


# ---------------------------------------------------------------- which schedule a plan means


@pytest.mark.parametrize(
    ("schedule", "chunks", "name", "held"),
    [
        ("gpipe", 1, "ScheduleGPipe", (1,)), ("gpipe", 3, "ScheduleLoopedBFS", (1, 4, 7)),
        ("1f1b", 1, "Schedule1F1B", (1,)), ("interleaved", 2, "ScheduleInterleaved1F1B", (1, 4)),
        ("interleaved", 3, "ScheduleInterleaved1F1B", (1, 4, 7)),
        ("zero-bubble", 1, "ScheduleInterleavedZeroBubble", (1,)), ("zero-bubble", 2, "ScheduleZBVZeroBubble", (1, 4)),
        ("1f1b", 2, None, ()), ("interleaved", 1, None, ()), ("zero-bubble", 3, None, ()),
    ],
)  # fmt: skip
def test_a_schedule_is_torchs_own_and_says_which_stages_a_worker_holds(
    schedule: Any, chunks: int, name: str | None, held: tuple[int, ...]
) -> None:
    cuts = tuple(map(str, range(1, 3 * chunks)))
    plan = Plan(pipeline=3, microbatches=6, schedule=schedule, chunks=chunks, cuts=cuts)  # type: ignore[arg-type]
    if name is None:
        with pytest.raises(InvalidSpec, match=f"{schedule} does not support {chunks} stages per worker"):
            schedule_of(plan)
        return
    assert schedule_of(plan).__name__ == name
    assert tuple(stages_of(plan, 1)) == held
    assert sorted(stage for worker in range(3) for stage in stages_of(plan, worker)) == list(range(3 * chunks))
