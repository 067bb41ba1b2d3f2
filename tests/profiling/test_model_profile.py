"""A model is understood without running it in full: layers, FLOPs, sizes, where it may be cut, and why not."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from fairlead.errors import InvalidSpec
from fairlead.planning.cost import estimate
from fairlead.planning.plan import Plan
from fairlead.planning.profiles import ModelProfile, model_from, to_plain
from fairlead.planning.search import candidates
from fairlead.planning.topology import Topology
from fairlead.profiling.analysis_client import ask_for_profile
from fairlead.profiling.model_profile import build_model, profile_model
from fairlead.profiling.tensor_splits import degree_limit, find_splits
from tests.planning.made import SLOW, hardware

from . import programs


def names(profile: ModelProfile) -> list[str]:
    return [layer.name for layer in profile.layers]


def test_a_plain_sequence_is_cut_between_its_layers() -> None:
    found = profile_model(programs.mlp())
    assert names(found) == ["0", "2", "4"]
    assert [layer.flops for layer in found.layers] == [2 * 16 * 32, 2 * 32 * 32, 2 * 32 * 4]
    assert found.parameters == 17 * 32 + 33 * 32 + 33 * 4
    assert found.layers[0].output_bytes == 4 * 32 and found.sample_bytes == 4 * 16 + 8
    assert found.state_bytes == 8 and found.batch_norm == 0 and found.limits == ()
    splits = [split for layer in found.layers for split in layer.splits]
    assert splits == [("0", "column"), ("2", "row")]
    assert found.tensor_limit == 32
    assert model_from(to_plain(found)) == found


def test_what_is_held_without_being_trained_is_counted_where_it_lies() -> None:
    training = programs.mlp()
    model = build_model(training)
    whole = profile_model(training, model)
    model.get_submodule("2").requires_grad_(False)
    model.get_submodule("0").register_buffer("table", torch.zeros(1000))
    found = profile_model(training, model)
    assert [layer.frozen_bytes for layer in found.layers] == [0, 4 * 33 * 32, 0]
    assert [layer.buffer_bytes for layer in found.layers] == [4000, 0, 0]
    size, usual = (estimate(each, Topology(hardware(1)), Plan()).memory_bytes for each in (found, whole))
    assert size - 4000 == usual - 3 * 4 * 33 * 32  # neither gradients nor a state of the optimiser


def test_a_network_with_functions_between_its_layers_is_traced() -> None:
    found = profile_model(programs.images())
    assert names(found) == ["first", "norm", "second", "out"]
    assert found.layers[1].output_bytes == 4 * 8 * 8 * 8  # what crosses a cut before the next layer
    assert found.layers[2].output_bytes == 4 * 16
    assert found.batch_norm == 1 and found.state_bytes == 0 and found.tensor_limit == 1
    assert found.layers[0].activation_bytes > 0


def test_a_transformer_has_a_unit_per_block_with_pairs_to_split() -> None:
    found = profile_model(programs.text())
    assert names(found) == ["words", "blocks.layers.0", "blocks.layers.1", "blocks.layers.2", "out"]
    block = found.layers[1]
    inside = {"self_attn": "heads", "linear1": "column", "linear2": "row"}
    assert dict(block.splits) == {f"blocks.layers.0.{name}": how for name, how in inside.items()}
    assert 0 < block.split_flops <= block.flops and block.exchange_bytes == 4 * 4 * 8 * 32
    assert found.layers[0].splits == (("words", "vocabulary"),)
    assert found.tensor_limit == 4 and [layer.group for layer in found.layers] == [-1, 1, 2, 3, -1]


def test_layers_of_a_block_of_ones_own_are_shared_where_trying_shows_that_nothing_mixes_them() -> None:
    found = find_splits(programs.Own(), (torch.randn(4, 6, 16),))
    assert {(cut.name, cut.how) for cut in found} == {
        ("attention", "heads"), *((f"attention.{name}", "column") for name in "qkv"), ("attention.out", "row"),
        ("up", "column"), ("down", "row"),
    }  # fmt: skip
    assert degree_limit(found) == 2


def test_convolutions_are_pairs_only_with_nothing_between_that_mixes_channels() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3))
    normed = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 16, 3))
    images = (torch.randn(2, 3, 16, 16),)
    assert [(cut.name, cut.how) for cut in find_splits(plain, images)] == [("0", "column"), ("3", "row")]
    assert find_splits(normed, images) == []


def test_the_flops_of_an_lstm_are_counted() -> None:
    found = profile_model(programs.recurrent())
    cells = next(layer for layer in found.layers if layer.name == "cells")
    assert cells.flops >= 8 * 2 * 4 * 32 * (16 + 32)


@pytest.mark.parametrize(
    ("training", "word"), [(programs.looking, "traced"), (programs.tied, "shared"), (programs.costly, "value per row")]
)
def test_a_model_that_cannot_be_cut_is_still_run_in_copies_and_the_reason_is_said(training, word: str) -> None:  # type: ignore[no-untyped-def]
    found = profile_model(training())
    assert len(found.layers) == 1 and any(word in reason for reason in found.limits)
    assert found.flops > 0
    plans = [one.plan for one in candidates(found, hardware(2, link=SLOW))]
    assert {plan.pipeline for plan in plans} == {1} and any(plan.data == 2 for plan in plans)


def test_a_model_with_a_step_of_its_own_runs_in_copies() -> None:
    found = profile_model(programs.own_step())
    assert len(found.layers) == 1 and "training step of its own" in found.limits[0] and found.flops == 2 * 16 * 4


def test_a_model_with_nothing_to_train_is_refused_as_in_training() -> None:
    training = programs.mlp()
    model = build_model(training).requires_grad_(False)
    with pytest.raises(InvalidSpec, match="has no parameters to train"):
        profile_model(training, model)


def test_plans_that_change_the_maths_are_looked_at_only_if_allowed() -> None:
    assert profile_model(programs.mlp()).exact
    assert not profile_model(dataclasses.replace(programs.mlp(), exact=False)).exact


def test_user_code_runs_in_a_process_of_its_own() -> None:
    run = "tests.profiling.programs:mlp"
    found = ask_for_profile(run, {"width": 64}, device="cpu")
    assert found.layers[1].parameters == 65 * 64
    assert found.calibration is not None and found.calibration.sample_s > 0 and found.calibration.optimizer_s > 0
    assert sum(layer.seconds for layer in found.layers) > 0


def test_what_user_code_raises_is_told_in_one_line() -> None:
    with pytest.raises(InvalidSpec) as told:
        ask_for_profile("tests.profiling.programs:broken", {})
    assert "KeyError: 'missing' (programs.py:" in str(told.value)
    with pytest.raises(InvalidSpec) as told:
        ask_for_profile("tests.profiling.programs:nothing", {})
    assert "there is no function nothing" in str(told.value)
