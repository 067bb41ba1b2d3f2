"""One worker's copy of a training: where it stands, what a step changes, and its state as bytes."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fairlead
from fairlead.errors import InvalidSpec, TrainingFailed
from fairlead.planning.memory import LARGE_BYTES
from fairlead.training.data import check_batch, open_samples
from fairlead.training.optimizers import (
    drop_parameters,
    load_optimizer,
    make_optimizer,
    placeholder_parameter,
    use_fused_kernel,
    why_not_sharded,
)
from fairlead.training.result import final_metrics, write_result
from fairlead.training.samples import GeneratedSamples, Resident
from fairlead.training.session import Session
from fairlead.training.snapshots.sharded_files import whole_shards, write_shards
from fairlead.training.step_flags import GroupFlags, RankFlags, flag_count, pack, single_rank_flags, unpack

CPU = torch.device("cpu")
LARGE = int(LARGE_BYTES // (3 * 4))  # numbers: a weight and two moments, of four bytes each
X, Y = torch.randn(10, 3), torch.randint(0, 2, (10,))


def training(**more: Any) -> fairlead.Training:
    common: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
        "loss": nn.CrossEntropyLoss(), "data": (X, Y), "batch_size": 4, "epochs": 2, "seed": 3,
    }  # fmt: skip
    return fairlead.Training(**(common | more))


def session(**more: Any) -> Session:
    return Session(training(**more), 0)


def step(own: Session, loss: float = 0.5, *, index: int = 0) -> None:
    own.save_buffers()
    own.optimizer.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(own.model(X[index : index + 4]), Y[index : index + 4]).backward()
    own.optimizer.step()
    own.complete_step(time.time(), loss)


def test_an_epoch_is_as_many_steps_as_batches_begin_and_ends_are_known() -> None:
    own = session(eval_data=(X, Y))
    assert (own.steps_per_epoch, own.total_steps) == (3, 6)
    seen = []
    for _ in range(6):
        seen.append((own.step, own.position, own.at_epoch_end, own.evaluation_due, own.done))
        step(own)
        if own.evaluation_due:
            seen.append((own.step, own.position, own.at_epoch_end, own.evaluation_due, own.done))
            own.close_epoch({"eval_loss": 1.0})
    seen.append((own.step, own.position, own.at_epoch_end, own.evaluation_due, own.done))
    assert seen == [
        (0, 0, False, False, False), (1, 2, False, False, False), (2, 4, False, False, False),
        (3, 6, True, True, False), (3, 7, True, False, False), (4, 8, False, False, False),
        (5, 10, False, False, False), (6, 12, True, True, True), (6, 13, True, False, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("more", "opens"),
    [
        ({}, False), ({"eval_data": (X, Y)}, True), ({"early_stopping": 1, "monitor": "loss"}, True),
        ({"keep_best": True, "monitor": "loss"}, True),
        ({"scheduler": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o)}, True),
        ({"scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 1)}, False),
    ],
)  # fmt: skip
def test_an_epoch_is_looked_at_only_by_who_has_something_to_look_at(more: dict[str, Any], opens: bool) -> None:
    own = session(**more)
    for _ in range(3):
        step(own)
    assert own.evaluation_due is opens


@pytest.mark.parametrize(
    ("every", "rates"), [("epoch", [1.0, 1.0, 0.5, 0.5, 0.5, 0.25]), ("step", [0.5**n for n in range(1, 7)])]
)
def test_a_schedule_goes_on_once_an_epoch_or_once_a_step(every: str, rates: list[float]) -> None:
    own = session(
        optimizer=lambda p: torch.optim.SGD(p, lr=1.0), scheduler_every=every,
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
    )  # fmt: skip
    found = []
    for _ in range(6):
        step(own)
        found.append(own.optimizer.param_groups[0]["lr"])
    assert found == rates


@pytest.mark.parametrize(("monitor", "rates"), [("eval_loss", [1.0, 0.1]), ("loss", [1.0, 1.0])])
def test_a_plateau_is_one_of_the_figure_that_is_monitored(monitor: str, rates: list[float]) -> None:
    own = session(
        optimizer=lambda p: torch.optim.SGD(p, lr=1.0), monitor=monitor, eval_data=(X, Y),
        scheduler=lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0),
    )  # fmt: skip
    found = []
    for epoch, figure in enumerate((1.0, 2.0)):
        for _ in range(3):
            step(own, loss=1.0 / (epoch + 1))
        own.close_epoch({"eval_loss": figure})
        found.append(own.optimizer.param_groups[0]["lr"])
    assert found == rates, "and without it, of the mean loss of the epoch"


@pytest.mark.parametrize("keep_best", [True, False])
def test_the_model_to_keep_is_that_of_the_best_epoch_if_it_is_to_be_kept(keep_best: bool) -> None:
    own = session(early_stopping=5, keep_best=keep_best, eval_data=(X, Y), epochs=4)
    found = []
    for figure in (2.0, 3.0, 1.0):
        for _ in range(3):
            step(own)
        found.append(own.close_epoch({"eval_loss": figure}))
    assert found == [keep_best, False, keep_best] and own.early_stopping.best == 1.0


def test_a_training_that_stops_early_is_done_before_its_last_step() -> None:
    own = session(early_stopping=1, eval_data=(X, Y), epochs=9)
    for figure in (1.0, 1.0):
        assert not own.done
        for _ in range(3):
            step(own)
        own.close_epoch({"eval_loss": figure})
    assert own.done and own.step == 6 < own.total_steps


def test_half_a_step_is_undone_and_a_whole_one_is_not() -> None:
    own = session()
    step(own)
    was = {name: buffer.clone() for name, buffer in own.model.named_buffers()}
    own.roll_back_step()
    assert all(torch.equal(buffer, was[name]) for name, buffer in own.model.named_buffers()), "it was a whole one"
    own.save_buffers()
    own.model(X).sum().backward()
    assert not all(torch.equal(buffer, was[name]) for name, buffer in own.model.named_buffers())
    own.roll_back_step()
    assert all(torch.equal(buffer, was[name]) for name, buffer in own.model.named_buffers())
    assert all(parameter.grad is None for parameter in own.model.parameters())
    own.model(X)
    own.roll_back_step()
    assert not torch.equal(own.model[1].running_mean, was["1.running_mean"]), "only what was remembered is undone"


def test_a_state_goes_on_in_another_worker_where_it_stood() -> None:
    schedule = {"scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5)}
    fresh = session()
    assert (fresh.live, fresh.weights_lost, fresh.diverged, fresh.unread_shards) == (False, False, False, None)
    own, other = (
        session(**schedule, early_stopping=3, eval_data=(X, Y)),
        session(**schedule, early_stopping=3, eval_data=(X, Y), seed=3),
    )
    own.run_schedule.record(0, 2, "replicas", (0.5, 0.5))
    for _ in range(3):
        step(own)
    own.close_epoch({"eval_loss": 2.0})
    other.weights_lost = other.diverged = True
    other.load(own.dump())
    assert (other.live, other.weights_lost, other.diverged) == (True, False, False)
    assert (
        (other.step, other.position) == (3, 7)
        and other.run_schedule == own.run_schedule
        and other.early_stopping.best == 2.0
    )
    for mine, theirs in ((own, other), (other, own)):
        assert len(mine.history) == 3 and mine.optimizer.param_groups[0]["lr"] == theirs.optimizer.param_groups[0]["lr"]
    for each in (own, other):
        step(each, index=2)
    for one, two in zip(own.model.state_dict().values(), other.model.state_dict().values(), strict=True):
        assert torch.equal(one, two)
    assert len(own.history) == len(other.history) == 4


def test_a_state_of_the_first_version_has_neither_course_nor_judgement() -> None:
    own, other = session(), session()
    step(own)
    told = {key: value for key, value in own.state().items() if key not in ("judgement", "course", "course_whole")}
    other.load_state(told)
    assert other.step == 1 and other.run_schedule.entries == []


class Hidden(nn.Module):
    """Has a buffer that every pass changes and no state holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.register_buffer("fixed", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> Any:
        if self.training:
            self.seen += 1
        return self.layer(x)


def test_what_no_state_of_the_model_holds_is_carried_where_passes_change_it() -> None:
    own, other = session(model=Hidden), session(model=Hidden)
    own.model.seen.fill_(7.0)
    assert set(own.state()["transient"]) == {"seen"}
    other.load(own.dump())
    assert float(other.model.seen) == 7.0
    plain = {key: value for key, value in own.state().items() if key != "transient"}
    other.model.seen.fill_(9.0)
    other.load_state(plain)
    assert float(other.model.seen) == 9.0, "an old snapshot does not tell"


@pytest.mark.parametrize(
    ("told", "width", "parts"),
    [(None, 0, False), (True, 0, True), (False, LARGE + 1, False), (None, LARGE + 1, True), (None, LARGE, False)],
)
def test_only_a_large_model_is_handed_over_in_parts_unless_it_is_said(
    told: bool | None, width: int, parts: bool
) -> None:
    own = session(sharded_snapshots=told)
    own.model = nn.Linear(width, 1, bias=False, device="meta") if width else own.model
    assert own.snapshots_sharded is parts


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"model": lambda: 5}, "the factory made int, not an nn.Module"), ({"loss": None}, "no training_step"),
        ({"loss": nn.Sequential(nn.Linear(2, 2))}, "would not be trained"),
        ({"batch_size": 11}, "11 is more than the 10 samples"),
    ],
)  # fmt: skip
def test_what_a_session_cannot_train_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        session(**more)
    check_batch(10, 10)


def test_parameters_of_a_loss_are_the_models_or_fixed() -> None:
    fixed = nn.CrossEntropyLoss(weight=None)
    fixed.register_parameter("scale", nn.Parameter(torch.ones(()), requires_grad=False))
    assert session(loss=fixed).step == 0


def test_a_session_says_what_must_be_alike() -> None:
    one, other = session().description(), session(seed=4).description()
    assert one[:-1] == other[:-1] and one[-1] != other[-1]
    assert "10 samples" in one and "6 steps" in one
    assert any(line.startswith("1.running_mean of shape (4,)") for line in one)
    assert any(line.startswith("0.weight of shape (4, 3)") for line in one)


# ---------------------------------------------------------------- what is left of it


def test_the_result_tells_the_last_figures_that_are_numbers(tmp_path: Path) -> None:
    own = session(eval_data=(X, Y), early_stopping=9, keep_best=True)
    for epoch, figure in enumerate((1.0, 2.0)):
        for _ in range(3):
            step(own, loss=0.25)
        if own.close_epoch({"eval_loss": figure, "odd": float("nan")}):
            own.early_stopping.keep(own.model.state_dict())
            best = own.model[0].weight.detach().clone()
        assert epoch == 0 or not torch.equal(own.model[0].weight, best)
    assert final_metrics(own) == {"loss": 0.25, "eval_loss": 2.0}
    assert final_metrics(session()) == {}
    for _ in range(2):  # again, after a loss while it was written
        assert write_result(own, tmp_path) == ["model.safetensors", "metrics.json", "history.jsonl"]
    figures = json.loads((tmp_path / "output/metrics.json").read_text())
    assert (figures["steps"], figures["samples"], figures["best_step"], figures["best_eval_loss"]) == (6, 20, 3, 1.0)
    rows = [json.loads(line) for line in (tmp_path / "output/history.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6] and rows[2]["eval_loss"] == 1.0
    assert torch.equal(load_file(tmp_path / "output/model.safetensors")["0.weight"], best), "the best, not the last"


# ---------------------------------------------------------------- samples


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, row: Any = None) -> None:
        self.row = row

    def __len__(self) -> int:
        return 5

    def __getitem__(self, place: int) -> Any:
        return self.row if self.row is not None else (torch.rand(2) + place, place)


def test_a_sample_is_drawn_alike_whoever_makes_it_and_anew_in_each_epoch() -> None:
    made = open_samples("data", Rows(), CPU)
    assert isinstance(made, GeneratedSamples) and len(made) == 5
    together, apart = made.take(torch.tensor([1, 4]), 7), made.take(torch.tensor([4]), 7)
    assert torch.equal(together[0][1:], apart[0]) and together[1].tolist() == [1, 4]
    assert not torch.equal(made.take(torch.tensor([4]), 8)[0], apart[0])
    assert not torch.equal(together[0][0] - 1, together[0][1] - 4)


@pytest.mark.parametrize("row", [7, (torch.ones(2),), torch.ones(2, 2)])
def test_a_sample_is_a_tuple_with_a_target(row: Any) -> None:
    with pytest.raises(InvalidSpec, match="sample 3 is"):
        open_samples("data", Rows(row), CPU).take(torch.tensor([3]), 0)


def test_columns_of_every_form_become_tensors_and_images_lie_with_their_channels_innermost() -> None:
    found = open_samples("data", [[1.0, 2.0, 3.0], X[:3]], CPU)
    assert isinstance(found, Resident) and len(found) == 3 and not found.images
    assert [column.tolist() for column in found.take(torch.tensor([2, 0]), 0)] == [[3.0, 1.0], X[[2, 0]].tolist()]
    assert len(open_samples("data", torch.utils.data.TensorDataset(X, Y), CPU)) == 10
    with pytest.raises(InvalidSpec, match="cannot become a tensor") as refused:
        open_samples("data", (X, ["a"]), CPU)
    assert refused.value.field == "data[1]"
    pictures = torch.randn(4, 3, 5, 6)
    plain = Resident([pictures, torch.arange(4)], source={"name": "p"})
    assert plain.images
    turned = plain.with_channels_last()
    assert not turned.images and turned.source == {"name": "p"}
    (one, _), (other, _) = (each.take(torch.tensor([3, 1]), 0) for each in (plain, turned))
    assert torch.equal(one, other) and one.is_contiguous() and other.is_contiguous(memory_format=torch.channels_last)
    already = Resident([pictures.contiguous(memory_format=torch.channels_last), torch.arange(4)])
    assert not already.images and torch.equal(already.take(torch.tensor([3, 1]), 0)[0], one)
    whole = Resident([torch.zeros(4, 3, 5, 6, dtype=torch.uint8), torch.arange(4)])
    assert not whole.images


# ---------------------------------------------------------------- optimizers


def test_the_optimizer_is_the_users_or_adamw_and_uses_one_kernel_where_that_is_left_open() -> None:
    weights = [nn.Parameter(torch.ones(2))]
    usual = make_optimizer(training(), weights)
    assert type(usual) is torch.optim.AdamW and usual.param_groups[0]["fused"] is True
    assert usual.defaults["fused"] is True and usual.param_groups[0]["foreach"] is False
    with pytest.raises(InvalidSpec, match="the factory made list"):
        make_optimizer(training(optimizer=lambda p: list(p)), weights)
    with pytest.raises(InvalidSpec, match="LBFGS calls a closure several times"):
        make_optimizer(training(optimizer=torch.optim.LBFGS), weights)


@pytest.mark.parametrize(
    ("optimizer", "fused"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), True), (lambda p: torch.optim.SGD(p, lr=0.1, foreach=True), None),
        (lambda p: torch.optim.SGD(p, lr=0.1, fused=False), False), (lambda p: torch.optim.RMSprop(p, lr=0.1), None),
        (lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1)), None),
        (lambda p: torch.optim.Adam(p, differentiable=True), None),
        (lambda p: torch.optim.SGD([{"params": p}, {"params": [nn.Parameter(torch.ones(1))], "fused": False}]), None),
    ],
)  # fmt: skip
def test_what_the_user_chose_stays(optimizer: Any, fused: bool | None) -> None:
    made = optimizer([nn.Parameter(torch.ones(2))])
    use_fused_kernel(made)
    assert made.param_groups[0].get("fused") is fused


def test_kernels_are_for_plain_numbers_only() -> None:
    made = torch.optim.SGD([nn.Parameter(torch.ones(2, dtype=torch.complex64))])
    use_fused_kernel(made)
    assert not made.param_groups[0].get("fused")


def test_moments_are_loaded_bit_by_bit_whatever_the_parameters_precision() -> None:
    def made() -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(3, dtype=torch.bfloat16))], momentum=0.9)
        optimizer.param_groups[0]["params"][0].grad = torch.ones(3, dtype=torch.bfloat16)
        optimizer.step()
        return optimizer

    one, other = made(), made()
    moments = torch.tensor([1.0000001, 2.3456789, 3.0])
    saved = one.state_dict()
    saved["state"][0]["momentum_buffer"] = moments
    load_optimizer(other, saved)
    own = other.state[other.param_groups[0]["params"][0]]["momentum_buffer"]
    assert own.dtype == torch.float32 and torch.equal(own, moments) and own.data_ptr() != moments.data_ptr()


def test_an_optimizer_that_cannot_be_tried_says_so_in_one_line() -> None:
    model = nn.Linear(2, 2)

    def cross(parameters: Any) -> Any:
        raise ValueError("not\n  today " + "x" * 300)

    said = why_not_sharded(training(optimizer=cross), model)
    assert "only whole copies can run: not today" in said and len(said) < 220
    others = [nn.Parameter(torch.ones(1))]
    assert "other than those" in why_not_sharded(training(optimizer=lambda p: torch.optim.SGD(others)), model)

    class Odd(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            raise LookupError

    assert why_not_sharded(training(optimizer=lambda p: Odd(p)), model).endswith(": LookupError")


@pytest.mark.parametrize("axis", [0, -1])
def test_an_optimizer_that_looks_along_an_axis_is_found(axis: int) -> None:
    class Along(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for parameter in self.param_groups[0]["params"]:
                parameter.data -= parameter.grad.mean(axis, keepdim=True)

    assert "Along needs whole parameters" in why_not_sharded(
        training(optimizer=lambda p: Along(p)), nn.Linear(2, 2, bias=False)
    )


def test_parameters_that_others_train_take_no_memory_and_are_forgotten() -> None:
    there = placeholder_parameter(torch.Size((1000, 1000)), torch.float64)
    assert there.shape == (1000, 1000) and there.dtype == torch.float64 and there.untyped_storage().nbytes() == 8
    own, other = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([{"params": [own]}, {"params": [other]}], momentum=0.9)
    own.grad, other.grad = torch.ones(2), torch.ones(3)
    optimizer.step()
    drop_parameters(optimizer, [])
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 1]
    drop_parameters(optimizer, [other])
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 0]
    assert own in optimizer.state and other not in optimizer.state


# ---------------------------------------------------------------- words of a step


def test_words_of_all_ranks_add_up_to_what_everybody_hears() -> None:
    said = [RankFlags(1.0, 2.0, True, False), RankFlags(3.0, 4.0, False, True), RankFlags(5.0, 6.0, True, False)]
    values = [pack(word, rank, 3) for rank, word in enumerate(said)]
    assert all(len(each) == flag_count(3) == 8 for each in values)
    heard = unpack([sum(column) for column in zip(*values, strict=True)], 3)
    assert heard == GroupFlags((1.0, 3.0, 5.0), (2.0, 4.0, 6.0), 2, True) and heard.loss == 9.0
    assert not unpack(pack(RankFlags(), 0, 1), 1).snapshot and unpack([0.9999, 0, 0, 0], 1).leaving == 1
    assert single_rank_flags(RankFlags(1.0, 2.0, True, True)) == GroupFlags((1.0,), (2.0,), 1, True)
    assert unpack(pack(RankFlags(1.0, 2.0, True, True), 0, 1), 1) == single_rank_flags(RankFlags(1.0, 2.0, True, True))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_no_number_is_told_with_its_rank_and_step(bad: float) -> None:
    with pytest.raises(TrainingFailed, match=r"at step 8 on rank 1"):
        GroupFlags((1.0, bad, bad), (0.0,) * 3, 0, False).check(7)
    GroupFlags((1.0, -3.0), (0.0,) * 2, 0, False).check(7)


class Branching(nn.Module):
    """Has a layer that takes part from the second step on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.later, self.passes = nn.Linear(3, 2), nn.Linear(3, 2), 0

    def forward(self, x: torch.Tensor) -> Any:
        return self.first(x) + self.later(x) if self.passes > 0 else self.first(x)


@pytest.mark.parametrize(
    "more", [{"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.3}, {"momentum": 0.9, "nesterov": True}, {}]
)
def test_a_layer_that_takes_part_later_than_others_is_trained_as_by_torch_alone(more: dict[str, Any]) -> None:
    own, plain = session(model=Branching, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, **more)), Branching()
    plain.load_state_dict(own.model.state_dict())
    usual = torch.optim.SGD(plain.parameters(), lr=0.1, foreach=False, **more)
    for model, optimizer in ((own.model, own.optimizer), (plain, usual)):
        for passes in range(4):
            model.passes = passes
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(X), Y).backward()
            optimizer.step()
    for one, other in zip(own.model.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_what_lies_in_parts_is_read_with_or_without_what_only_training_needs(tmp_path: Path) -> None:
    own = session()
    step(own)
    named = own.model.state_dict().keys()
    write_shards(tmp_path, own.model, whole_shards(own.model), own.optimizer, named)
    for weights_only in (True, False):
        other = session(seed=8)
        other.load_shards(weights_only=weights_only)
        assert not torch.equal(other.model[0].weight, own.model[0].weight), "nothing lies in parts"
        other.load_state(
            own.progress_state() | {"parts": str(tmp_path), "groups": own.optimizer.state_dict()["param_groups"]}
        )
        assert other.state()["parts"] == str(tmp_path) and "model" not in other.state()
        other.load_shards(weights_only=weights_only)
        assert other.unread_shards is None and other.step == 1
        for one, two in zip(own.model.state_dict().values(), other.model.state_dict().values(), strict=True):
            assert torch.equal(one, two)
        assert bool(other.optimizer.state) is not weights_only
    for place, state in own.optimizer.state_dict()["state"].items():
        for key, value in state.items():
            assert torch.equal(other.optimizer.state_dict()["state"][place][key], value), key
