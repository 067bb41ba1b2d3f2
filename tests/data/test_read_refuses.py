"""Promises about data that does not fit: file, row and column are named, and what to do, wherever in a file it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fairlead.data import BadData, read
from fairlead.data.readers.csv import _as_bad_data
from fairlead.errors import InvalidSpec

MANY = 300_000  # several chunks, parsed side by side


def refusal(path: Path, data: bytes, **how: object) -> BadData:
    path.write_bytes(data)
    with pytest.raises(BadData) as refused:
        for _ in read(path, memory_bytes=64 << 20, **how).batches():  # type: ignore[arg-type]
            pass
    assert refused.value.file == str(path) and refused.value.fix and "\n" not in str(refused.value)
    return refused.value


def test_a_value_of_another_type_is_refused_by_row_and_column(tmp_path: Path) -> None:
    found = refusal(tmp_path / "t.csv", b"a,b\n" + b"1,x\n" * MANY + b"2.5,y\n" + b"1,x\n" * MANY)
    assert (found.row, found.column) == (MANY + 1, "a")
    assert "2.5" in found.what and "schema={'a': 'float64'}" in str(found.fix)
    found = refusal(tmp_path / "t.jsonl", b'{"a": 1}\n' * MANY + b'{"a": "x"}\n')
    assert (found.row, found.column) == (MANY + 1, "a")


def test_a_row_of_another_width_is_refused(tmp_path: Path) -> None:
    found = refusal(tmp_path / "t.csv", b"a,b\n" + b"1,x\n" * MANY + b"1,x,y\n")
    assert (found.row, found.column) == (MANY + 1, None) and "3 columns instead of 2" in found.what


def test_a_field_that_came_later_is_refused_by_name(tmp_path: Path) -> None:
    found = refusal(tmp_path / "t.jsonl", b'{"a": 1}\n' * MANY + b'{"a": 1, "late": 2}\n')
    assert (found.row, found.column) == (MANY + 1, "late")


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.txt"])
def test_bytes_that_are_no_utf8_are_refused_wherever_they_are(name: str, tmp_path: Path) -> None:
    line, odd = {
        "t.csv": (b"1,x\n", b"2,\xe9t\xe9\n"), "t.jsonl": (b'{"a": "x"}\n', b'{"a": "\xe9"}\n'),
        "t.txt": (b"x\n", b"\xe9\n"),
    }[name]  # fmt: skip
    assert "UTF" in refusal(tmp_path / name, line * 3 + odd).what
    found = refusal(tmp_path / name, line * MANY + odd)
    assert "UTF" in found.what
    assert name == "t.jsonl" or found.row in (MANY + 1, MANY)  # whoever has a header has one row less


def test_a_quote_that_is_never_closed_is_refused(tmp_path: Path) -> None:
    assert "never closed" in refusal(tmp_path / "t.csv", b'a,b\n1,x\n2,"y\n3,z\n').what


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.txt", "t.parquet"])
def test_a_cell_of_ten_megabytes_is_refused_and_taken_when_it_is_wanted(name: str, tmp_path: Path) -> None:
    huge = "x" * 10_000_000
    if name == "t.parquet":
        pq.write_table(pa.table({"a": [huge, "small"]}), tmp_path / name)
        data = (tmp_path / name).read_bytes()
    else:
        data = {"t.csv": f"a,b\n1,{huge}\n", "t.jsonl": f'{{"a": "{huge}"}}\n', "t.txt": huge}[name].encode()
    assert "cell_bytes" in str(refusal(tmp_path / name, data).fix)
    wanted = read(tmp_path / name, cell_bytes=16 << 20).table()
    assert any(len(str(value)) == len(huge) for value in wanted.slice(0, 1).to_pylist()[0].values())


def test_what_only_looks_like_a_file_of_its_kind_is_refused(tmp_path: Path) -> None:
    for name in ("t.parquet", "t.npy", "t.npz", "t.safetensors", "t.csv.gz", "t.csv.zip", "t.csv.zst", "t.csv.bz2"):
        start = {"gz": b"\x1f\x8b\x08\x00", "ip": b"PK\x03\x04", "st": b"\x28\xb5\x2f\xfd", "z2": b"BZh9"}
        refusal(tmp_path / name, start.get(name[-2:], b"") + b"this is not what the name says " * 40)
    refusal(tmp_path / "t.csv", b"")
    refusal(tmp_path / "t.jsonl", b"\n\n")
    refusal(tmp_path / "t.csv", b"\x00\x01\x02" * 100)


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "t.npz", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    for name in ("t.npy", "t.npz"):
        refusal(tmp_path / name, (tmp_path / name).read_bytes())


def test_brackets_in_brackets_do_not_end_the_process(tmp_path: Path) -> None:
    deep = 200_000
    for text in (b"[" * deep + b"]" * deep, b'{"b":' * deep + b"1" + b"}" * deep, b'["]]]]",' * deep):
        assert "deep" in refusal(tmp_path / "t.jsonl", b'{"a":' + text.replace(b"[[", b"[\n[") + b"}\n").what


def test_duplicate_names_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "t.csv", b"a,a\n1,2\n").column == "a"


def test_an_archive_of_several_files_wants_one_of_them_named(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("one.csv", "a,b\n1,2\n")
        archive.writestr("notes.txt", "hello")
    assert "one.csv" in refusal(tmp_path / "t.zip", (tmp_path / "t.zip").read_bytes(), format="csv").what
    assert read(tmp_path / "t.zip" / "one.csv").table().to_pylist() == [{"a": 1, "b": 2}]


@pytest.mark.parametrize(
    "how", [{"threads": "x"}, {"batch_rows": 1.5}, {"size": "8"}, {"size": (0, 8)}, {"cell_bytes": True}]
)
def test_an_option_of_another_kind_is_refused_by_name(how: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    with pytest.raises(InvalidSpec) as error:
        read(tmp_path / "t.csv", **how)
    assert error.value.field == next(iter(how))


def test_what_is_wrong_with_a_file_is_said_in_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"a": 1}, {"a": 2}]')
    np.savez(tmp_path / "o.npz", a=np.array([{}, 1], object))
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "a.png").write_bytes(b"")
    (tmp_path / "s.safetensors").write_bytes((1000).to_bytes(8, "little") + b"{}" + bytes(990))
    for name, what in (
        ("a.json", "one JSON array"),
        ("s.safetensors", "header is longer than"),
        ("o.npz", "Python objects"),
        ("flat", "without a label folder"),
    ):
        with pytest.raises(BadData, match=what):
            read(tmp_path / name)


def test_what_arrow_says_otherwise_is_told_with_the_row_that_follows() -> None:
    found = _as_bad_data(Path("t.csv"), pa.ArrowInvalid("something odd\nand more"), 10, ())
    assert (found.row, found.what) == (11, "something odd")
