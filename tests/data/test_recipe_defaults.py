"""What recipes, readers and manifests mean when nothing is said: hashes leave defaults out, so they stay."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from fairlead.data import recipes, schema
from fairlead.data.errors import BadData
from fairlead.data.manifest import BlockRef, Column, FlaggedRows, Manifest, RowPolicy
from fairlead.data.options import Options
from fairlead.data.recipes.recipe import Recipe
from fairlead.errors import InvalidSpec

NUMBERS, TEXTS = ("numeric",), ("text",)
DEFAULTS: dict[str, dict[str, Any]] = {
    "impute": {"columns": NUMBERS, "how": "mean", "value": None, "indicator": False},
    "normalise": {"columns": NUMBERS, "how": "standard"},
    "encode": {"columns": TEXTS, "how": "ordinal", "unseen": "own", "buckets": 1024, "at_least": 1, "limit": 10_000},
    "tokenise": {
        "columns": TEXTS, "model": "bpe", "vocabulary": 16_000, "lower": True, "length": None, "coverage": 0.95,
        "pad": True, "texts": 20_000, "seed": 0,
    },
    "pad": {
        "columns": NUMBERS, "length": None, "coverage": 0.95, "buckets": 1, "value": 0, "side": "right",
        "dtype": "int32",
    },
    "flag": {"columns": NUMBERS, "part": 0.01, "trees": 100, "action": "keep", "into": "anomaly", "seed": 0},
    "image": {
        "columns": ("image",), "channels": 3, "mean": None, "std": None, "layout": "chw", "dtype": "float32",
        "limit_pixels": 64_000_000,
    },
    "assemble": {"columns": ("*",), "into": "features", "dtype": "float32"},
}  # fmt: skip
NEEDED: dict[str, dict[str, Any]] = {"image": {"size": (8, 9)}}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_step_means_what_it_always_did_where_nothing_is_said(name: str) -> None:
    """Its recipe has the same hash as before, so it must make the same of the data."""
    needed = NEEDED.get(name, {})
    recipe = Recipe.from_dict({"steps": [{name: needed}]})
    (step,) = recipe.steps
    assert step.model_dump(by_alias=True) == {"except": (), **DEFAULTS[name], **needed}
    said = {key: list(value) if isinstance(value, tuple) else value for key, value in DEFAULTS[name].items()}
    assert Recipe.from_dict({"steps": [{name: said | needed}]}).hash == recipe.hash


@pytest.mark.parametrize(
    ("step", "option", "least", "most"),
    [
        ("tokenise", "length", 1, 65_536), ("tokenise", "texts", 1, 1_000_000), ("encode", "buckets", 2, 1 << 24),
        ("encode", "at_least", 1, None), ("encode", "limit", 1, 1_000_000), ("flag", "trees", 1, 1_000),
        ("pad", "length", 1, 1_000_000), ("image", "limit_pixels", 1, None),
    ],
)  # fmt: skip
def test_a_number_is_taken_up_to_its_bounds_and_not_beyond(
    step: str, option: str, least: int, most: int | None
) -> None:
    for good in (least, *([] if most is None else [most])):
        Recipe.from_dict({"steps": [{step: {option: good} | NEEDED.get(step, {})}]})
    for bad in (least - 1, *([] if most is None else [most + 1])):
        with pytest.raises(InvalidSpec) as refused:
            Recipe.from_dict({"steps": [{step: {option: bad} | NEEDED.get(step, {})}]})
        assert option in f"{refused.value.field} {refused.value.message}"


@pytest.mark.parametrize(
    ("step", "option", "good", "bad"),
    [
        ("tokenise", "coverage", (0.001, 1), (0, 1.001)),
        ("pad", "coverage", (0.001, 1), (0, 1.001)),
        ("flag", "part", (0.001, 0.499), (0, 0.5)),
    ],
)
def test_a_part_lies_between_its_bounds(
    step: str, option: str, good: tuple[float, ...], bad: tuple[float, ...]
) -> None:
    for value in good:
        Recipe.from_dict({"steps": [{step: {option: value}}]})
    for value in bad:
        with pytest.raises(InvalidSpec):
            Recipe.from_dict({"steps": [{step: {option: value}}]})


def test_files_of_unknown_origin_are_read_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Options(memory_bytes=1 << 30, threads=2)
    assert (usual.batch_rows, usual.cell_bytes, usual.sample_rows) == (65_536, 8 << 20, 10_000)
    assert (usual.expansion, usual.unpacked_free_bytes, usual.window) == (250.0, 256 << 20, (0, None))
    assert (usual.chunk_bytes, usual.row_bytes) == (4 << 20, 8 << 20)
    small = Options(memory_bytes=16 << 20, threads=2)
    assert (small.chunk_bytes, small.row_bytes) == ((16 << 20) // 64, 1 << 20)
    tiny = Options(memory_bytes=1, threads=2)
    assert (tiny.chunk_bytes, tiny.row_bytes) == (64 << 10, 4 << 10)
    assert Options(cell_bytes=5000, memory_bytes=1 << 30).row_bytes == 5000
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(64))
    assert Options().threads == 4
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(1))
    assert Options().threads == 1


def test_what_stands_in_the_room_of_recipes_is_found_there_and_nothing_else() -> None:
    assert set(recipes.__all__) <= set(dir(recipes)) and recipes.Recipe is Recipe
    with pytest.raises(AttributeError, match="NoSuchStep"):
        _ = recipes.NoSuchStep


def test_a_manifest_without_what_older_ones_do_not_say() -> None:
    plain = {"name": "n", "version": "v", "schema": [], "source_schema": {}, "recipe": "", "rows": 0, "blocks": [],
             "watermark": {}}  # fmt: skip
    read = Manifest.from_json(msgspec.json.encode(plain))
    assert (read.policy, read.parent, read.target, read.flagged) == (RowPolicy(), None, None, [])
    assert (read.source_rows, read.block_labels, read.nbytes) == (0, ["dataset/n"], 0)
    assert (RowPolicy().part_seed, RowPolicy().flagged) == (0, "keep")
    labelled = Manifest.from_json(msgspec.json.encode(plain | {"labels": ["a", "b"]}))
    assert labelled.block_labels == ["a", "b"] and Manifest.from_json(labelled.to_json()) == labelled
    for strange in (b"[]", b"{", msgspec.json.encode(plain | {"format": "later"})):
        with pytest.raises(InvalidSpec):
            Manifest.from_json(strange)


# ---------------------------------------------------------------- schemas


def test_types_are_known_by_the_names_that_people_use() -> None:
    names = {"float": pa.float64(), "int": pa.int64(), "str": pa.string(), "text": pa.string(), "boolean": pa.bool_(),
             "date": pa.date32(), "int8": pa.int8(), "timestamp[us]": pa.timestamp("us")}  # fmt: skip
    assert {name: schema.type_of("c", name) for name in names} == names
    assert schema.type_of("c", pa.int16()) == pa.int16()
    with pytest.raises(InvalidSpec) as refused:
        schema.type_of("c", "number")
    assert refused.value.field == "schema.c"


def test_what_is_said_of_a_column_counts_and_the_rest_is_inferred() -> None:
    inferred = pa.schema([pa.field("a", pa.int64(), metadata={"k": "v"}), pa.field("b", pa.string())])
    assert schema.with_declared_types("f", inferred, None) is inferred
    for wanted in ({"a": "float"}, pa.schema([("a", pa.float64())])):
        found = schema.with_declared_types("f", inferred, wanted)
        assert [field.type for field in found] == [pa.float64(), pa.string()]
        assert found.field("a").metadata == {b"k": b"v"}
    with pytest.raises(BadData, match="has no such column") as missing:
        schema.with_declared_types("f", inferred, {"z": "int"})
    assert missing.value.column == "z" and "a, b" in str(missing.value.fix)
    with pytest.raises(InvalidSpec, match="neither"):
        schema.with_declared_types("f", inferred, 7)
    many = pa.schema([(f"c{at}", pa.int8()) for at in range(7)])
    with pytest.raises(BadData) as missing:
        schema.with_declared_types("f", many, {"z": "int"})
    assert str(missing.value.fix).endswith("c5, …")


def test_files_of_one_table_have_the_same_columns_in_the_same_order() -> None:
    first = pa.schema([("a", pa.int8()), ("b", pa.int8())])
    schema.check_same_columns("f", first, ["a", "b"], "first")
    with pytest.raises(BadData, match="has 1 columns, first has 2"):
        schema.check_same_columns("f", first, ["a"], "first")
    with pytest.raises(BadData, match="is called 'b' in first") as odd:
        schema.check_same_columns("f", first, ["a", "c"], "first")
    assert odd.value.column == "c"


@pytest.mark.parametrize(
    ("then", "now", "fits"),
    [
        (pa.int64(), pa.int32(), True), (pa.int32(), pa.int64(), False), (pa.int32(), pa.uint32(), True),
        (pa.float64(), pa.int64(), True), (pa.float64(), pa.float32(), True), (pa.int64(), pa.float64(), False),
        (pa.string(), pa.int64(), False), (pa.float64(), pa.string(), False), (pa.float64(), pa.bool_(), False),
    ],
)  # fmt: skip
def test_a_narrower_number_fits_into_a_wider_one(then: pa.DataType, now: pa.DataType, fits: bool) -> None:
    (change,) = schema.schema_changes(pa.schema([("c", then)]), pa.schema([("c", now)]))
    assert change == schema.SchemaChange("c", f"was {then}, is {now}", fits)


def test_every_difference_between_two_schemas_is_told_in_the_order_of_the_columns() -> None:
    before = pa.schema([("a", pa.int8()), ("b", pa.int8()), ("c", pa.int8())])
    after = pa.schema([("n", pa.string()), ("c", pa.int8()), ("b", pa.int16()), ("m", pa.int8())])
    assert [(each.column, each.what, each.fits) for each in schema.schema_changes(before, after)] == [
        ("a", "is gone (was int8)", False), ("b", "was int8, is int16", False), ("n", "is new (string)", False),
        ("m", "is new (int8)", False),
    ]  # fmt: skip
    assert (
        schema.schema_changes(before, before) == () and schema.schema_line(after) == "n string, c int8, b int16, m int8"
    )
    told = schema.schema_to_json(pa.schema([pa.field("a", pa.int8(), metadata={"k": "v"}), pa.field("b", pa.string())]))
    assert told == [{"name": "a", "type": "int8", "meta": {"k": "v"}}, {"name": "b", "type": "string"}]


def test_sizes_of_a_data_set_are_those_of_its_blocks() -> None:
    blocks = [BlockRef("x", 0, 1, 10), BlockRef("y", 1, 2, 5)]
    made = Manifest("n", "v", [Column("a", "float32")], {}, "", 3, blocks, {})
    assert made.nbytes == 15 and (FlaggedRows().count, FlaggedRows().rows, FlaggedRows().block) == (0, [], None)


@pytest.mark.parametrize(
    ("values", "dtype", "words"),
    [
        (np.array([1.0, 2.0]), "int32", ""), (np.array([1.0, 2.5]), "int32", "holds fractions"),
        (np.array([1.0, np.nan]), "int32", "missing values"), (np.array([1.0, np.nan, 2.5]), "float32", ""),
        (np.array([1 << 40]), "int32", "too large for int32"), (np.array([1 << 40]), "int64", ""),
        (np.array(["a"]), "int32", "other values than numbers"), (np.array([True]), "int32", ""),
        (np.array([1 << 40]), "float32", ""),
    ],
)  # fmt: skip
def test_lists_are_padded_unless_a_number_would_become_another(values: Any, dtype: Any, words: str) -> None:
    step = recipes.Pad(length=3, dtype=dtype)
    if not words:
        step._check(values, "c")
        return
    with pytest.raises(BadData, match=words):
        step._check(values, "c")
