"""Promises of the buffers of a block, and of what is kept of a data set: columns, versions, references, samples."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fairlead.data import BadData, read
from fairlead.data import watermarks as file_watermarks
from fairlead.data.column_buffers import (
    ContentHash,
    dtype_of,
    empty_columns,
    key_range,
    put_block,
    row_bytes,
    write_rows,
)
from fairlead.data.dataset_refs import DatasetRef, check_dataset_ref, dataset
from fairlead.data.manifest import BlockRef, Manifest, SchemaChanged, version_of
from fairlead.data.options import Options
from fairlead.data.readers import recorded
from fairlead.data.recipes import Encode, Flag, Normalise, Recipe, Select
from fairlead.data.recipes.batch_columns import Frame
from fairlead.data.recipes.outputs import Output
from fairlead.data.recipes.recipe import FittedRecipe, _kind
from fairlead.data.recipes.statistics import Quantiles
from fairlead.errors import InvalidSpec


def test_a_row_takes_the_bytes_of_all_its_columns() -> None:
    assert row_bytes((Output("x", "float32", (2, 3)), Output("y", "uint8"))) == 25
    with pytest.raises(BadData, match="it produces no columns"):
        row_bytes(())
    assert [dtype_of(Output("x", name)).itemsize for name in ("float64", "int16", "bool")] == [8, 2, 1]
    for name in ("string", "object", "<U3", "dictionary<values=string>"):
        with pytest.raises(BadData, match=f"is still {name}") as refused:
            dtype_of(Output("c", name))
        assert refused.value.column == "c"


def test_rows_land_at_their_place_and_nowhere_else() -> None:
    outputs = (Output("x", "float32"), Output("n", "int32"))
    columns = empty_columns(outputs, 6)
    for column in columns.values():
        column[:] = 7
    frame = Frame({"x": np.arange(4.0), "n": pa.array([1, 2, 3, 4])}, np.arange(4))
    write_rows(frame, 1, 3, columns, 2)
    assert columns["x"].tolist() == [7, 7, 1, 2, 7, 7] and columns["n"].tolist() == [7, 7, 2, 3, 7, 7]
    with pytest.raises(BadData, match="is missing") as refused:
        write_rows(Frame({"x": np.arange(4.0)}, np.arange(4)), 0, 1, columns, 0)
    assert refused.value.column == "n"
    gap = Frame({"x": np.array([1.0, np.nan]), "n": np.array([1.0, np.nan])}, np.arange(2))
    with pytest.raises(BadData, match="has missing values") as refused:
        write_rows(gap, 0, 2, columns, 0)
    assert refused.value.column == "n", "a fraction may be missing, a whole number may not"


def test_a_block_is_put_by_tensors_where_the_store_takes_them() -> None:
    class Grid:
        def put_tensors(self, columns: dict[str, Any], *, label: str, cost_s: float) -> str:
            self.put = {name: column.tolist() for name, column in columns.items()}, label, cost_s
            return "block-1"

    grid, columns = Grid(), {"x": np.arange(5)}
    assert put_block(columns, 3, grid, "data", 0.5) == "block-1" and grid.put == ({"x": [0, 1, 2]}, "data", 0.5)
    batches: list[pa.RecordBatch] = []
    assert put_block(columns, 2, lambda batch: batches.append(batch) or "b", "data", 0.5) == "b"  # type: ignore[func-returns-value]
    assert batches[0].to_pydict() == {"x": [0, 1]}


def test_the_hash_of_the_content_does_not_depend_on_the_blocks() -> None:
    whole, cut = ContentHash(), ContentHash()
    values = np.arange(10, dtype=np.int64)
    whole.add({"b": values, "a": values * 2}, 10)
    cut.add({"a": values * 2, "b": values}, 4)
    cut.add({"a": values[4:] * 2, "b": values[4:]}, 6)
    assert whole.digest() == cut.digest() and list(whole.digest()) == ["a", "b"]
    assert whole.digest()["b"] == hashlib.sha256(values.tobytes()).hexdigest()
    fewer = ContentHash()
    fewer.add({"a": values * 2, "b": values}, 9)
    assert fewer.digest() != whole.digest()


def test_the_keys_of_a_block_are_those_of_its_rows() -> None:
    columns = {"id": np.array([5, 3, 9, 1]), "x": np.zeros((4, 2))}
    assert key_range(columns, 3, "id") == [3, 9] and key_range(columns, 4, "id") == [1, 9]
    for key, rows in ((None, 4), ("other", 4), ("x", 4), ("id", 0)):
        assert key_range(columns, rows, key) is None


def manifest(**more: Any) -> Manifest:
    values: dict[str, Any] = {
        "name": "bank", "version": "a1", "schema": [], "source_schema": {"a": "int64", "b": "string"}, "recipe": "r",
        "rows": 3, "blocks": [BlockRef("1", 0, 2, 20), BlockRef("2", 2, 1, 10)], "watermark": {},
    }  # fmt: skip
    return Manifest(**(values | more))


def test_a_manifest_knows_its_size_its_labels_and_its_format() -> None:
    assert manifest().nbytes == 30 and manifest().block_labels == ["dataset/bank"]
    assert manifest(labels=["dataset/bank@1"]).block_labels == ["dataset/bank@1"]
    assert Manifest.from_json(manifest().to_json()) == manifest()
    with pytest.raises(InvalidSpec, match="'fairlead/data-set/9' is not a known format"):
        Manifest.from_json(manifest(format="fairlead/data-set/9").to_json())
    with pytest.raises(InvalidSpec, match="not a data set manifest"):
        Manifest.from_json("{}")


def test_a_changed_schema_names_every_difference() -> None:
    manifest().check(pa.schema([("b", pa.string()), ("a", pa.int64())]))
    with pytest.raises(SchemaChanged, match="without a; with the new c; with the changed b \\(string -> bool\\)"):
        manifest().check(pa.schema([("b", pa.bool_()), ("c", pa.int64())]))


def test_times_of_files_do_not_make_a_version() -> None:
    mark = {"files": {"a.csv": {"size": 1, "mtime_ns": 1, "sha256": "x"}}}
    copied = {"files": {"a.csv": {"size": 1, "mtime_ns": 2, "sha256": "x"}}}
    other = {"files": {"a.csv": {"size": 1, "mtime_ns": 1, "sha256": "y"}}}
    assert version_of(mark) == version_of(copied) != version_of(other) and len(version_of(mark)) == 16
    assert version_of({"when": (1, b"x")}) == version_of({"when": [1, "b'x'"]})


def test_a_reference_is_a_name_with_or_without_a_version() -> None:
    assert dataset("bank") == DatasetRef("bank") and str(dataset("bank@3f2a9c")) == "bank@3f2a9c"
    assert dataset("bank", "abc123").version == "abc123" and dataset("bank@111111", "222222").version == "222222"
    assert dataset("bank", features="x").features == ("x",) and dataset("bank", features=["x", "y"]).features == (
        "x",
        "y",
    )
    for wrong in ("", "Bank", "-bank", "bank-", "bank@", "bank@12345", "bank@xyzxyz", "b" * 41, "a b", 7, None):
        with pytest.raises(InvalidSpec, match="is not a data set name") as refused:
            check_dataset_ref(wrong, "spec.data")  # type: ignore[arg-type]
        assert refused.value.field == "spec.data"
    check_dataset_ref("b" * 40)


def test_a_damaged_batch_of_pictures_is_refused_and_a_missing_one_is_missing(tmp_path: Path) -> None:
    damaged = tmp_path / "data_batch_1.zip"
    damaged.write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(BadData, match="not a complete batch of CIFAR-10"):
        list(recorded.batches(damaged, Options()))
    with pytest.raises(FileNotFoundError):
        list(recorded.batches(tmp_path / "data_batch_2.bin", Options()))


def test_an_unchanged_file_is_not_hashed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a\n1\n")
    mark = read(file).watermark
    monkeypatch.setattr(file_watermarks, "prefix_sha256", lambda path, size: pytest.fail("it was read"))
    assert file_watermarks.file_spans([file], mark, grows=True)[1] == []


def test_a_sketch_of_quantiles_has_only_values_that_were_seen() -> None:
    for seed in range(3):
        values = np.random.default_rng(seed).uniform(5, 6, 30_000)
        sketch = Quantiles()
        for part in np.array_split(values, 7):
            sketch.add(part)
        assert 5 <= sketch.quantiles(0.0)[0] <= sketch.quantiles(0.5)[0] <= sketch.quantiles(1.0)[0] <= 6
        other = Quantiles()
        other.merge(sketch)
        assert other.quantiles(0.1, 0.9) == sketch.quantiles(0.1, 0.9)
        assert sum(len(level) * 2**at for at, level in enumerate(sketch._levels)) == 30_000, "no value is lost"


# ------------------------------------------------------------ recipes

TABLE = pa.table({"n": [1.0, 2.0, 3.0, 4.0], "c": ["a", "b", "a", "b"], "y": [0, 1, 0, 1]})


def test_a_recipe_is_read_from_each_way_of_writing_it() -> None:
    short = Recipe.from_dict(
        ["normalise", {"encode": {"columns": "c", "how": "onehot"}}, {"step": "select", "columns": "*"}]
    )
    assert short.steps == (Normalise(), Encode(columns="c", how="onehot"), Select(columns="*")) and short.target is None
    assert Recipe.from_dict({"steps": [{"normalise": None}], "target": "y"}).to_dict() == {
        "version": 1, "steps": [{"normalise": {}}], "target": "y",
    }  # fmt: skip
    assert Recipe.from_yaml(short.to_yaml()) == short and Recipe.from_yaml(short.to_yaml()).hash == short.hash
    assert Recipe([Normalise(leave=("n",))]).to_dict()["steps"] == [{"normalise": {"except": ["n"]}}]
    assert Recipe([Normalise()]).hash != Recipe([Normalise()], target="y").hash


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("text", "recipe: is not a recipe"), ({"steps": {}}, "recipe: is not a recipe"),
        ({"target": "y"}, "is not a recipe"),
        ({"steps": [], "zeta": 1, "alpha": 2}, "recipe: alpha: unknown field"),
        ({"steps": [], "target": 3}, "recipe: target: is not the name of a column"),
        ({"steps": [], "version": 2}, "version: 2 is not a known recipe version"),
        ({"steps": [3]}, r"steps\[0\]: is not a step"), ({"steps": ["normalise", {}]}, r"steps\[1\]: is not a step"),
        ({"steps": [{"normalise": {}, "encode": {}}]}, r"steps\[0\]: has 2 names"),
        ({"steps": [{"normalise": 3}]}, r"steps\[0\]: normalise: is not a mapping"),
        ({"steps": [{"normalise": {"how": "odd"}}]}, r"steps\[0\]: normalise"),
    ],
)  # fmt: skip
def test_a_document_that_is_no_recipe_is_refused_at_its_place(document: Any, says: str) -> None:
    with pytest.raises(InvalidSpec, match=says):
        Recipe.from_dict(document)


def test_a_fitted_recipe_tells_features_target_and_rows() -> None:
    fitted = Recipe([Normalise(), Encode(columns="c"), Encode(columns="y")], target="y").fit(read(TABLE))
    assert [each.name for each in fitted.features] == ["n", "c"] and fitted.target is not None
    assert fitted.target.labels == ("0", "1") and fitted.rows == 4 and fitted.flagged == {}
    assert fitted.inputs == {"n": "double", "c": "string", "y": "int64"}
    assert Recipe([Normalise()]).fit(read(TABLE)).target is None
    flagged = Recipe([Flag(part=0.4)]).fit(read(TABLE)).flagged
    assert flagged and all(isinstance(row, int) and 0 < score < 1 for row, score in flagged.items())


def test_a_fitted_recipe_takes_batches_without_values_or_without_the_target() -> None:
    fitted = Recipe([Normalise(), Encode(columns="c"), Encode(columns="y")], target="y").fit(read(TABLE))
    served = fitted.apply(TABLE.select(["n", "c"]).to_batches()[0])
    assert served.schema.names == ["n", "c"]
    unknown = pa.record_batch({"n": pa.nulls(2), "c": pa.nulls(2), "y": pa.nulls(2)})
    assert np.isnan(fitted.apply(unknown).column("n").to_numpy()).all()
    with pytest.raises(BadData, match="lacks the columns 'n'"):
        fitted.apply(TABLE.select(["c"]).to_batches()[0])
    with pytest.raises(BadData, match="is string, but was double") as refused:
        fitted.check(pa.schema([("n", pa.string()), ("c", pa.string())]))
    assert refused.value.column == "n"


def test_a_document_of_a_fitted_recipe_is_checked_before_it_is_believed() -> None:
    fitted = Recipe([Normalise()]).fit(read(TABLE))
    text = fitted.to_json()
    assert FittedRecipe.from_json(text, expect=fitted.hash).hash == fitted.hash
    for wrong, says in (
        ("nothing", "is not a fitted recipe"), ("[]", "is not a fitted recipe"),
        (text.replace("recipe/1", "recipe/9"), "its format is"),
        (text.replace('"states":[{', '"states":[{},{'), "it lacks steps"), ("{}", "is not a fitted recipe"),
    ):  # fmt: skip
        with pytest.raises(InvalidSpec, match=says):
            FittedRecipe.from_json(wrong)
    with pytest.raises(InvalidSpec, match=f"has the hash {fitted.hash[:12]}, not {'0' * 12}"):
        FittedRecipe.from_json(text, expect="0" * 64)


@pytest.mark.parametrize(
    ("arrow_type", "kind"),
    [("dictionary<values=string, indices=int32, ordered=0>", "text"),
     ("dictionary<values=int64, indices=int8>", "number"),
     ("halffloat", "number"), ("uint8", "number"), ("decimal128(5, 2)", "number"), ("bool", "number"),
     ("large_string", "text"), ("fixed_size_list<item: float>[3]", "numbers"), ("timestamp[us]", "timestamp[us]")],
)  # fmt: skip
def test_the_kind_of_a_column_follows_from_its_arrow_type(arrow_type: str, kind: str) -> None:
    assert _kind(arrow_type) == kind
