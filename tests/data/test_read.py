"""Promises of read(): every kind of source becomes Arrow batches of one schema, lazily, as often as it is asked."""

from __future__ import annotations

import bz2
import gzip
import json
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from PIL import Image

import fairlead.data
from fairlead.data import BadData, read
from fairlead.data.schema import with_declared_types
from fairlead.errors import FairleadError, InvalidSpec, NotFound

ROWS = 3_000
TABLE = pa.table({"id": range(ROWS), "name": [f'row "{i}", x' for i in range(ROWS)], "w": [i / 8 for i in range(ROWS)]})


def as_csv(delimiter: str = ",") -> bytes:
    lines = [delimiter.join(("id", "name", "w"))]
    for row in TABLE.to_pylist():
        lines.append(delimiter.join((str(row["id"]), '"' + row["name"].replace('"', '""') + '"', str(row["w"]))))
    return "\n".join(lines).encode() + b"\n"


def zipped(data: bytes, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("table.csv", data)


PACKINGS: dict[str, Callable[[bytes, Path], object]] = {
    "t.csv": lambda data, path: path.write_bytes(data),
    "t.csv.gz": lambda data, path: path.write_bytes(gzip.compress(data)),
    "t.csv.bz2": lambda data, path: path.write_bytes(bz2.compress(data)),
    "t.csv.zst": lambda data, path: path.write_bytes(zstandard.compress(data)),
    "t.csv.zip": zipped,
}


@pytest.mark.parametrize("name", PACKINGS)
@pytest.mark.parametrize("threads", [1, 3])
def test_a_table_is_the_same_however_it_is_packed(name: str, threads: int, tmp_path: Path) -> None:
    PACKINGS[name](as_csv(), tmp_path / name)
    source = read(tmp_path / name, threads=threads, memory_bytes=1 << 20, batch_rows=700)
    assert source.schema.types == [pa.int64(), pa.string(), pa.float64()]
    assert max(batch.num_rows for batch in source.batches()) <= 700
    assert source.table() == TABLE
    assert source.table() == TABLE  # once more from the start


def test_separator_header_comments_and_blanks_are_found(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes(as_csv(";"))
    assert read(file).table() == TABLE
    file.write_text("|a comment\n39, State-gov, ?\n50, Private, x\n")
    plain = read(file, columns=["age", "work", "more"], nulls=["?"]).table()
    assert plain.to_pylist()[0] == {"age": 39, "work": "State-gov", "more": None}
    file.write_text('a,b\n1,"two\nlines"\n2,plain\n')
    assert read(file).table().column("b").to_pylist() == ["two\nlines", "plain"]
    file.write_bytes("a,b\n1,Zoë\n".encode("utf-16"))
    assert read(file).table().column("b").to_pylist() == ["Zoë"]
    file.write_bytes("a,b\n1,Zoë\n".encode("latin-1"))
    assert read(file, encoding="latin-1").table().column("b").to_pylist() == ["Zoë"]
    file.write_text("a,b\n")
    assert read(file).table().num_rows == 0


def test_a_caller_has_the_last_word_on_types(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("zip,n\n00501,1\n10001,2\n")
    made = read(file, schema={"zip": "string", "n": "float32"}).table()
    assert made.to_pylist() == [{"zip": "00501", "n": 1.0}, {"zip": "10001", "n": 2.0}]
    with pytest.raises(BadData, match="has no such column"):
        read(file, schema={"nowhere": "string"})
    with pytest.raises(InvalidSpec, match="not a column type"):
        read(file, schema={"n": "numberish"})
    file.write_text(",".join(f"c{number}" for number in range(8)) + "\n" + ",".join("1" * 8) + "\n")
    with pytest.raises(BadData) as refused:
        read(file, schema={"nowhere": "string"})
    assert str(refused.value.fix).endswith("it has c0, c1, c2, c3, c4, c5, …")


def test_parquet_json_lines_and_text_are_read(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "t.parquet", row_group_size=500)
    source = read(tmp_path / "t.parquet", batch_rows=300)
    assert (source.rows, source.table()) == (ROWS, TABLE)
    with (tmp_path / "t.jsonl").open("w") as file:
        for row in TABLE.to_pylist():
            file.write(json.dumps({**row, "tags": ["a", "b"]}) + "\n")
    nested = read(tmp_path / "t.jsonl", memory_bytes=1 << 20).table()
    assert nested.drop_columns(["tags"]) == TABLE and nested.column("tags")[0].as_py() == ["a", "b"]
    (tmp_path / "t.txt").write_text("one\r\ntwo\n\nfour")
    assert read(tmp_path / "t.txt").table().column("text").to_pylist() == ["one", "two", "", "four"]


def test_a_text_of_any_size_is_read_while_no_line_is_longer_than_a_row_may_be(tmp_path: Path) -> None:
    options: dict[str, int] = {"cell_bytes": 4096}
    lines = ["x" * 4096, *("short" for _ in range(5_000)), "y" * 4096]
    (tmp_path / "t.txt").write_text("\n".join(lines) + "\n")
    assert read(tmp_path / "t.txt", **options).table().column("text").to_pylist() == lines
    (tmp_path / "t.txt").write_text("\n".join([*lines, "z" * 4097]) + "\n")
    with pytest.raises(BadData, match="line 5,003 on, more than 4,096 bytes in one row"):
        read(tmp_path / "t.txt", **options).table()


def test_what_a_mac_puts_into_an_archive_beside_the_file_does_not_count(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.csv.zip", "w") as archive:
        archive.writestr("t.csv", "a,b\n1,x\n")
        archive.writestr("__MACOSX/._t.csv", "\0\5\x16")
    assert read(tmp_path / "t.csv.zip").table().to_pylist() == [{"a": 1, "b": "x"}]


def test_several_files_are_one_source_if_their_columns_agree(tmp_path: Path) -> None:
    for place in range(3):
        (tmp_path / f"part-{place}.csv").write_text(f"a,b\n{place},x\n")
    assert read(tmp_path / "part-*.csv").table().column("a").to_pylist() == [0, 1, 2]
    assert read(tmp_path).table().num_rows == 3
    (tmp_path / "part-3.csv").write_text("a,c\n1,x\n")
    with pytest.raises(BadData, match=r"part-3.csv, column 'c': is called 'b'"):
        read(tmp_path).table()


def test_folders_by_label_become_text_and_pixels(tmp_path: Path) -> None:
    for label in ("neg", "pos"):
        (tmp_path / "texts" / label).mkdir(parents=True)
        (tmp_path / "texts" / label / "1.txt").write_text(f"it is {label}")
        (tmp_path / "images" / label).mkdir(parents=True)
        Image.new("RGB", (4, 2), (label == "pos", 7, 9)).save(tmp_path / "images" / label / "1.png")
    assert read(tmp_path / "texts").table().to_pylist() == [
        {"text": "it is neg", "label": "neg"}, {"text": "it is pos", "label": "pos"},
    ]  # fmt: skip
    source = read(tmp_path / "images")
    assert source.schema.field("image").type == pa.list_(pa.uint8(), 24)
    assert source.schema.field("image").metadata == {b"shape": b"[2, 4, 3]"}
    assert source.table().column("image")[1].as_py() == [1, 7, 9] * 8
    Image.new("L", (9, 9)).save(tmp_path / "images" / "pos" / "2.jpg")
    with pytest.raises(BadData, match="9 x 9 pixels, the first image has 2 x 4"):
        read(tmp_path / "images").table()
    assert read(tmp_path / "images", size=(6, 5)).table().num_rows == 3


def test_arrays_of_files_and_of_memory_become_fixed_lists(tmp_path: Path) -> None:
    x, y = np.arange(24, dtype=np.float32).reshape(4, 2, 3), np.arange(4)
    np.save(tmp_path / "x.npy", x)
    np.savez_compressed(tmp_path / "xy.npz", x=x, y=y)
    header = json.dumps({"x": {"dtype": "F32", "shape": [4, 2, 3], "data_offsets": [0, 96]}}).encode()
    (tmp_path / "x.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + x.tobytes())
    for given in (tmp_path / "x.npy", tmp_path / "x.safetensors", x, {"x": x}):
        source = read(given, batch_rows=3)
        assert (source.rows, source.schema.field("x").type) == (4, pa.list_(pa.float32(), 6))
        assert np.array_equal(np.array(source.table().column("x").to_pylist()), x.reshape(4, 6))
    assert read(tmp_path / "xy.npz").schema.names == read((x, y)).schema.names == ["x", "y"]
    with pytest.raises(BadData, match="different numbers of rows"):
        read({"x": x, "y": y[:2]})


def test_tensors_and_whatever_speaks_arrow_are_taken() -> None:
    torch = pytest.importorskip("torch")
    assert read(torch.ones(3, 2, requires_grad=True)).table().column("x")[0].as_py() == [1.0, 1.0]
    assert read(TABLE, batch_rows=100).table() == TABLE
    assert read(duckdb.sql("SELECT 1 AS a").to_arrow_table()).table().to_pylist() == [{"a": 1}]


def test_sql_is_streamed_by_sqlalchemy_and_by_duckdb(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "p.db") as database:
        database.execute("CREATE TABLE people (id INTEGER, name TEXT, w REAL)")
        database.executemany("INSERT INTO people VALUES (?, ?, ?)", [tuple(row.values()) for row in TABLE.to_pylist()])
    by_url = read(f"sqlite:///{tmp_path}/p.db", query="SELECT * FROM people WHERE id < :most", parameters={"most": 10})
    assert by_url.table() == TABLE.slice(0, 10)
    assert read(tmp_path / "p.db", table="people", batch_rows=100).table() == TABLE
    (tmp_path / "t.csv").write_bytes(as_csv())
    over_file = read("duckdb://", query=f"SELECT sum(id) AS total FROM '{tmp_path}/t.csv'")
    assert int(over_file.table().column("total")[0].as_py()) == sum(range(ROWS))
    with duckdb.connect(str(tmp_path / "d.duckdb")) as database:
        database.execute("CREATE TABLE t AS SELECT range AS i FROM range(100)")
    assert read(f"duckdb:///{tmp_path}/d.duckdb", table="t").table().num_rows == 100


def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, object], type[FairleadError]]] = [
        ({"source": tmp_path / "nothing.csv"}, NotFound),
        ({"source": tmp_path}, BadData),
        ({"source": 3}, InvalidSpec),
        ({"source": "x.csv", "formatt": "csv"}, InvalidSpec),
        ({"source": "x.csv", "format": "excel"}, InvalidSpec),
        ({"source": "sqlite://", "query": "SELECT * FROM nowhere"}, BadData),
        ({"source": "duckdb://", "query": "SELECT * FROM nowhere"}, BadData),
        ({"source": "nosuch://host/x", "query": "SELECT 1"}, InvalidSpec),
        ({"source": "duckdb://"}, InvalidSpec),
    ]
    for given, kind in cases:
        with pytest.raises(kind) as refused:
            read(**given)  # type: ignore[arg-type]
        assert refused.value.fix and "\n" not in str(refused.value)


def test_a_password_in_a_url_is_not_shown() -> None:
    with pytest.raises(FairleadError) as refused:
        read("postgresql+psycopg://user:hush@127.0.0.1:1/x", query="SELECT 1")
    assert "hush" not in str(refused.value)


def test_names_of_the_room_are_loaded_when_they_are_used() -> None:
    assert {"read", "Source", "BadData"} <= set(dir(fairlead.data))
    with pytest.raises(AttributeError):
        fairlead.data.nothing  # noqa: B018


def test_what_a_column_says_of_itself_outlives_another_type(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("n", pa.int32(), metadata={"unit": "kg"}), pa.field("m", pa.int32())])
    pq.write_table(pa.table({"n": [1, 2], "m": [3, 4]}, schema=schema), tmp_path / "t.parquet")
    made = with_declared_types("t", pq.read_schema(tmp_path / "t.parquet"), {"n": "float32"})
    assert made.field("n").type == pa.float32() and made.field("n").metadata[b"unit"] == b"kg"
