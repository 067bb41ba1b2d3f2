"""What a training keeps when its model is lent to an engine that cuts it up, and other small parts of a worker."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import fairlead
from fairlead.training.loading import load_function
from fairlead.training.parallel.model_swap import ModelSwap
from fairlead.training.parallel.pipeline import Pipeline
from fairlead.training.parallel.sharded_parameters import make_shards
from fairlead.training.samples import Resident
from fairlead.training.session import Session


def test_a_borrowed_model_is_trained_with_the_learning_rate_and_momentum_that_it_had() -> None:
    x = torch.randn(8, 3)
    session = Session(
        fairlead.Training(
            model=torch.nn.Linear(3, 1), data=(x, x[:, :1]), loss=torch.nn.MSELoss(), batch_size=4, epochs=2,
            optimizer=lambda p: torch.optim.SGD(p, lr=0.4, momentum=0.9),
        ), 0,
    )  # fmt: skip
    session.model(x).sum().backward()
    session.optimizer.step()
    session.optimizer.param_groups[0] |= {"lr": 0.1, "momentum": 0.5}  # as a schedule does
    before = session.optimizer.state_dict()
    loan, model = ModelSwap(session), session.model
    loan.install(model, make_shards(model.named_parameters()))
    group = session.optimizer.param_groups[0]
    assert (group["lr"], group["momentum"]) == (0.1, 0.5)
    moments = [session.optimizer.state[p]["momentum_buffer"] for p in group["params"]]
    assert all(torch.equal(now, before["state"][at]["momentum_buffer"]) for at, now in enumerate(moments))


@pytest.mark.parametrize(
    ("column", "images"),
    [(torch.rand(2, 3, 4, 4), True), (torch.rand(2, 3), False), (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), False)],
)
def test_only_batches_of_images_are_kept_with_their_channels_innermost(column: torch.Tensor, images: bool) -> None:
    data = Resident([column])
    assert data.images is images
    again = data.with_channels_last()
    assert not again.images and torch.equal(again.take(torch.tensor([1, 0]), 0)[0], column[[1, 0]])


@pytest.mark.parametrize(("micro", "left"), [(2, 0), (3, 0), (1, 1), (0, 2)])
def test_a_micro_batch_without_samples_adds_nothing_to_a_pipelines_gradients(micro: int, left: int) -> None:
    """Three samples in micro-batches of two: the rest of them is filled up."""
    pipeline: Any = object.__new__(Pipeline)
    pipeline._valid, pipeline._micro, pipeline._rows, pipeline._total, pipeline._factor = 3, micro, 2, 3, 1
    pipeline._output = pytree.tree_flatten(torch.zeros(1))[1]
    pipeline._session = SimpleNamespace(training=SimpleNamespace(loss=torch.nn.MSELoss()))
    outputs = torch.ones(2, 1, requires_grad=True)
    loss = pipeline._loss(outputs, torch.zeros(2, 1))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(left / 3) and outputs.grad is not None
    assert outputs.grad.flatten().tolist() == pytest.approx([2 / 3 if place < left else 0.0 for place in range(2)])


def test_a_file_finds_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "lies_beside_it.py").write_text("VALUE = 7\n")
    (tmp_path / "finds_it.py").write_text("import lies_beside_it\ndef value(): return lies_beside_it.VALUE\n")
    assert load_function(f"{tmp_path / 'finds_it.py'}:value")() == 7
    assert sys.path.count(str(tmp_path)) == 1


def test_a_file_is_imported_under_its_own_name_unless_that_is_taken_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    for name in ("its_own_name.py", "json.py", "no-name.py"):
        (tmp_path / name).write_text("def where(): return __name__\n")
    try:
        found = [load_function(f"{name}:where")() for name in ("its_own_name.py", "json.py", "no-name.py")]
    finally:
        for name in set(sys.modules) - before:
            del sys.modules[name]
    assert found == ["its_own_name", "fairlead_user_json", "fairlead_user_no-name"]
