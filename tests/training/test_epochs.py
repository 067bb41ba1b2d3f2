"""Pieces, schedules, early ends and best models: the same for any number of workers, and over an interruption."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from fairlead.training.definition import Training
from fairlead.training.early_stopping import EarlyStopping
from tests.training.conftest import MakeGang
from tests.training.gang import Gang
from tests.training.programs import SMALL
from tests.training.test_exactness import assert_same_result, train


def with_fields(**fields: str) -> str:
    """The small program with these fields added to its Training, or put in the place of those that it has."""
    code = SMALL
    if "scheduler" in fields:
        code = code.replace("scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.7), ", "")
    added = ", ".join(f"{name}={value}" for name, value in fields.items())
    return code.replace("seed=3)", f"seed=3, {added})")


def figures(gang: Gang) -> dict[str, float]:
    found: dict[str, float] = json.loads((gang.root / "output" / "metrics.json").read_text())
    return found


RISING = "lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 1.0 if epoch < 3 else 500.0)"


def test_computing_in_pieces_changes_nothing(make_gang: MakeGang) -> None:
    params = {"layers": "dropout"}
    whole = train(make_gang(SMALL, params), 1)
    assert_same_result(whole, train(make_gang(with_fields(accumulate="5"), params), 1))
    assert_same_result(whole, train(make_gang(with_fields(accumulate="3"), params), 2, [0.9, 0.1]))


def test_pieces_and_synced_batch_norm_go_together(make_gang: MakeGang) -> None:
    code = with_fields(accumulate="3")  # the first worker's second and third pieces are empty
    train(make_gang(code, {"layers": "both", "samples": 48}), 2, [0.05, 0.95])


@pytest.mark.parametrize(
    "fields",
    [
        {"scheduler": "lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=20)",
         "scheduler_every": "'step'"},
        {"scheduler": "lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=0.5)"},
    ],
)  # fmt: skip
def test_schedules_by_step_and_by_plateau_are_the_same_for_two_workers(
    make_gang: MakeGang, fields: dict[str, str]
) -> None:
    code, params = with_fields(**fields), {"epochs": 4}
    one, two = train(make_gang(code, params), 1), train(make_gang(code, params), 2)
    assert_same_result(one, two)
    assert one.curve() != pytest.approx(train(make_gang(SMALL, params), 1).curve())


def test_a_training_that_gets_worse_ends_early_with_its_best_model(make_gang: MakeGang) -> None:
    code = with_fields(scheduler=RISING, early_stopping="2", keep_best="True")
    one, two = (train(make_gang(code, {"epochs": 30}), workers) for workers in (1, 2))
    assert_same_result(one, two)
    told = figures(one)
    assert told["steps"] < 30 * 5 and told["best_step"] <= told["steps"] - 10 and told["best_step"] % 5 == 0
    assert told["samples"] == told["steps"] * 10 and told["best_eval_loss"] < told["eval_loss"]
    last = train(make_gang(with_fields(scheduler=RISING, early_stopping="2"), {"epochs": 30}), 1)
    best, final = (load_file(gang.root / "output" / "model.safetensors") for gang in (one, last))
    assert any((best[name] - final[name]).abs().max() > 1e-3 for name in best)


def test_the_best_of_all_epochs_is_remembered_over_an_interruption(make_gang: MakeGang) -> None:
    fields = {"scheduler": RISING, "keep_best": "True"}
    code, params = with_fields(**fields), {"epochs": 8}
    gang = make_gang(code, params | {"slow": 0.01})
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.join("w0", "w1")
    gang.reach(26)
    gang.leave(snapshot=True)
    gang.finish()
    gang.start("w2")
    gang.ready("w2")
    gang.join("w2")
    gang.finish()
    undisturbed = train(make_gang(code, params), 1)
    assert_same_result(undisturbed, gang)
    assert figures(gang)["best_step"] == figures(undisturbed)["best_step"] <= 25
    assert figures(gang)["best_eval_loss"] == figures(undisturbed)["best_eval_loss"]


def test_more_is_better_where_it_is_said_to_be() -> None:
    data = (torch.zeros(4, 2), torch.zeros(4))
    judgement = EarlyStopping(
        Training(
            model=torch.nn.Linear(2, 1), data=data, eval_data=data, loss=torch.nn.MSELoss(), batch_size=2, epochs=9,
            metrics={"accuracy": max}, monitor="accuracy", monitor_mode="max", early_stopping=2,
        )
    )  # fmt: skip
    assert [judgement.judge(step, {"accuracy": value}) for step, value in enumerate([0.5, 0.7, 0.7])] == [
        True, True, False,
    ]  # fmt: skip
    assert not judgement.should_stop and not judgement.judge(3, {"accuracy": 0.6}) and judgement.should_stop
    assert (judgement.best, judgement.best_step) == (0.7, 1)


def test_a_figure_that_is_no_number_is_never_the_best_and_counts_as_an_epoch_without_progress() -> None:
    training = Training(model=torch.nn.Linear(1, 1), data=(torch.ones(2, 1),) * 2, loss=torch.nn.MSELoss(),
                        batch_size=1, epochs=9, eval_data=(torch.ones(2, 1),) * 2, early_stopping=2)  # fmt: skip
    judgement = EarlyStopping(training)
    assert not judgement.judge(1, {"eval_loss": float("nan")}) and not judgement.should_stop
    assert judgement.judge(2, {"eval_loss": 3.0}) and judgement.best == 3.0
    assert not judgement.judge(3, {"eval_loss": float("nan")}) and not judgement.should_stop
    assert not judgement.judge(4, {"eval_loss": float("nan")}) and judgement.should_stop and judgement.best_step == 2
