"""Promises of reading separated values: what is a header, where a row ends, and what is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.data import BadData, read
from fairlead.data.readers import text_chunks
from fairlead.data.readers.dialect import _delimiter_score, _has_named_columns, _is_index
from fairlead.data.readers.streams import _plain_blocks


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (",a,b\n0,1,x\n1,2,y\n", ["column_1", "a", "b"]),
        (",0,1\n0,1.5,x\n1,2.5,y\n", ["column_1", "0", "1"]),
        ("country,2019,2020\nA,1,2\nB,3,4\n", ["country", "2019", "2020"]),
        ("a,,c\n1,2,3\n4,5,6\n", ["a", "column_2", "c"]),
        ("A,1,2\nB,3,4\n", ["column_1", "column_2", "column_3"]),
        ("?,5,red\n3,6,blue\n", ["column_1", "column_2", "column_3"]),
        (",5,red\n3,6,blue\n", ["column_1", "column_2", "column_3"]),
    ],
)
def test_a_header_may_have_empty_and_numeric_names(text: str, names: list[str], tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    assert read(tmp_path / "t.csv").schema.names == names


def test_line_ends_that_would_hide_every_row_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "mac.csv").write_bytes(b"a,b\r1,2\r3,4\r")
    with pytest.raises(BadData, match="carriage return only"):
        read(tmp_path / "mac.csv")


def test_a_quote_within_a_plain_value_moves_no_row(tmp_path: Path) -> None:
    rows = ["id,note\n", 'k0,5" pipe\n', *(f'k{row},"a ""note""\nsecond, line"\n' for row in range(1, 60_000))]
    (tmp_path / "t.csv").write_text("".join([*rows, 'k60000,7" rod\n']))
    found = read(tmp_path / "t.csv", memory_bytes=16 << 20).table().to_pydict()
    assert found["id"] == [f"k{row}" for row in range(60_001)]
    assert (found["note"][0], found["note"][-1]) == ('5" pipe', '7" rod')
    assert set(found["note"][1:-1]) == {'a "note"\nsecond, line'}


def test_a_quote_that_is_never_closed_is_found_beside_one_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('id,note\n1,5" pipe\n2,"x\n3,y\n')
    with pytest.raises(BadData, match="never closed"):
        read(tmp_path / "t.csv").table()


@given(st.text('a",\n', max_size=20).map(str.encode))
def test_a_row_ends_at_a_line_break_outside_of_quoted_values(text: bytes) -> None:
    inside, begins, end, place = False, True, 0, 0
    while place < len(text):
        letter = text[place : place + 1]
        if letter == b'"' and inside and text[place + 1 : place + 2] == b'"':
            place += 1
        elif letter == b'"' and (inside or begins):
            inside = not inside
        elif letter == b"\n" and not inside:
            end = place + 1
        begins = letter in b",\n" and not inside
        place += 1
    assert text_chunks._end_of_last_row(text, ",") == end


@pytest.mark.parametrize(
    ("first", "columns", "names"),
    [
        (["city", "2001"], [["a", "b"], ["x", "y"]], False),
        (["city", "2001", "2002"], [["a", "b"], ["x", "y"], ["x", "y"]], True),
        (["city", "1899", "1900"], [["a"], ["x"], ["x"]], False),
        (["city", "2100", "2101"], [["a"], ["x"], ["x"]], False),
        (["city", "1900", "1901"], [["a"], ["x"], ["x"]], True),
        (["city", "2001", "2003"], [["a"], ["x"], ["x"]], False),
        (["a", "2001", "2002"], [["a", "b"], ["x", "y"], ["x", "y"]], False),
        (["size", "7"], [["1", "2"], ["x", "y"]], True),
        (["na", "7"], [["1", "2"], ["x", "y"]], False), (["size", "1.5"], [["1", "2"], ["x", "y"]], False),
    ],
)  # fmt: skip
def test_a_first_line_names_columns_if_words_lie_above_numbers_or_beside_years(
    first: list[str], columns: list[list[str]], names: bool
) -> None:
    assert _has_named_columns(first, columns) is names


def test_of_a_file_that_grew_just_the_bytes_are_read_that_are_asked_for(tmp_path: Path) -> None:
    path, data = tmp_path / "a.bin", bytes(range(256)) * 10_000
    path.write_bytes(data)
    for start, stop in ((0, None), (3, 7), (3, 3), (1_000_000, 2_400_000), (5, None)):
        assert b"".join(_plain_blocks(path, start, stop)) == data[start:stop], (start, stop)


def test_a_delimiter_is_as_plausible_as_lines_have_the_most_frequent_number_of_columns() -> None:
    assert _delimiter_score(["a,b", "c,d", "e"], ",") == (0.7, 2) and _delimiter_score(["a,b", "c,d"], ",") == (1.0, 2)
    assert _delimiter_score(["a", "b", "c,d"], ",") == (0.0, 1) and _delimiter_score([], ",") == (0.0, 1)


@pytest.mark.parametrize(
    ("name", "column", "index"),
    [
        ("", ["0", "1"], True), (" ", ["0", "1", "2"], True), ("x", ["0", "1"], False), ("", ["0"], False),
        ("", ["1", "2"], False), ("", ["0", "2"], False), ("", [], False),
    ],
)  # fmt: skip
def test_a_column_without_a_name_that_counts_its_rows_is_an_index(name: str, column: list[str], index: bool) -> None:
    assert _is_index(name, column) is index
