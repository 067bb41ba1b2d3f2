"""A recipe gives the numbers that were meant, or says in one line why it cannot."""

from __future__ import annotations

import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image as Pillow

from fairlead.data import BadData, prepare, read
from fairlead.data.profile import describe
from fairlead.data.recipes import Assemble, Encode, FittedRecipe, Image, Impute, Normalise, Pad, Recipe
from fairlead.data.recipes.step import Step


def replayed(columns: dict[str, Any], *steps: Step) -> pa.RecordBatch:
    """What comes out of a recipe that was fitted on these columns, written down and read again."""
    source = read(pa.table(columns))
    fitted = Recipe(list(steps)).fit(source)
    again = FittedRecipe.from_json(fitted.to_json(), expect=fitted.hash)
    return again.apply(next(source.batches()))


def png(pixels: np.ndarray[Any, Any]) -> bytes:
    into = io.BytesIO()
    Pillow.fromarray(pixels).save(into, "PNG")
    return into.getvalue()


NAN = float("nan")


@pytest.mark.parametrize(
    ("columns", "step", "what"),
    [
        ({"t": [[0.5, 0.7], [4.2]]}, Pad(columns=("t",)), "holds fractions"),
        ({"t": [[1, None, 3], [4]]}, Pad(columns=("t",)), "missing values"),
        ({"t": [[5_000_000_000], [1]]}, Pad(columns=("t",)), "too large for int32"),
        ({"t": [["a"], ["b"]]}, Pad(columns=("t",)), "other values than numbers"),
        ({"a": [1.5, NAN]}, Assemble(dtype="int32"), "column 'a': .*too large for int32"),
        ({"a": [300, -1]}, Assemble(dtype="uint8"), "column 'a': .*too large for uint8"),
        ({"b": [1.0, 2.0], "a": [1e6, 2.0]}, Assemble(dtype="float16"), "column 'a': .*too large for float16"),
        ({"a": [1.0, None], "a_missing": [5, 6]}, Impute(columns=("a",), indicator=True), "overwrite"),
        ({"a": [1.0, 2.0], "features": ["x", "y"]}, Assemble(columns=("a",)), "overwrite"),
        ({"a": [b"x", b"\xff"]}, Encode(columns=("a",)), "no categories"),
        ({"a": [{"x": 1}]}, Encode(columns=("a",)), "no categories"),
        ({"a": pa.nulls(3, pa.string())}, Encode(how="onehot", unseen="none"), "never set"),
        ({"image": [png(np.zeros((9_000, 9_000), np.bool_))]}, Image(size=(4, 4)), "too large"),
        ({"image": [None, b"x"]}, Image(size=(4, 4)), "row 1, .*is missing"),
        ({"image": [b"x"]}, Image(size=(4, 4)), "is not an image: unknown format"),
    ],
)  # fmt: skip
def test_what_would_become_another_number_is_refused(columns: dict[str, Any], step: Step, what: str) -> None:
    with pytest.raises(BadData, match=what):
        replayed(columns, step)


def test_an_image_that_unpacks_without_end_is_refused_before_it_is_unpacked() -> None:
    header = bytearray(png(np.zeros((1, 1), np.uint8)))
    header[16:24] = (60_000).to_bytes(4, "big") * 2
    with pytest.raises(BadData):
        replayed({"image": [bytes(header)]}, Image(size=(4, 4)))


def test_categories_may_be_dates_decimals_and_numbers_of_which_some_are_none() -> None:
    found = replayed(
        {"day": pa.array([2, 1], pa.date32()), "price": [Decimal("1.5"), Decimal("0.5")], "size": [2.0, NAN]},
        Encode(columns=("day", "price", "size")),
    )
    assert found.to_pydict() == {"day": [1, 0], "price": [1, 0], "size": [0, 1]}


def test_times_decimals_and_the_least_of_whole_numbers_are_normalised() -> None:
    found = replayed({"at": pa.array([1, 3], pa.time64("us")), "price": [Decimal("1.5"), Decimal("0.5")]},
                     Normalise(columns=("at", "price")))  # fmt: skip
    assert found.to_pydict() == {"at": [-1.0, 1.0], "price": [1.0, -1.0]}
    logs = replayed({"a": pa.array([-128, 127, 0], pa.int8())}, Normalise(how="log"))
    assert logs.column("a").to_pylist() == pytest.approx([-np.log(129), np.log(128), 0.0])


def test_a_column_of_decimals_lands_as_numbers() -> None:
    source = read(pa.table({"price": [Decimal("1.5"), Decimal("0.5")], "a": [1.0, 2.0]}))
    fitted = Recipe([Normalise(columns=("a",))]).fit(source)
    landed: list[pa.RecordBatch] = []
    prepare(source, fitted, lambda batch: landed.append(batch) or "block")
    assert landed[0].column("price").to_pylist() == [1.5, 0.5]


def test_images_of_16_bits_keep_their_shades(tmp_path: Path) -> None:
    deep = png((np.arange(64).reshape(8, 8) * 1000).astype(np.uint16))
    found = replayed({"image": [deep]}, Image(channels=1, dtype="uint8"))
    wanted = (np.arange(64) * 1000 // 256).tolist()
    assert found.column("image").to_pylist() == [wanted]
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.png").write_bytes(deep)
    assert read(tmp_path).table()["image"].to_pylist()[0][::3] == wanted


def test_a_first_image_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with (tmp_path / "cat" / "a.png").open("wb") as file:
        file.truncate(100 << 20)  # a hole
    with pytest.raises(BadData, match="has more than"):
        read(tmp_path, memory_bytes=64 << 20)


def test_moments_in_a_zone_are_described(tmp_path: Path) -> None:
    moments = pa.array([0, 1_000_000, None], pa.timestamp("us", tz="Europe/Rome"))
    pq.write_table(pa.table({"at": moments}), tmp_path / "t.parquet")
    found = describe(tmp_path / "t.parquet").columns[0]
    assert (str(found.min), str(found.max), found.nulls) == ("1970-01-01 00:00:00", "1970-01-01 00:00:01", 1)


def test_columns_that_cannot_be_told_apart_or_hold_nothing_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "t.parquet")
    np.save(tmp_path / "wide.npy", np.array([1, 2], np.longdouble))
    np.save(tmp_path / "empty.npy", np.zeros((3, 0)))
    for file, what in (("t.parquet", "two columns"), ("wide.npy", "wider than"), ("empty.npy", "is empty")):
        with pytest.raises(BadData, match=what):
            read(tmp_path / file)
