"""Promises about what a recipe and a reader may be told: a stored recipe means tomorrow what it means today."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image as Pillow
from pydantic import ValidationError

from fairlead.data import BadData, read
from fairlead.data.dataset_refs import dataset
from fairlead.data.options import MIB, Options
from fairlead.data.recipes import Assemble, Encode, Impute, Normalise, Pad, Recipe
from fairlead.data.recipes.batch_columns import Frame, fits_dtype
from fairlead.data.recipes.recipe import STEPS
from fairlead.data.recipes.step import Step
from fairlead.errors import InvalidSpec

# What an option is when a recipe does not say it: recipes are stored without what is usual.
DEFAULTS: dict[str, dict[str, Any]] = {
    "normalise": {"columns": ("numeric",), "how": "standard"},
    "impute": {"columns": ("numeric",), "how": "mean", "value": None, "indicator": False},
    "encode": {"columns": ("text",), "how": "ordinal", "unseen": "own", "buckets": 1024, "at_least": 1,
               "limit": 10_000},
    "assemble": {"columns": ("*",), "into": "features", "dtype": "float32"},
    "select": {"columns": ("*",)},
    "flag": {"columns": ("numeric",), "part": 0.01, "trees": 100, "action": "keep", "into": "anomaly", "seed": 0},
    "image": {"columns": ("image",), "size": None, "channels": 3, "mean": None, "std": None, "layout": "chw",
              "dtype": "float32", "limit_pixels": 64_000_000},
    "pad": {"columns": ("numeric",), "length": None, "coverage": 0.95, "buckets": 1, "value": 0, "side": "right",
            "dtype": "int32"},
    "tokenise": {"columns": ("text",), "model": "bpe", "vocabulary": 16_000, "lower": True, "length": None,
                 "coverage": 0.95, "pad": True, "texts": 20_000, "seed": 0},
}  # fmt: skip
# The least and the most that is taken, and the next one on either side, which is not.
LIMITS: list[tuple[str, str, float, float | None, float, float | None]] = [
    ("encode", "buckets", 2, 1, 1 << 24, (1 << 24) + 1), ("encode", "at_least", 1, 0, 1 << 40, None),
    ("encode", "limit", 1, 0, 1_000_000, 1_000_001), ("flag", "part", 1e-9, 0, 0.499, 0.5),
    ("flag", "trees", 1, 0, 1_000, 1_001), ("image", "limit_pixels", 1, 0, 1 << 40, None),
    ("pad", "length", 1, 0, 1_000_000, 1_000_001), ("pad", "coverage", 1e-9, 0, 1, 1.01),
    ("tokenise", "length", 1, 0, 65_536, 65_537), ("tokenise", "coverage", 1e-9, 0, 1, 1.01),
    ("tokenise", "texts", 1, 0, 1_000_000, 1_000_001),
]  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_what_a_step_does_unless_it_is_told_otherwise_stays_the_same(name: str) -> None:
    assert STEPS[name]().model_dump() == {**DEFAULTS[name], "leave": ()}


@pytest.mark.parametrize(("step", "option", "least", "less", "most", "more"), LIMITS)
def test_an_option_is_taken_up_to_its_limits(
    step: str, option: str, least: float, less: float | None, most: float, more: float | None
) -> None:
    for value in (least, most):
        assert getattr(STEPS[step](**{option: value}), option) == value
    for value in (less, more):
        if value is not None:
            with pytest.raises(ValidationError):
                STEPS[step](**{option: value})


def test_limits_of_reading_follow_from_the_memory() -> None:
    usual = Options(memory_bytes=512 * MIB, threads=2)
    assert (usual.batch_rows, usual.sample_rows, usual.expansion) == (65_536, 10_000, 250.0)
    assert (usual.cell_bytes, usual.unpacked_free_bytes, usual.window) == (8 * MIB, 256 * MIB, (0, None))
    assert usual.row_bytes == 8 * MIB
    for memory, threads, chunk in (
        (512 * MIB, 2, 4 * MIB),
        (64 * MIB, 2, MIB),
        (64 * MIB, 6, MIB // 2),
        (MIB, 2, 65_536),
    ):
        assert Options(memory_bytes=memory, threads=threads).chunk_bytes == chunk
    for memory, cell, row in ((64 * MIB, 8 * MIB, 4 * MIB), (64 * MIB, MIB, MIB), (MIB, 10, 4096)):
        assert Options(memory_bytes=memory, cell_bytes=cell).row_bytes == row


def test_reading_takes_up_to_four_threads_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for cores, threads in ((1, 1), (3, 3), (64, 4)):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: range(cores))
        assert Options().threads == threads


# ---------------------------------------------------------------- which columns a step means

TABLE = pa.table({
    "age": [1, 2], "rate_a": [0.5, 0.7], "rate_b": [1.5, 1.7], "name": ["x", "y"], "y": [0, 1], "numeric": ["u", "v"],
})  # fmt: skip


def frame() -> Frame:
    return Frame.from_batch(TABLE.to_batches()[0])


@pytest.mark.parametrize(
    ("columns", "leave", "meant"),
    [
        (("numeric",), (), ["age", "rate_a", "rate_b"]), (("text",), (), ["name", "numeric"]),
        (("*",), (), ["age", "rate_a", "rate_b", "name", "numeric"]), (("rate_*",), (), ["rate_a", "rate_b"]),
        (("rate_b", "age", "rate_*"), (), ["rate_b", "age", "rate_a"]), (("numeric",), ("rate_*",), ["age"]),
        (("y",), (), ["y"]), (("*",), ("*",), []), (("no_*",), (), []),
    ],
)  # fmt: skip
def test_columns_are_meant_by_name_by_pattern_or_by_kind(
    columns: tuple[str, ...], leave: tuple[str, ...], meant: list[str]
) -> None:
    assert Normalise(columns=columns, leave=leave).resolve(frame(), "y") == meant
    assert Normalise(columns=columns).uses_patterns == any(
        each in ("numeric", "text", "*", "rate_*", "no_*") for each in columns
    )


def test_a_name_that_is_not_there_is_refused_with_what_may_have_been_meant() -> None:
    with pytest.raises(InvalidSpec) as refused:
        Normalise(columns=("rate_c",)).resolve(frame(), None)
    assert refused.value.field == "normalise.columns: rate_c"
    assert refused.value.fix is not None and refused.value.fix.startswith("did you mean rate_")
    assert "there are: age, rate_a, rate_b, name, y, numeric" in refused.value.fix


def test_a_single_name_is_a_list_of_one() -> None:
    assert Encode(columns="name").columns == ("name",)
    assert Recipe([Impute(columns="age")]).to_dict() == Recipe([Impute(columns=("age",))]).to_dict()


@pytest.mark.parametrize(
    ("values", "dtype", "fits"),
    [
        ([], "uint8", True), ([0, 255], "uint8", True), ([0, 256], "uint8", False), ([-1, 0], "uint8", False),
        ([-128, 127], "int8", True), ([-129], "int8", False), ([1.5, float("nan")], "int32", False),
        ([float("inf"), 1.0], "int32", False), ([float("nan"), float("inf")], "float32", True),
        ([65_504.0, float("-inf")], "float16", True), ([65_536.0], "float16", False), ([-65_536.0], "float16", False),
    ],
)  # fmt: skip
def test_numbers_fit_a_type_or_do_not(values: list[float], dtype: str, fits: bool) -> None:
    assert fits_dtype(np.array(values), np.dtype(dtype)) is fits


def test_rows_left_out_leave_every_kind_of_column() -> None:
    """Also columns that are matrices still to be written, such as padded or assembled ones."""
    table = pa.table(
        {"a": [*range(200), 10_000], "b": [*range(200), -9_000], "t": [[1, 2]] * 200 + [[3]], "n": ["x"] * 201}
    )
    flag = STEPS["flag"](columns=("a", "b"), part=0.004, action="drop")
    steps: list[Step] = [Pad(columns=("t",), length=3), flag, Assemble(columns=("a", "b"))]
    fitted = Recipe(steps).fit(read(table))
    made = fitted.apply(table.to_batches()[0])
    kept = made.num_rows
    assert 195 <= kept < 201
    assert made.column("t").to_pylist() == [[1, 2, 0]] * kept
    assert 10_000.0 not in [row[0] for row in made.column("features").to_pylist()]


def test_what_is_selected_comes_once_and_the_target_with_it_unless_columns_are_named() -> None:
    select = STEPS["select"]
    for columns, target, meant in (
        (("*",), "y", ["age", "rate_a", "rate_b", "name", "numeric", "y"]), (("*", "y"), "y", None),
        (("rate_*",), "y", ["rate_a", "rate_b", "y"]), (("age",), "y", ["age"]),
        (("rate_*",), None, ["rate_a", "rate_b"]),
        (("rate_*",), "gone", ["rate_a", "rate_b"]), (("numeric",), None, ["age", "rate_a", "rate_b", "y", "numeric"]),
    ):  # fmt: skip
        found = select(columns=columns).resolve(frame(), target)
        assert len(found) == len(set(found))
        assert meant is None or found == meant


def test_images_are_pixels_however_they_are_kept() -> None:
    pixels = np.arange(2 * 4 * 6 * 3, dtype=np.uint8).reshape(2, 4, 6, 3)
    files = []
    for image in pixels:
        into = io.BytesIO()
        Pillow.fromarray(image).save(into, "PNG")
        files.append(into.getvalue())
    step = STEPS["image"]()
    for kind in (pa.binary(), pa.large_binary()):
        table = Frame({"image": pa.array(files, kind)}, np.arange(2))
        assert np.array_equal(step.pixels(table, "image", None), pixels)  # type: ignore[attr-defined]
        assert step.pixels(table, "image", (2, 3)).shape == (2, 2, 3, 3)  # type: ignore[attr-defined]
    for arrays in (pixels, pixels.transpose(0, 3, 1, 2)):
        assert np.array_equal(step.pixels(Frame({"i": arrays}, np.arange(2)), "i", None), pixels)  # type: ignore[attr-defined]
    assert step.pixels(Frame({"i": pixels}, np.arange(2)), "i", (2, 3)).shape == (2, 2, 3, 3)  # type: ignore[attr-defined]
    grey = pixels[..., 0]
    assert np.array_equal(step.pixels(Frame({"i": grey}, np.arange(2)), "i", None), grey[..., None].repeat(3, 3))  # type: ignore[attr-defined]
    one = STEPS["image"](channels=1)
    assert one.pixels(Frame({"i": pixels}, np.arange(2)), "i", None).shape == (2, 4, 6, 1)  # type: ignore[attr-defined]
    for wrong in (pixels.astype(np.float32), pixels[0, 0]):
        with pytest.raises(BadData, match="not pixels"):
            step.pixels(Frame({"i": wrong}, np.arange(len(wrong))), "i", None)  # type: ignore[attr-defined]
    with pytest.raises(BadData, match="neither encoded images nor pixels"):
        step.pixels(Frame({"i": pa.array(["text"])}, np.arange(1)), "i", None)  # type: ignore[attr-defined]


def test_a_data_set_is_written_with_its_version_if_one_is_meant() -> None:
    assert str(dataset("bank")) == "bank" and str(dataset("bank@abcd1234")) == "bank@abcd1234"
