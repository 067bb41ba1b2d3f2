"""A model that brings its own training step and optimizer trains like the same thing written as a Training."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fairlead import wire
from fairlead.errors import InvalidSpec
from fairlead.training.lightning import configure_optimizers
from tests.training.conftest import MakeGang
from tests.training.programs import SMALL
from tests.training.test_exactness import assert_same_result, train

OWN = (
    SMALL.replace(
        "def training(",
        """class Lit(nn.Sequential):
    def training_step(self, batch, index):
        x, y = batch
        return {"loss": nn.functional.cross_entropy(self(x), y)}
    def validation_step(self, batch, index):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])
    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.02)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7), "interval": "epoch"}]

def training(""",
    )
    .replace("model = nn.Sequential(", "model = Lit(")
    .replace("loss=nn.CrossEntropyLoss(),", "")
)
OWN = OWN.replace("optimizer=lambda p: torch.optim.AdamW(p, lr=0.02),", "").replace(
    "scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.7), ", ""
)


def test_it_gives_the_same_as_written_out_with_one_and_two_workers(make_gang: MakeGang) -> None:
    params = {"layers": "both", "epochs": 3}
    plain = train(make_gang(SMALL, params), 1)
    one, two = train(make_gang(OWN, params), 1), train(make_gang(OWN, params), 2)
    assert_same_result(plain, one)
    assert_same_result(plain, two)
    figures = [gang.workers["w0"].last(wire.Finished).metrics for gang in (plain, one, two)]
    assert figures[1] == pytest.approx(figures[0]) and figures[2] == pytest.approx(figures[0])


def test_what_it_may_return_is_read() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1))]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    class Lit:
        def __init__(self, made: Any) -> None:
            self.made = made

        def configure_optimizers(self) -> Any:
            return self.made

    for made in (optimizer, [optimizer], {"optimizer": optimizer}):
        assert (
            configure_optimizers(Lit(made)).optimizer is optimizer and configure_optimizers(Lit(made)).scheduler is None
        )
    found = configure_optimizers(
        Lit({"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}})
    )
    assert found.scheduler is schedule and found.every == "step"
    for wrong in ([optimizer, optimizer], None, ([optimizer], [schedule, schedule])):
        with pytest.raises(InvalidSpec):
            configure_optimizers(Lit(wrong))
