"""Promises about sources: which files one means, in which order, and what is said when they do not go together."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from PIL import Image

from fairlead.data import BadData, read
from fairlead.data.file_discovery import find_files, format_of
from fairlead.errors import InvalidSpec, NotFound


def test_files_of_several_formats_are_refused_until_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "b.jsonl").write_text('{"a": 1}\n')
    for source in (tmp_path, tmp_path / "*", [tmp_path / "a.csv", tmp_path / "b.jsonl"]):
        with pytest.raises(BadData, match=r"lies among files of other formats \(csv, json\)"):
            find_files(source)
        assert find_files(source, "text").format == "text"
    with pytest.raises(InvalidSpec, match="'tables' is not a known format"):
        find_files(tmp_path, "tables")


def test_a_folder_counts_its_visible_files_in_their_order(tmp_path: Path) -> None:
    for name in ("b.csv", "a.csv", ".hidden.csv", "_SUCCESS", "c.csv"):
        (tmp_path / name).write_text("a\n1\n")
    (tmp_path / "inner.csv").mkdir()
    assert [file.name for file in find_files(tmp_path).files] == ["a.csv", "b.csv", "c.csv"]
    assert [file.name for file in find_files(tmp_path / "[ab].csv").files] == ["a.csv", "b.csv"]


def test_files_in_a_list_keep_the_order_in_which_they_were_named(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.csv").write_text(f"x\n{name}\n")
    found = find_files([tmp_path / "c.csv", tmp_path / "a.csv", tmp_path / "b.csv"])
    assert [file.name for file in found.files] == ["c.csv", "a.csv", "b.csv"]
    assert found.name == f"{tmp_path / 'c.csv'} and 2 more"


def test_a_name_with_the_letters_of_a_pattern_is_a_file_if_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "a[1].csv").write_text("a\n7\n")
    (tmp_path / "a1.csv").write_text("a\n8\n")
    assert read(tmp_path / "a[1].csv").table().to_pylist() == [{"a": 7}]
    with pytest.raises(NotFound, match="no file matches"):
        find_files(tmp_path / "b*.csv")


def test_what_cannot_be_a_source_is_refused_in_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="no files were given"):
        find_files([])
    with pytest.raises(InvalidSpec, match="a int cannot be read as data"):
        find_files(7)
    with pytest.raises(NotFound, match="there is no file"):
        find_files([tmp_path / "gone.csv"])
    (tmp_path / "t.csv").write_text("a\n1\n")
    with pytest.raises(NotFound, match="there is no file"):
        find_files(tmp_path / "t.csv" / "inner.csv")  # only archives hold files
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadData, match="holds no readable files"):
        find_files(tmp_path / "empty")


def test_a_file_of_an_archive_is_named_behind_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("a.csv", "a\n1\n")
        archive.writestr("b.csv", "a\n2\n")
    assert read(tmp_path / "t.zip" / "b.csv").table().to_pylist() == [{"a": 2}]


def test_the_format_is_told_by_the_ending_below_those_of_packing(tmp_path: Path) -> None:
    told = {
        "a.csv": "csv", "a.TSV": "csv", "a.json.gz": "json", "a.parquet": "parquet", "a.txt.zst": "text",
        "a.npz": "arrays", "a.csv.zip": "csv", "a.unknown": "csv", "a": "csv", "a.gz": "csv", "b.json.v2": "csv",
    }  # fmt: skip
    assert {name: format_of(tmp_path / name) for name in told} == told


def test_a_database_is_read_by_its_own_driver(tmp_path: Path) -> None:
    for name, driver in (("t.duckdb", "duckdb"), ("t.sqlite", "sqlite"), ("t.db", "sqlite")):
        (tmp_path / name).touch()
        assert find_files(tmp_path / name).name == f"{driver}:///{tmp_path / name}"


def test_a_folder_of_folders_is_of_pictures_or_of_texts_as_it_is_named(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.txt").write_text(label)
        (tmp_path / label / ".2.txt").write_text("hidden")
        Image.new("RGB", (2, 2)).save(tmp_path / label / "1.png")
    assert (find_files(tmp_path).format, len(find_files(tmp_path).files)) == ("images", 2)
    assert (find_files(tmp_path, "texts").format, len(find_files(tmp_path, "texts").files)) == ("texts", 2)


def test_pictures_that_lie_in_no_folder_have_no_label(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "1.png")
    with pytest.raises(BadData, match="holds images without a label folder"):
        find_files(tmp_path)


def test_a_document_in_another_encoding_is_refused_by_name(tmp_path: Path) -> None:
    for label in ("neg", "pos"):
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.txt").write_bytes(f"Zoë is {label}".encode("latin-1"))
    with pytest.raises(BadData, match=r"neg/1.txt: is not UTF-8"):
        read(tmp_path).table()
    with pytest.raises(BadData, match="is not no-such-encoding"):
        read(tmp_path, encoding="no-such-encoding").table()
    labelled = read(tmp_path, encoding="latin-1").table().to_pylist()
    assert labelled == [{"text": f"Zoë is {label}", "label": label} for label in ("neg", "pos")]
