"""What a training keeps when its model is lent to an engine that cuts it up."""

from __future__ import annotations

import pytest
import torch

import fairlead
from fairlead.training.data import Resident
from fairlead.training.loan import Loan
from fairlead.training.session import Session
from fairlead.training.shards import shards


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
    loan, model = Loan(session), session.model
    loan.use(model, shards(model.named_parameters()))
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
