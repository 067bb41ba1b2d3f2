"""Promises of text chunks: whole rows of bounded size in UTF-8, and errors that name the line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.data.errors import BadData, printable
from fairlead.data.options import MIB, Options
from fairlead.data.readers.text_chunks import chunks, has_open_quote, row_too_long, utf8_blocks

OPTIONS = Options(memory_bytes=MIB, threads=1)


def written(folder: Path, data: bytes) -> Path:
    path = folder / "t.txt"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        (b"\xef\xbb\xbfa\n", None, b"a\n"), (b"\xef\xbb\xbfa\n", "utf-8-sig", b"a\n"),
        (b"\xef\xbb\xbfa\n", "ASCII", b"a\n"),
        ("é\n".encode("utf-16"), None, "é\n".encode()), ("é\n".encode("utf-16-be"), "utf-16-be", "é\n".encode()),
        ("é\n".encode("latin-1"), "latin-1", "é\n".encode()), (b"a\n", None, b"a\n"), (b"", None, b""),
        (b"\xfe\xff\x00a", None, b"a"), (b"a\xef\xbb\xbf", None, b"a\xef\xbb\xbf"),
    ],
)  # fmt: skip
def test_text_comes_as_utf8_without_a_byte_order_mark(
    data: bytes, encoding: str | None, text: bytes, tmp_path: Path
) -> None:
    assert b"".join(utf8_blocks(written(tmp_path, data), replace(OPTIONS, encoding=encoding))) == text


def test_a_mark_within_a_file_that_grew_is_text(tmp_path: Path) -> None:
    path = written(tmp_path, b"a\n\xef\xbb\xbfb\n")
    assert b"".join(utf8_blocks(path, replace(OPTIONS, window=(2, None)))) == b"\xef\xbb\xbfb\n"


@pytest.mark.parametrize(
    ("data", "encoding", "says"),
    [
        (b"a\0b\n", None, "NUL bytes"), (b"a\0b\n", "us-ascii", "NUL bytes"),
        (b"a", "no-such", "'no-such' is not a known encoding"),
        (b"a", "utf-16", "near byte 1: this is not utf-16"), (b"ab\xd8", "utf-16-le", "near byte 3"),
    ],
)  # fmt: skip
def test_what_is_not_text_in_the_encoding_is_refused(
    data: bytes, encoding: str | None, says: str, tmp_path: Path
) -> None:
    with pytest.raises(BadData, match=says):
        list(utf8_blocks(written(tmp_path, data), replace(OPTIONS, encoding=encoding)))


def test_chunks_are_whole_rows_and_together_the_whole_text(tmp_path: Path) -> None:
    text = b"".join(b'%d,"a\nb",%s\n' % (at, b"x" * (at % 50)) for at in range(40_000))
    path = written(tmp_path, text)
    found = list(chunks(path, OPTIONS, separators=","))
    assert len(found) > 1 and b"".join(found) == text
    assert all(chunk.count(b'"') % 2 == 0 and chunk.endswith(b"\n") for chunk in found)
    assert b"".join(chunks(written(tmp_path, b"a\nb"), OPTIONS)) == b"a\nb"  # the last line needs no end
    assert list(chunks(written(tmp_path, b""), OPTIONS)) == []


def test_lines_end_within_quotes_where_no_separator_is_given(tmp_path: Path) -> None:
    text = b'"a\n' * 700_000
    found = list(chunks(written(tmp_path, text), OPTIONS))
    assert b"".join(found) == text and all(chunk.endswith(b"\n") for chunk in found) and len(found) > 1


def test_a_row_beyond_the_limit_is_refused_by_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, b"a\n" * 10 + b"x" * (4 * MIB))
    with pytest.raises(BadData, match="line 11 on, more than 65,536 bytes in one row"):
        list(chunks(path, OPTIONS))
    error = row_too_long(path, OPTIONS, row=3, column="c")
    assert (error.row, error.column) == (3, "c") and "line" not in error.what


@pytest.mark.parametrize(
    ("text", "is_open"),
    [(b'a,"b', True), (b'a,"b"', False), (b'a,"b""', True), (b'a,"b"""', False), (b'a"b', False), (b"", False),
     (b'"a",b\n"c', True), (b'"a\n,"c"', False)],
)  # fmt: skip
def test_a_quote_is_open_if_the_last_quoted_value_never_ends(text: bytes, is_open: bool) -> None:
    assert has_open_quote(text, ",") is is_open


def test_the_size_of_a_chunk_and_the_longest_row_follow_from_the_memory() -> None:
    sizes = [Options(memory_bytes=memory, threads=2).chunk_bytes for memory in (1 << 20, 64 << 20, 1 << 34)]
    assert sizes == [64 << 10, 1 << 20, 4 << 20]
    rows = [
        Options(memory_bytes=memory, cell_bytes=cell).row_bytes
        for memory, cell in ((1 << 20, 1), (1 << 20, 8 << 20), (1 << 30, 8 << 20))
    ]
    assert rows == [4 << 10, 64 << 10, 8 << 20]


def test_a_value_for_a_message_is_short_and_harmless() -> None:
    assert printable("a\x1b[31mb\n") == "a\N{REPLACEMENT CHARACTER}[31mb\N{REPLACEMENT CHARACTER}"
    assert printable("x" * 80) == "x" * 80 and printable("x" * 81) == "x" * 80 + "…"
    assert printable(b"a") == "b'a'"
    error = BadData("f.csv", "is odd", row=1234, column="n", fix="do")
    assert str(error).startswith("f.csv, row 1,234, column 'n': is odd")
    assert error.with_row_offset(10).row == 1244 and BadData("f", "w", fix="x").with_row_offset(10).row is None
