"""Promises of watermarks: a later read takes what came since, and refuses what has changed behind its back."""

from __future__ import annotations

import contextlib
import gzip
import sqlite3
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from fairlead.data import BadData, read
from fairlead.errors import InvalidSpec


def test_a_file_that_grew_gives_its_new_lines_only(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,b\n1,x\n2,y\n")
    first = read(file)
    file.write_text("a,b\n1,x\n2,y\n3,z\n")
    assert first.table().num_rows == 2  # what came after the look belongs to the next read
    again = read(file, after=first.watermark)
    assert again.table().to_pylist() == [{"a": 3, "b": "z"}]
    assert read(file, after=again.watermark).table().num_rows == 0


def test_new_files_are_read_and_old_ones_are_not(tmp_path: Path) -> None:
    for name in ("1", "2"):
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(b'{"a": %s}\n' % name.encode()))
    mark = read(tmp_path).watermark
    assert {Path(name).name for name in mark["files"]} == {"1.jsonl.gz", "2.jsonl.gz"}
    (tmp_path / "3.jsonl.gz").write_bytes(gzip.compress(b'{"a": 3}\n'))
    later = read(tmp_path, after=msgspec.json.decode(msgspec.json.encode(mark)))  # as a manifest keeps it
    assert later.table().column("a").to_pylist() == [3]
    assert len(later.watermark["files"]) == 3


def test_a_file_that_was_only_touched_is_not_read_again(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a\n1\n")
    mark = read(file).watermark
    file.touch()
    assert read(file, after=mark).table().num_rows == 0


@pytest.mark.parametrize("now", ["a,b\n9,x\n", "a,b\n9,x\n2,y\n", "a\n"])
def test_a_file_that_was_changed_is_refused(now: str, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,b\n1,x\n")
    mark = read(file).watermark
    file.write_text(now)
    with pytest.raises(BadData, match="has changed"):
        read(file, after=mark)


def test_a_row_that_was_read_in_part_is_not_completed_silently(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("a,b\n1,x")
    mark = read(file).watermark
    file.write_text("a,b\n1,xyz\n")
    with pytest.raises(BadData, match="whole lines"):
        read(file, after=mark)


def test_sql_goes_on_above_its_high_water_value(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "p.db") as database:
        database.execute("CREATE TABLE calls (id INTEGER, what TEXT)")
        database.executemany("INSERT INTO calls VALUES (?, ?)", [(i, "x") for i in range(5)])
        database.commit()
        first = read(tmp_path / "p.db", table="calls", order="id")
        database.executemany("INSERT INTO calls VALUES (?, ?)", [(i, "y") for i in range(5, 8)])
        database.commit()
        assert first.table().num_rows == 5  # what came after the look belongs to the next read
        later = read(tmp_path / "p.db", table="calls", order="id", after=first.watermark)
        assert (later.table().column("id").to_pylist(), later.watermark["high"]) == ([5, 6, 7], 7)
        assert read(tmp_path / "p.db", table="calls", order="id", after=later.watermark).table().num_rows == 0


def test_sql_without_an_order_is_not_read_on(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "p.db") as database:
        database.execute("CREATE TABLE calls (id INTEGER, other INTEGER)")
        database.executemany("INSERT INTO calls VALUES (?, ?)", [(i, -i) for i in range(5)])
    how = {"table": "calls"}
    unordered = read(tmp_path / "p.db", **how).watermark
    with pytest.raises(InvalidSpec, match="which rows are new") as refusal:
        read(tmp_path / "p.db", after=unordered, **how)
    assert "order=" in str(refusal.value.fix)
    for before, now in ((unordered, "id"), (read(tmp_path / "p.db", order="id", **how).watermark, "other")):
        with pytest.raises(InvalidSpec, match="order"):
            read(tmp_path / "p.db", after=before, order=now, **how)


def test_sql_rows_that_the_order_cannot_place_are_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "p.db") as database:
        database.execute("CREATE TABLE calls (id INTEGER)")
        database.executemany("INSERT INTO calls VALUES (?)", [(1,), (None,), (3,)])
    with pytest.raises(BadData, match="1 row") as refusal:
        read(tmp_path / "p.db", table="calls", order="id")
    assert "IS NOT NULL" in str(refusal.value.fix)
    assert read(tmp_path / "p.db", query="SELECT * FROM calls WHERE id IS NOT NULL", order="id").table().num_rows == 2


def saved(path: Path, rows: np.ndarray) -> Path:
    if path.suffix == ".npy":
        np.save(path, rows)
    elif path.suffix == ".npz":
        np.savez(path, x=rows)
    else:
        save_file({"x": rows}, path)
    return path


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors"])
def test_arrays_in_several_files_are_read_one_after_the_other_and_once(kind: str, tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    saved(tmp_path / f"1.{kind}", rows[:2])
    saved(tmp_path / f"2.{kind}", rows[2:3])
    first = read(tmp_path)
    assert first.rows == 3
    assert first.table().column("x").to_pylist() == rows[:3].tolist()
    assert read(tmp_path, after=first.watermark).table().num_rows == 0
    saved(tmp_path / f"3.{kind}", rows[3:])
    later = read(tmp_path / f"*.{kind}", after=first.watermark)
    assert (later.rows, later.table().column("x").to_pylist()) == (3, rows[3:].tolist())
    mark = later.watermark
    assert len(mark["files"]) == 3
    saved(tmp_path / f"1.{kind}", rows[:3])
    with pytest.raises(BadData, match="has changed"):
        read(tmp_path, after=mark)


def test_arrays_that_do_not_go_together_are_refused_by_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((4, 2)))
    np.save(tmp_path / "y.npy", np.zeros(4))
    with pytest.raises(BadData, match=r"y\.npy"):
        read(tmp_path)


@pytest.fixture
def people(tmp_path: Path) -> str:
    """A database of three rows, by its URL."""
    with contextlib.closing(sqlite3.connect(tmp_path / "p.db")) as database, database:
        database.execute("CREATE TABLE people (id INTEGER, age REAL, name TEXT)")
        database.executemany("INSERT INTO people VALUES (?, ?, ?)", [(1, 3.5, "a"), (2, 4.0, "b"), (3, 5.0, "c")])
    return f"sqlite:///{tmp_path}/p.db"


def test_a_query_with_nothing_new_keeps_its_schema(people: str, tmp_path: Path) -> None:
    first = read(people, table="people", order="id")
    again = read(people, table="people", order="id", after=first.watermark)
    assert (again.schema, again.table().num_rows, again.watermark) == (first.schema, 0, first.watermark)
    with contextlib.closing(sqlite3.connect(tmp_path / "p.db")) as database, database:
        database.execute("INSERT INTO people VALUES (4, NULL, NULL)")
    more = read(people, table="people", order="id", after=first.watermark)
    assert (more.schema, more.table().to_pylist()) == (first.schema, [{"id": 4, "age": None, "name": None}])


def test_an_order_that_is_no_column_is_refused(people: str) -> None:
    with pytest.raises(InvalidSpec, match="the query has no column idd") as error:
        read(people, table="people", order="idd")
    assert "id, age, name" in str(error.value.fix)


def test_a_database_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="there is no file"):
        read(f"sqlite:///{tmp_path}/none.db", table="people")
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("url", ["sqlite://", "duckdb:"])
def test_columns_of_one_name_are_refused(url: str) -> None:
    with pytest.raises(BadData, match="column 'a': two columns have this name"):
        read(url, query="SELECT 1 AS a, 2 AS a")


def test_a_file_that_was_away_for_a_while_is_not_read_twice(tmp_path: Path) -> None:
    folder, away = tmp_path / "data", tmp_path / "away.csv"
    folder.mkdir()
    for name in ("1", "2"):
        (folder / f"{name}.csv").write_text(f"a\n{name}\n")
    first = read(folder).watermark
    (folder / "1.csv").rename(away)
    without = read(folder, after=first)
    assert len(without.watermark["files"]) == 2 and without.table().num_rows == 0
    away.rename(folder / "1.csv")
    assert read(folder, after=without.watermark).table().num_rows == 0
