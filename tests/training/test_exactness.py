"""The result of a training does not depend on how many workers share it, nor how unevenly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from fairlead import wire
from tests.training.conftest import MakeGang
from tests.training.gang import Gang
from tests.training.programs import ATTENTION, DEFAULTS, SMALL

NAMES = ["w0", "w1", "w2"]


def train(gang: Gang, workers: int, shares: list[float] | None = None) -> Gang:
    names = NAMES[:workers]
    gang.start(*names)
    gang.ready(*names)
    gang.join(*names, shares=shares)
    gang.finish()
    return gang


def assert_same_result(one: Gang, other: Gang, tolerance: float = 1e-10) -> None:
    left, right = one.curve(), other.curve()
    assert list(left) == list(right) and len(left) > 0
    assert list(left.values()) == pytest.approx(list(right.values()), abs=tolerance)
    models = [load_file(gang.root / "output" / "model.safetensors") for gang in (one, other)]
    assert models[0].keys() == models[1].keys()
    for name, tensor in models[0].items():
        assert (tensor - models[1][name]).abs().max() <= tolerance, name


@pytest.mark.parametrize("layers", ["plain", "dropout", "batchnorm", "both"])
def test_loss_curve_and_parameters_are_the_same_for_one_two_and_three_workers(make_gang: MakeGang, layers: str) -> None:
    one = train(make_gang(SMALL, {"layers": layers}), 1)
    two = train(make_gang(SMALL, {"layers": layers}), 2, [0.75, 0.25])
    three = train(make_gang(SMALL, {"layers": layers}), 3)
    assert_same_result(one, two)
    assert_same_result(one, three)


def test_a_worker_without_samples_changes_nothing(make_gang: MakeGang) -> None:
    params = {"layers": "both", "batch_size": 2, "samples": 12}
    assert_same_result(train(make_gang(SMALL, params), 1), train(make_gang(SMALL, params), 3))


def test_a_data_set_gives_the_same_as_its_tensors(make_gang: MakeGang) -> None:
    tensors = train(make_gang(SMALL, {"layers": "dropout"}), 1)
    dataset = train(make_gang(SMALL, {"layers": "dropout", "dataset": True}), 2)
    assert_same_result(tensors, dataset)


def test_the_result_is_written_and_told(make_gang: MakeGang) -> None:
    gang = train(make_gang(SMALL), 2)
    finished = gang.workers["w0"].last(wire.Finished)
    output = gang.root / "output"
    assert sorted(finished.artifacts) == sorted(path.name for path in Path(output).iterdir())
    assert set(finished.metrics) == {"loss", "eval_loss", "accuracy"}
    written = json.loads((output / "metrics.json").read_text())
    assert written["accuracy"] == finished.metrics["accuracy"] and written["steps"] == 10 and written["samples"] == 100
    history = [json.loads(line) for line in (output / "history.jsonl").read_text().splitlines()]
    assert [row["step"] for row in history] == list(range(1, 11))
    assert ["accuracy" in row for row in history] == [row["step"] in (5, 10) for row in history]
    assert gang.workers["w1"].last(wire.Finished).artifacts == []


def test_every_step_is_reported_once_and_every_rank_gives_signs_of_life(make_gang: MakeGang) -> None:
    gang = train(make_gang(SMALL), 2)
    steps = [row["step"] for progress in gang.workers["w0"].heard(wire.Progress) for row in progress.steps]
    assert steps == list(range(1, 11))
    assert gang.workers["w1"].heard(wire.Progress) and not any(p.steps for p in gang.workers["w1"].heard(wire.Progress))


def test_dropout_in_attention_and_lstm_is_exact_and_unused_parameters_stay_untouched(make_gang: MakeGang) -> None:
    one = train(make_gang(ATTENTION), 1)
    three = train(make_gang(ATTENTION), 3, [0.5, 0.1, 0.4])
    assert_same_result(one, three, 1e-9)
    assert "depend" not in one.log("w0")


def test_attention_without_dropout_draws_nothing(make_gang: MakeGang) -> None:
    """Its kernels are marked as random; believed, shares would never follow and nothing be called exact."""
    still = ATTENTION.replace("16, dropout=0.2", "16, dropout=0.0")
    gang = train(make_gang(still), 1)
    assert "draws random numbers" not in gang.log("w0")
    assert_same_result(gang, train(make_gang(still), 2, [0.7, 0.3]), 1e-9)


def test_a_model_that_draws_for_itself_is_told_that_its_result_depends_on_the_workers(make_gang: MakeGang) -> None:
    first, second = (train(make_gang(ATTENTION, {"noise": True}), 2) for _ in range(2))
    assert "draws random numbers itself (randn_like): results depend on the number of workers" in first.log("w0")
    assert_same_result(first, second, 0.0)  # but a replay with as many workers gives the very same


def test_a_worker_can_be_started_by_exec_for_another_environment(make_gang: MakeGang) -> None:
    gang = make_gang(SMALL)
    gang.start_by_exec("w0")
    gang.ready("w0")
    gang.join("w0")
    gang.finish()
    assert_same_result(gang, train(make_gang(SMALL), 2))


def test_layers_that_find_their_size_at_the_first_batch_train_like_others(make_gang: MakeGang) -> None:
    code = SMALL.replace("nn.Linear(6, 8)", "nn.LazyLinear(8)").replace("nn.BatchNorm1d(8)", "nn.LazyBatchNorm1d()")
    assert_same_result(train(make_gang(code, {"layers": "both"}), 1), train(make_gang(code, {"layers": "both"}), 2))


def test_arrays_a_model_factory_and_the_default_optimizer_are_enough(make_gang: MakeGang) -> None:
    one, three = train(make_gang(DEFAULTS), 1), train(make_gang(DEFAULTS), 3)
    assert_same_result(one, three)
    assert one.workers["w0"].last(wire.Finished).metrics == pytest.approx(
        three.workers["w0"].last(wire.Finished).metrics
    )
