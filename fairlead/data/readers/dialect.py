"""Detects the dialect of delimited text (separator, header, comments) from its first lines."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from fairlead.data.errors import BadData
from fairlead.data.options import Options

SEPARATORS = (",", ";", "\t", "|")
_LINES = 200
_MISSING = ("?", "-", "na", "n/a", "nan", "null", "none")  # placeholders for missing values, not column names


@dataclass(frozen=True, slots=True)
class Dialect:
    """The parser's settings and the column names."""

    delimiter: str
    skip: int  # comment lines at the top
    header: bool
    names: tuple[str, ...]
    padded: bool  # a blank follows each separator


def detect_dialect(path: Path, sample: str, options: Options, known: tuple[str, ...] = ()) -> Dialect:
    """The dialect of a sample of whole lines."""
    lines = [line for line in sample.splitlines()[: _LINES * 2] if line.strip()][:_LINES]
    delimiter = options.delimiter or max(SEPARATORS, key=lambda letter: _delimiter_score(lines, letter))
    rows = _rows(lines, delimiter)
    if not rows:
        raise BadData(path, "is empty", fix="give a file with rows")
    width = _width(rows)
    skip = 0
    while skip < len(rows) - 1 and len(rows[skip]) != width and lines[skip][:1] in ("#", "|", "%"):
        skip += 1
    rows = rows[skip:]
    names = tuple(options.columns or ())
    if not names and known and len(known) == width and options.header is not True:
        return Dialect(delimiter, skip, False, known, _has_padding(lines[skip:], delimiter))
    header = options.header if options.header is not None else not names and _has_header(rows)
    found = Dialect(delimiter, skip, header, names, _has_padding(lines[skip:], delimiter))
    return replace(found, names=names or _column_names(path, rows[0], header))


def _rows(lines: list[str], delimiter: str) -> list[list[str]]:
    try:
        return list(csv.reader(lines, delimiter=delimiter))
    except csv.Error:  # a cell is too long for the csv module
        return [line.split(delimiter) for line in lines]


def _width(rows: list[list[str]]) -> int:
    return Counter(len(row) for row in rows).most_common(1)[0][0]


def _delimiter_score(lines: list[str], delimiter: str) -> tuple[float, int]:
    """Score of a delimiter: the share of lines with the usual number of columns (above 1), then that number."""
    rows = _rows(lines, delimiter)
    width = _width(rows) if rows else 1
    same = sum(len(row) == width for row in rows) / max(1, len(rows))
    return (round(same, 1), width) if width > 1 else (0.0, 1)


def _has_header(rows: list[list[str]]) -> bool:
    """True if the first row has words above numbers, or words that do not recur below. Some may be empty or numbers."""
    first, below = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    columns = list(zip(*below, strict=True))
    if any(not cell.strip() or _is_number(cell) for cell in first):
        return bool(below) and (_is_index(first[0], columns[0]) or _has_named_columns(first, columns))
    if any(any(_is_number(cell) for cell in column) for column in columns):
        return True
    return not any(name in column for name, column in zip(first, columns, strict=False))


def _is_index(name: str, column: Sequence[str]) -> bool:
    """True for an unnamed column that counts the rows, as pandas writes it."""
    return not name.strip() and len(column) > 1 and list(column) == [str(row) for row in range(len(column))]


def _has_named_columns(first: list[str], columns: Sequence[Sequence[str]]) -> bool:
    """True if words stand above numbers or beside years; numeric names must count up by one."""
    counted = [cell for cell in first if _is_number(cell)]
    if not all(cell.isdecimal() for cell in counted):
        return False
    if any(int(after) != int(before) + 1 for before, after in pairwise(counted)):
        return False
    words = [
        (cell, column) for cell, column in zip(first, columns, strict=True) if cell.strip() and not _is_number(cell)
    ]
    if any(cell.strip().lower() not in _MISSING and all(map(_is_number, column)) for cell, column in words):
        return True
    years = len(counted) > 1 and all(1900 <= int(cell) <= 2100 for cell in counted)
    return years and all(cell not in column for cell, column in words)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _has_padding(lines: list[str], delimiter: str) -> bool:
    """True if a blank follows nearly every separator, as in ``39, State-gov, 77516``."""
    separators = sum(line.count(delimiter) for line in lines)
    return separators > 0 and sum(line.count(delimiter + " ") for line in lines) > 0.9 * separators


def _column_names(path: Path, first: list[str], header: bool) -> tuple[str, ...]:
    if not header:
        return tuple(f"column_{place}" for place in range(1, len(first) + 1))
    names = tuple(name.strip() or f"column_{place}" for place, name in enumerate(first, start=1))
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        fix = "give them names of their own: columns=[...] with header=True"
        raise BadData(path, "two columns have this name", column=twice[0], fix=fix)
    return names
