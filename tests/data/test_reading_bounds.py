"""Promises about what is held at a time and what is said about a place: results stay equal when these go wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairlead.data import BadData, read
from fairlead.data.options import MIB, Options
from fairlead.data.profile import describe
from fairlead.data.readers.texts import folder_batches
from fairlead.data.sampling import EXACT, PREFIX_LENGTH, ROWS, DistinctCounts, RowSample


def test_rows_are_decoded_few_at_a_time_where_one_group_has_long_ones(tmp_path: Path) -> None:
    schema = pa.schema([("a", pa.list_(pa.int64()))])
    with pq.ParquetWriter(tmp_path / "t.parquet", schema) as file:
        for width in (1, 4_000):  # a group of short rows, then one of rows of 32 kB
            values = np.random.default_rng(width).integers(0, 1 << 62, 300 * width)
            column = pa.ListArray.from_arrays(np.arange(301, dtype=np.int32) * width, values)
            file.write_table(pa.table([column], schema))
    batches = list(read(tmp_path / "t.parquet", memory_bytes=16 * MIB).batches())
    assert sum(each.num_rows for each in batches) == 600
    assert max(each.nbytes for each in batches) <= 3 * MIB


def test_small_batches_are_joined_up_to_the_rows_and_the_memory_asked_for(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": range(10_000)}), tmp_path / "t.parquet", row_group_size=100)
    sizes = [each.num_rows for each in read(tmp_path / "t.parquet", batch_rows=1_000).batches()]
    assert sizes == [1_000] * 10
    table = pa.table({"a": [np.random.default_rng(i).bytes(100_000) for i in range(40)]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=1)
    batches = list(read(tmp_path / "t.parquet", memory_bytes=8 * MIB).batches())
    assert 4 <= len(batches) < 40 and max(each.nbytes for each in batches) <= MIB


def test_a_row_that_never_ends_is_named_by_its_line_far_into_the_file(tmp_path: Path) -> None:
    lines = 300_000
    (tmp_path / "t.csv").write_text("a,b\n" + "1,2\n" * lines + '3,"' + "x" * 3 * MIB)
    with pytest.raises(BadData, match=f"line {lines + 2:,} on, more than"):
        read(tmp_path / "t.csv", memory_bytes=16 * MIB).table()


def test_where_another_encoding_ends_to_hold_is_said_by_its_byte(tmp_path: Path) -> None:
    good = "Zoë\n".encode("utf-16-le") * 600_000
    (tmp_path / "t.txt").write_bytes(good + b"\x00\xd8\x00\xd8")
    with pytest.raises(BadData, match=r"near byte ([\d,]+): this is not utf-16-le") as refused:
        read(tmp_path / "t.txt", encoding="utf-16-le").table()
    place = int(str(refused.value.what).split("near byte ")[1].split(":")[0].replace(",", ""))
    assert 0 < place <= len(good)


def test_values_are_counted_exactly_until_there_are_too_many_of_them() -> None:
    few = DistinctCounts()
    for _ in range(3):
        few.add(pa.array(range(EXACT)))
    assert few.exact and few.values[0] == 3 and len(few.values) == EXACT
    few.add(pa.array([EXACT]))
    assert not few.exact
    at_once = DistinctCounts()
    at_once.add(pa.array(range(2 * EXACT + 1)))
    assert not at_once.exact and not at_once.values  # nothing of it was kept


def test_a_sample_stays_small_and_its_texts_short() -> None:
    schema = pa.schema([("n", pa.int64()), ("t", pa.string()), ("b", pa.binary()), ("l", pa.list_(pa.int8()))])
    sample, prunes = RowSample(schema, seed=2), list[int]()
    really = sample._prune
    sample._prune = lambda: (prunes.append(1), really())[1]  # type: ignore[method-assign]
    assert sample.table() is None
    for begin in range(0, 20 * ROWS, 1_000):
        numbers = list(range(begin, begin + 1_000))
        rows = {"n": numbers, "t": ["x" * 500] * 1_000, "b": [b"x"] * 1_000, "l": [[1]] * 1_000}
        sample.add(pa.record_batch(rows, schema=schema))
        assert sample._rows <= 2 * ROWS + 1_000
    assert len(prunes) < 10, "it is put in order now and then, not with every batch"
    drawn = sample.table()
    assert drawn is not None and drawn.num_rows == ROWS and drawn.column_names == ["n", "t"]
    assert set(drawn.column("t").to_pylist()) == {"x" * PREFIX_LENGTH}
    assert np.mean(drawn.column("n").to_numpy()) == pytest.approx(10 * ROWS, rel=0.05)
    assert len(set(drawn.column("n").to_pylist())) == ROWS
    short = RowSample(schema)
    short.add(pa.record_batch({"n": [1], "t": ["a"], "b": [b""], "l": [[]]}, schema=schema))
    assert (kept := short.table()) is not None and kept.num_rows == 1


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([], "there are no rows"), ([None] * 3, "a: is never set"),
        ([1, 1], "a: is the same in all rows that have it: 1"),
        ([1, 2, None, None, None], "a: is not set in 3 of 5 rows"), ([1, 2, None, None], None), ([1], None),
        (["1", "2", "x"], "a: is text, but 2 of 3 values are numbers"), (["1", "x"], None),
        (["1", "2"], "a: is text, but every value is a number"), (["y ", "n"], "a: 1 values have blanks around them"),
        (["N/A", "x"], "a: 'N/A' seems to stand for a missing value (1 rows)"),
        ([*range(21)], "a: is different in every row: an identifier rather than a feature"), ([*range(20)], None),
        ([float(i) for i in range(30)], None), (["x" * 51 + str(i) for i in range(30)], None),
        ([f"k{i}" for i in range(30)], "a: is different in every row: an identifier rather than a feature"),
        ([0.5, float("inf"), float("nan")], "a: 2 values are infinite or no number"),
    ],
)  # fmt: skip
def test_what_is_peculiar_about_a_column_is_said_and_nothing_else(values: list[object], told: str | None) -> None:
    column = pa.array(values) if values else pa.array([], pa.int64())
    assert describe(pa.table({"a": column})).anomalies == (() if told is None else (told,))


def test_moments_are_described_in_any_zone() -> None:
    moments = pa.array([0, 3_600_000_000], pa.timestamp("us", "Europe/Berlin"))
    found = describe(pa.table({"at": moments, "plain": moments.cast(pa.timestamp("us"))}))
    assert [(str(each.min), str(each.max)) for each in found.columns] == [
        ("1970-01-01 00:00:00", "1970-01-01 01:00:00")
    ] * 2


def test_shares_by_length_need_no_more_turns_than_there_are_samples() -> None:
    from fairlead.data.partitioning import _worker_turns

    for shares in ([0.5, 0.5], [0.2, 0.3, 0.5], [0.9, 0.1]):
        turns = _worker_turns(1_000, np.array(shares))
        assert len(turns) == 1_000
        assert np.bincount(turns) == pytest.approx(1_000 * np.array(shares), abs=1)


def test_published_pictures_are_read_many_at_a_time_and_never_more_than_fit(tmp_path: Path) -> None:
    records = np.random.default_rng(0).integers(0, 10, (1_000, 3_073), np.uint8)
    records.tofile(tmp_path / "data_batch_1.bin")
    for how, rows in (({"batch_rows": 300}, [300, 300, 300, 100]), ({"memory_bytes": 8 * 500 * 3_073}, [500, 500])):
        batches = list(read(tmp_path / "data_batch_1.bin", **how).batches())  # type: ignore[arg-type]
        assert [batch.num_rows for batch in batches] == rows
    first = batches[0].column(0)[0].as_py()
    assert first[:6] == [int(records[0, 1 + plane * 1024 + pixel]) for pixel in (0, 1) for plane in (0, 1, 2)]


def test_documents_of_a_folder_come_in_batches_of_an_eighth_of_the_memory(tmp_path: Path) -> None:
    files = [tmp_path / "good" / f"{number}.txt" for number in range(8)]
    files[0].parent.mkdir()
    for file in files:
        file.write_text("x" * (3 * MIB // 8))
    batches = list(folder_batches(files, Options(memory_bytes=8 * MIB, threads=1)))
    assert [batch.num_rows for batch in batches] == [3, 3, 2]
