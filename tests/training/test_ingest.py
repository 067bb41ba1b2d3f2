"""Loading a data set: read, fitted, prepared and put into the grid, and trained on by its name afterwards."""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fairlead.control.datasets import outline
from fairlead.data.named import dataset
from fairlead.errors import FairleadError, InvalidSpec
from fairlead.grid.alone import alone
from fairlead.training.ingest import load
from fairlead.training.named import hand_over, open_named
from fairlead.training.result import DataMade


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with alone(tmp_path_factory.mktemp("grid"), quota=64 << 20) as running:
        yield running.admit(quota=64 << 20)


@pytest.fixture(autouse=True)
def worker(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    hand_over({})


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
        outline(each["manifest"])  # as the control plane reads it
    hand_over({each["manifest"]["name"]: each for each in made.sets})
    return made


def test_a_table_without_a_recipe_is_ready_to_be_trained_on(tmp_path: Path) -> None:
    made = loaded(source=str(people(tmp_path / "people.csv", 200)), name="people", target="rich", workers=1)
    samples = open_named("data", "people")
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
    assert len(open_named("data", dataset("log"))) == 130
    assert loaded(source=str(path), name="log", append=True, workers=1).sets == []


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


def test_a_target_that_is_no_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="no column poor"):
        loaded(source=str(people(tmp_path / "p.csv", 10)), name="people", target="poor")
