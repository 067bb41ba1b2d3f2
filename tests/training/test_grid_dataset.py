"""Training on data sets by name: the columns that are wanted, in one block or many, and words for what is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import fairlead
from fairlead import spec_errors
from fairlead.data.dataset_refs import DATA_PATTERN as named_pattern
from fairlead.data.dataset_refs import dataset
from fairlead.errors import InvalidSpec, Refused
from fairlead.grid.standalone import StandaloneGrid, standalone_grid
from fairlead.training.data import open_samples
from fairlead.training.grid_dataset import BlockSamples, grant_datasets, open_dataset, recipe_of
from fairlead.training.samples import Resident
from fairlead.training.session import Session

ROWS = 40
CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")
"""The second stands for a card, as far as where its tensors lie."""


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneGrid]:
    with standalone_grid(tmp_path_factory.mktemp("grid"), quota=64 << 20) as running:
        yield running


@pytest.fixture
def bank(grid: StandaloneGrid, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Forty rows of three numbers and a class, in two blocks; returns its columns."""
    for name, value in grid.admit(quota=64 << 20).items():
        monkeypatch.setenv(name, value)
    rng = np.random.default_rng(0)
    columns = {
        "features": rng.normal(size=(ROWS, 3)).astype(np.float32), "age": rng.normal(size=ROWS).astype(np.float32),
        "debt": rng.normal(size=ROWS).astype(np.float32), "y": rng.integers(0, 2, ROWS).astype(np.int32),
    }  # fmt: skip
    with grid.connect() as client:
        blocks = [
            {"id": client.put_tensors({n: c[a:b] for n, c in columns.items()}, label="dataset/bank"), "rows": b - a}
            for a, b in ((0, 25), (25, ROWS))
        ]
    schema = [{"name": name, "dtype": str(column.dtype)} for name, column in columns.items()]
    manifest = {"name": "bank", "version": "ab" * 8, "rows": ROWS, "schema": schema, "blocks": blocks, "target": "y"}
    one = {**manifest, "name": "one", "rows": 25, "blocks": blocks[:1]}
    gone = {**manifest, "name": "gone", "blocks": [{"id": "f" * 32, "rows": ROWS}]}
    told = {each["name"]: {"manifest": each, "recipe": None} for each in (manifest, one, gone)}
    grant_datasets(told)
    return columns


def test_a_batch_is_what_it_would_be_in_one_piece(bank: dict[str, Any]) -> None:
    samples = open_dataset("data", dataset("bank", features="features"), CPU)
    index = torch.tensor([39, 0, 24, 25, 7, 25])
    x, y = samples.take(index, 0)
    assert len(samples) == ROWS
    assert x.numpy().tolist() == bank["features"][index.numpy()].tolist()
    assert y.tolist() == bank["y"][index.numpy()].tolist()
    assert y.dtype == torch.int64


def test_one_block_is_taken_from_as_it_lies_in_the_arena(bank: dict[str, Any]) -> None:
    samples = open_dataset("data", dataset("one", features="features"), CPU)
    assert isinstance(samples, Resident)
    x, _ = samples.take(torch.tensor([3]), 0)
    assert x.numpy().tolist() == bank["features"][[3]].tolist()
    assert samples.source is not None
    assert samples.source["version"] == "ab" * 8


def test_single_numbers_come_side_by_side(bank: dict[str, Any]) -> None:
    x, _ = open_dataset("data", dataset("bank", features=["age", "debt"]), CPU).take(torch.tensor([30]), 0)
    assert x.shape == (1, 2)
    assert x[0, 1] == bank["debt"][30]


def test_a_training_by_name_is_the_training_on_its_tensors(bank: dict[str, Any]) -> None:
    common: dict[str, Any] = {
        "model": lambda: nn.Linear(3, 2), "loss": nn.CrossEntropyLoss(), "batch_size": 8, "epochs": 1, "seed": 3,
    }  # fmt: skip
    named = Session(fairlead.Training(data=dataset("bank", features="features"), **common), 0)
    tensors = torch.from_numpy(bank["features"]), torch.from_numpy(bank["y"]).long()
    plain = Session(fairlead.Training(data=tensors, **common), 0)
    index = torch.arange(8)
    assert named.description() == plain.description()
    for ours, theirs in zip(named.samples.take(index, 0), plain.samples.take(index, 0), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["one", "bank"])
def test_data_by_name_lie_on_the_device_that_trains(bank: dict[str, Any], name: str) -> None:
    samples = open_samples("data", dataset(name, features="features"), ELSEWHERE)
    index = torch.tensor([3, 0, 7], device=ELSEWHERE if name == "one" else CPU)
    assert [column.device for column in samples.take(index, 0)] == [ELSEWHERE, ELSEWHERE]


@pytest.mark.parametrize(
    ("meant", "word"),
    [
        (dataset("nothing"), "there is no data set 'nothing'"),
        (dataset("bank@cdcdcd"), "there is no data set 'bank@cdcdcd'"),
        (dataset("bank", features="pets"), "has no column pets"),
        (dataset("bank", target="z"), "has no target z"),
    ],
)
def test_what_is_not_there_is_named(bank: dict[str, Any], meant: Any, word: str) -> None:
    with pytest.raises(InvalidSpec, match=word):
        open_dataset("data", meant, CPU)


def test_data_of_which_the_grid_has_nothing_any_more_is_named_with_how_to_load_it(bank: dict[str, Any]) -> None:
    with pytest.raises(Refused, match="gone is no longer in the grid") as raised:
        open_dataset("data", dataset("gone", features="features"), CPU)
    assert raised.value.fix == "load it anew: fairlead data load SOURCE --name gone"


def test_without_a_grid_it_says_so(bank: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FAIRLEAD_GRID")
    with pytest.raises(InvalidSpec, match="no grid"):
        open_dataset("data", "bank", CPU)


@pytest.mark.parametrize("name", ["", "Bank", "../bank", "bank@", "bank@xyz123", 7])
def test_a_name_that_is_none_is_refused_where_it_is_written(name: Any) -> None:
    with pytest.raises(InvalidSpec, match="not a data set name"):
        dataset(name)


def test_names_are_alike_in_trainings_and_in_specs() -> None:
    assert named_pattern == spec_errors.DATA_PATTERN


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_rows_are_found_however_the_blocks_are_cut(sizes: list[int], data: st.DataObject) -> None:
    rows = torch.arange(sum(sizes) * 2.0).reshape(-1, 2)
    samples = BlockSamples([(block,) for block in torch.split(rows, sizes)], {}, CPU)
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=20))
    assert torch.equal(samples.take(torch.tensor(index), 0)[0], rows[index])


def test_columns_of_several_numbers_stay_apart_from_single_ones(bank: dict[str, Any]) -> None:
    samples = open_dataset("data", dataset("bank", features=["features", "age"]), CPU)
    first, second, target = samples.take(torch.tensor([0, 30]), 0)
    assert first.shape == (2, 3) and second.shape == (2,) and target.dtype == torch.int64
    assert np.array_equal(second.numpy(), bank["age"][[0, 30]])


def test_data_that_was_not_handed_over_has_no_recipe_to_leave_behind() -> None:
    grant_datasets({})
    assert recipe_of(None) is None and recipe_of({"name": "bank", "recipe": "x"}) is None
    grant_datasets({"bank": {"manifest": {}}})
    assert recipe_of({"name": "bank", "recipe": "x"}) is None
