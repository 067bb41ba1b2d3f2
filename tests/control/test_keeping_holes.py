"""Files with holes in a backup: only parts that hold bytes, every one of them, and nothing that does not fit."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import pytest

from fairlead.control.backup import home_files, sparse_files
from fairlead.control.backup.archive import _CountingReader

KB = 1 << 10


def sparse(path: Path, size: int, *parts: tuple[int, int]) -> Path:
    with path.open("wb") as file:
        for begin, length in parts:
            file.seek(begin)
            file.write(b"x" * length)
        file.truncate(size)
    return path


def found(path: Path) -> sparse_files.Extents | None:
    with path.open("rb") as file:
        parts = sparse_files.extents(file.fileno(), os.fstat(file.fileno()))
        assert file.tell() == 0, "it is read from its beginning"
        return parts


def test_a_file_without_holes_worth_the_words_is_copied_whole(tmp_path: Path) -> None:
    assert found(sparse(tmp_path / "full", 300 * KB, (0, 300 * KB))) is None
    assert found(sparse(tmp_path / "short", 128 * KB, (0, 64 * KB))) is None
    assert found(sparse(tmp_path / "longer", 132 * KB, (0, 64 * KB))) == [(0, 64 * KB)]
    assert found(sparse(tmp_path / "empty", 1 << 30)) == []


def test_parts_with_little_between_them_are_one(tmp_path: Path) -> None:
    near = [(0, 4 * KB), (4 * KB + 60 * KB, 4 * KB), (1 << 20, 4 * KB), ((1 << 20) + 68 * KB, 4 * KB)]
    parts = found(sparse(tmp_path / "f", 8 << 20, *near))
    assert parts == [(0, 68 * KB), (1 << 20, 4 * KB), ((1 << 20) + 68 * KB, 4 * KB)]


def test_parts_are_written_and_read_as_they_were(tmp_path: Path) -> None:
    parts = [(0, 3), (10, 5), (100, 1)]
    text = sparse_files.format_extents(parts, 200)
    assert text == "0+3,10+5,100+1;200" and sparse_files.parse_extents(text) == (parts, 200)
    assert sparse_files.parse_extents(sparse_files.format_extents([], 7)) == ([], 7)
    for wrong in ("0+3,2+5;20", "0+30;20", "5+-1;20", "x+1;20", "0+3"):
        with pytest.raises(ValueError):
            sparse_files.parse_extents(wrong)
    source = io.BytesIO(bytes(range(200)))
    expected = bytes([0, 1, 2, 10, 11, 12, 13, 14, 100])
    for step in (1, 2, 4, 100):
        packed, reader = bytearray(), sparse_files.ExtentReader(source, parts)
        while piece := reader.read(step):
            assert len(piece) <= step
            packed += piece
        assert packed == expected
    assert sparse_files.ExtentReader(io.BytesIO(b"ab"), [(0, 5)]).read(9) == b"ab\0\0\0", "it was cut meanwhile"
    for step in (1, 4, 100):
        target = io.BytesIO()
        sink = sparse_files.SparseWriter(target, text)
        for begin in range(0, len(expected), step):
            sink.write(expected[begin : begin + step])
        whole = bytearray(101)
        for begin, length in parts:
            whole[begin : begin + length] = bytes(range(begin, begin + length))
        assert target.getvalue()[:101] == whole
        with pytest.raises(ValueError, match="more data than extents"):
            sink.write(b"x")


def test_a_tree_is_walked_as_deep_as_is_kept_and_what_lies_deeper_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home_files, "DEEPEST", 4)
    deep = tmp_path / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    (tmp_path / "z").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for folder in (tmp_path, tmp_path / "a", deep):
        (folder / "file").touch()
    sizes = home_files.Sizes()
    walked = [(within, names) for within, names, _ in home_files._walk(tmp_path, sizes)]
    assert walked[0] == ("", ["file", "link"]) and ("a", ["file"]) in walked and ("z", []) in walked
    assert [within for within, _ in walked] == ["", "a", "a/b", "a/b/c", "z"] and sizes.left_out == 1
    assert list(home_files._walk(tmp_path / "gone", sizes)) == []


def test_a_file_goes_into_an_archive_at_the_size_that_was_announced() -> None:
    moved: list[int] = []
    passing = _CountingReader(io.BytesIO(b"abcdef"), 4, moved.append, hashlib.sha256())
    assert (passing.read(0), passing.read(3), passing.read(9), passing.read(9)) == (b"", b"abc", b"d", b"")
    assert sum(moved) == 4 and passing.digest.digest() == hashlib.sha256(b"abcd").digest()
    short = _CountingReader(io.BytesIO(b"ab"), 4, moved.append, hashlib.sha256())
    assert short.read() == b"ab\0\0" and short.read() == b"", "one that became shorter meanwhile is filled up"
