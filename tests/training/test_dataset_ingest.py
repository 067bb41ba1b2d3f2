"""Loading a data set: read, fitted, prepared and put into the grid, and trained on by its name afterwards."""

from __future__ import annotations

import csv
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fairlead
from fairlead.control.datasets import check_manifest
from fairlead.data import read
from fairlead.data.dataset_refs import dataset
from fairlead.data.recipes.recipe import FittedRecipe
from fairlead.errors import FairleadError, InvalidSpec, Refused
from fairlead.grid import BlockId, Grid
from fairlead.grid.standalone import standalone_grid
from fairlead.training.data import open_samples
from fairlead.training.dataset_ingest import load
from fairlead.training.grid_dataset import grant_datasets
from fairlead.training.result import DataMade, write_result
from fairlead.training.session import Session

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with standalone_grid(tmp_path_factory.mktemp("grid"), quota=64 << 20) as running:
        yield running.admit(quota=64 << 20)


@pytest.fixture(autouse=True)
def worker(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    grant_datasets({})


def people(path: Path, rows: int, *, seed: int = 0, append: bool = False, job: str = "job") -> Path:
    draw = random.Random(seed)
    with path.open("a" if append else "w", newline="") as file:
        writer = csv.writer(file)
        if not append:
            writer.writerow(["age", job, "rich"])
        writer.writerows(
            [draw.randint(18, 80), draw.choice(["clerk", "smith"]), draw.choice(["yes", "no"])] for _ in range(rows)
        )
    return path


class Alone:
    world = 1


def loaded(**params: Any) -> DataMade:
    loop = load(**params).loop
    assert loop is not None
    made = loop(Alone())
    assert isinstance(made, DataMade)
    for each in made.sets:
        check_manifest(each["manifest"])  # as the control plane reads it
    grant_datasets({each["manifest"]["name"]: each for each in made.sets})
    return made


def test_a_table_without_a_recipe_is_ready_to_be_trained_on(tmp_path: Path) -> None:
    made = loaded(source=str(people(tmp_path / "people.csv", 200)), name="people", target="rich", workers=1)
    samples = open_samples("data", "people", CPU)
    x, y = samples.take(torch.arange(200), 0)
    assert x.shape[0] == 200
    assert x.dtype == torch.float32
    assert abs(float(x[:, 0].mean())) < 1e-4, "normalised"
    assert set(y.tolist()) == {0, 1} or set(y.tolist()) == {1, 2}
    assert samples.source is not None
    assert samples.source["recipe"] == made.sets[0]["manifest"]["recipe"]


def test_a_test_part_is_kept_apart_and_prepared_by_what_was_learned_from_the_rest(tmp_path: Path) -> None:
    made = loaded(source=str(people(tmp_path / "p.csv", 400)), name="parts", target="rich", test=0.25, workers=1)
    train, test = (each["manifest"] for each in made.sets)
    assert (train["name"], test["name"]) == ("parts", "parts-test")
    assert train["rows"] + test["rows"] == 400
    assert 50 < test["rows"] < 150
    assert train["recipe"] == test["recipe"]


def test_what_came_since_is_appended_as_a_version_of_its_own(tmp_path: Path) -> None:
    path = people(tmp_path / "log.csv", 100)
    first = loaded(source=str(path), name="log", target="rich", workers=1).sets[0]["manifest"]
    people(path, 30, seed=1, append=True)
    child = loaded(source=str(path), name="log", append=True, workers=1).sets[0]["manifest"]
    assert (child["parent"], child["rows"]) == (first["version"], 130)
    assert child["blocks"][0]["id"] == first["blocks"][0]["id"]
    assert len(open_samples("data", dataset("log"), CPU)) == 130
    assert loaded(source=str(path), name="log", append=True, workers=1).sets == []


def test_a_test_part_without_rows_is_refused(tmp_path: Path) -> None:
    path = people(tmp_path / "few.csv", 3)
    with pytest.raises(InvalidSpec, match="of 3 rows is none at all"):
        loaded(source=str(path), name="few", target="rich", test=0.001, workers=1)


def test_nothing_is_added_to_a_version_whose_blocks_are_gone(tmp_path: Path) -> None:
    path = people(tmp_path / "gone.csv", 50)
    first = loaded(source=str(path), name="gone", target="rich", workers=1).sets[0]["manifest"]
    grid = Grid.of_this_worker()
    assert grid is not None
    grid.drop(BlockId(first["blocks"][0]["id"]))
    people(path, 30, seed=1, append=True)
    with pytest.raises(Refused, match="not in memory any more") as error:
        loaded(source=str(path), name="gone", append=True, workers=1)
    assert "fairlead data load SOURCE --name gone" in str(error.value.fix)


def test_a_source_that_is_another_is_seen_when_something_is_appended(tmp_path: Path) -> None:
    path = people(tmp_path / "s.csv", 50)
    loaded(source=str(path), name="strict", target="rich", workers=1)
    people(path, 60, job="trade")
    with pytest.raises(FairleadError, match="changed"):
        loaded(source=str(path), name="strict", append=True, workers=1)


def test_another_file_is_prepared_as_the_first_was(tmp_path: Path) -> None:
    first = loaded(source=str(people(tmp_path / "a.csv", 100)), name="first", target="rich", workers=1)
    second = loaded(source=str(people(tmp_path / "b.csv", 40, seed=5)), name="second", like="first", workers=1)
    assert second.sets[0]["recipe"] == first.sets[0]["recipe"]
    assert second.sets[0]["manifest"]["rows"] == 40


def test_a_sync_of_a_training_part_and_its_test_part_shares_no_row(tmp_path: Path) -> None:
    path = people(tmp_path / "s.csv", 100)
    made = loaded(source=str(path), name="apart", target="rich", test=0.25, workers=1)
    people(path, 100, seed=1, append=True)
    parents = {each["manifest"]["name"]: each for each in made.sets}
    rows = 0
    for name, parent in parents.items():
        grant_datasets(parents)
        child = loaded(source=str(path), name=name, append=True, workers=1).sets[0]["manifest"]
        assert child["policy"] == parent["manifest"]["policy"]
        rows += child["rows"]
    assert rows == 200


def test_every_block_has_its_hash(tmp_path: Path) -> None:
    made = loaded(source=str(people(tmp_path / "h.csv", 50)), name="hashed", target="rich", test=0.5, workers=1)
    assert all(block["hash"] for each in made.sets for block in each["manifest"]["blocks"])


def test_a_load_that_does_not_fit_fails_with_the_figures_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4_000, 1_000), np.float32))
    monkeypatch.setattr("fairlead.data.preparation.DIRECT_BYTES", 4 << 20)
    (tmp_path / "grid").mkdir()
    with standalone_grid(tmp_path / "grid", quota=8 << 20) as running:
        for name, value in running.admit("tight", quota=8 << 20, spill_bytes=0).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(Refused, match=r"16,000,000 bytes.*quota on a node is 8,388,608") as refusal:
            loaded(source=str(tmp_path / "x.npy"), name="wide", recipe=[{"assemble": {}}], workers=1)
        assert "--grid" in str(refusal.value.fix)
        with running.connect("tight") as grid:
            assert not grid.blocks()


def test_a_data_set_larger_than_the_quota_is_not_trained_on_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((4_000, 1_000), np.float32), y=np.zeros(4_000, np.int64))
    monkeypatch.setattr("fairlead.data.preparation.DIRECT_BYTES", 4 << 20)
    (tmp_path / "grid").mkdir()
    with standalone_grid(tmp_path / "grid", quota=8 << 20) as running:
        for name, value in running.admit("spills", quota=8 << 20, spill_bytes=64 << 20).items():
            monkeypatch.setenv(name, value)
        loaded(source=str(tmp_path / "x.npz"), name="large", recipe=[{"assemble": {}}], target="y", workers=1)
        with pytest.raises(Refused, match=r"must fit into.*quota is 8,388,608"):
            open_samples("data", "large", CPU)


def test_the_fitted_recipe_lies_beside_the_model(tmp_path: Path) -> None:
    made = loaded(source=str(people(tmp_path / "p.csv", 60)), name="served", target="rich", workers=1).sets[0]
    width = open_samples("data", "served", CPU).take(torch.arange(1), 0)[0].shape[1]
    training = fairlead.Training(model=lambda: torch.nn.Linear(width, 3), data="served",
                                 loss=torch.nn.CrossEntropyLoss(), batch_size=20, epochs=1)  # fmt: skip
    assert "recipe.json" in write_result(Session(training, 0), tmp_path)
    text = (tmp_path / "output" / "recipe.json").read_bytes()
    assert hashlib.sha256(text).hexdigest() == made["manifest"]["recipe"]
    fitted = FittedRecipe.from_json(text, expect=made["manifest"]["recipe"])
    assert fitted.apply(read(tmp_path / "p.csv").table().combine_chunks().to_batches()[0]).num_rows == 60


def test_a_target_that_is_no_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="no column poor"):
        loaded(source=str(people(tmp_path / "p.csv", 10)), name="people", target="poor")


def test_content_that_is_loaded_again_leaves_no_old_blocks_and_what_is_appended_to_stays(tmp_path: Path) -> None:
    def held() -> set[str]:
        grid = Grid.of_this_worker()
        assert grid is not None
        return {block.id for block in grid.blocks()}

    before, path = held(), people(tmp_path / "again.csv", 100)
    first = loaded(source=str(path), name="again", target="rich", workers=1).sets[0]["manifest"]
    again = loaded(source=str(path), name="again", target="rich", workers=1).sets[0]["manifest"]
    assert again["version"] == first["version"]
    assert held() - before == {block["id"] for block in again["blocks"]}
    people(path, 30, seed=1, append=True)
    child = loaded(source=str(path), name="again", append=True, workers=1).sets[0]["manifest"]
    assert held() - before == {block["id"] for block in child["blocks"]} > {block["id"] for block in again["blocks"]}
