"""Promises about parts: every row, and every key, is in exactly one, whatever the batches are."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from fairlead.data.recipes.array_json import arrays_from_json, arrays_to_json, canonical_json, content_hash
from fairlead.data.train_test_split import Part, split
from fairlead.errors import InvalidSpec

ROWS = pa.record_batch({"customer": [f"c{i % 500}" for i in range(10_000)], "n": range(10_000)})


def test_four_fifths_are_for_training_unless_said_otherwise() -> None:
    train, rest = split()
    assert (train, rest) == (Part(0.0, 0.8), Part(0.8, 1.0))
    assert split(0.3, seed=4, key="n") == (Part(0.0, 0.3, 4, "n"), Part(0.3, 1.0, 4, "n"))
    assert train.count(0, 100_000) == pytest.approx(80_000, rel=0.01)
    for wrong in (0.0, 1.0, -0.1, 1.1):
        with pytest.raises(InvalidSpec, match="is not between 0 and 1"):
            split(wrong)


def test_every_row_is_in_one_part_and_batches_change_nothing() -> None:
    train, rest = split(0.7, seed=3)
    whole = train.mask(0, ROWS)
    assert (whole != rest.mask(0, ROWS)).all()
    pieces = [train.mask(begin, ROWS.slice(begin, 999)) for begin in range(0, 10_000, 999)]
    assert np.array_equal(np.concatenate(pieces), whole)
    assert train.count(0, 10_000) == whole.sum() and train.count(4_000, 500) == whole[4_000:4_500].sum()


def test_many_rows_are_counted_a_million_at_a_time() -> None:
    part, rows = Part(0.2, 0.6, seed=1), (1 << 20) + 1_234
    counted = [part.count(0, rows), part.count(0, 1 << 20), part.count(1 << 20, 1_234)]
    assert None not in counted and counted[0] == sum(each or 0 for each in counted[1:])
    assert counted[0] == pytest.approx(0.4 * rows, rel=0.01)


def test_rows_of_a_key_are_in_one_part_and_those_without_one_too() -> None:
    part = split(0.5, key="customer")[0]
    mask = part.mask(0, ROWS)
    by_customer = mask.reshape(20, 500)
    assert (by_customer == by_customer[0]).all() and 150 < by_customer[0].sum() < 350
    assert part.count(0, 10_000) is None  # only the keys could tell
    missing = pa.record_batch({"customer": pa.array([None, "c1", None])})
    assert part.mask(0, missing)[0] == part.mask(0, missing)[2]
    assert part.mask(0, missing)[1] == part.mask(7, ROWS.slice(1, 1))[0]
    packed = pa.record_batch({"customer": ROWS.column("customer").dictionary_encode()})
    assert np.array_equal(part.mask(0, packed), mask)


def test_another_seed_parts_otherwise() -> None:
    assert not np.array_equal(Part(0.0, 0.5, seed=0).mask(0, ROWS), Part(0.0, 0.5, seed=1).mask(0, ROWS))


# ---------------------------------------------------------------- what was learned, as JSON


@pytest.mark.parametrize(
    "value",
    [np.arange(512.0), np.arange(513, dtype=np.int32), np.arange(6, dtype=">f4").reshape(2, 3),
     np.zeros((0, 4), np.uint8),
     np.array([], np.float64), np.arange(20)[::2], np.arange(1030, dtype=np.int16)[::2]],
)  # fmt: skip
def test_arrays_come_back_from_json_as_they_were(value: np.ndarray) -> None:
    written = json.loads(json.dumps(arrays_to_json({"a": {"b": [value]}})))
    readable = value.ndim == 1 and len(value) <= 512
    assert isinstance(written["a"]["b"][0], list) is readable
    back = np.asarray(arrays_from_json(written)["a"]["b"][0])
    assert np.array_equal(back, value) and back.shape == value.shape
    if not readable:
        assert back.dtype == value.dtype.newbyteorder("<")


def test_plain_values_stay_and_what_is_no_array_is_refused() -> None:
    plain = {"1": [np.float32(0.5), True, None, "x", (1, 2)], "$array": 3, "other": 4}
    assert arrays_to_json(plain) == {"1": [0.5, True, None, "x", [1, 2]], "$array": 3, "other": 4}
    assert arrays_from_json({"$array": 3, "other": 4}) == {"$array": 3, "other": 4}
    sound = arrays_to_json(np.zeros((1, 3), np.uint8))["$array"]
    for change in ({"data": "AA!AA"}, {"data": "A"}, {"shape": [2, 2]}, {"dtype": "O"}):
        with pytest.raises((ValueError, TypeError)):
            arrays_from_json({"$array": {**sound, **change}})


def test_one_content_has_one_name() -> None:
    assert canonical_json({"b": 1, "a": [1.5, "ü"]}) == '{"a":[1.5,"ü"],"b":1}'
    assert content_hash({"b": 1, "a": 2}) == content_hash({"a": 2, "b": 1}) != content_hash({"a": 2, "b": 2})
    with pytest.raises(ValueError):
        canonical_json(float("nan"))
