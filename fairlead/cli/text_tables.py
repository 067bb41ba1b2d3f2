"""Draws tables in plain text that fit the terminal, without importing rich."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from fairlead.terminal import plain

GAP = 2
NARROWEST = 4  # of a column that must shrink
NARROWEST_SPARE = 8  # of a spare column, before other columns shrink
NARROWEST_TEXT = 16  # of a column that may wrap
FIXED_SPACE = "\u00a0"  # a space that never wraps


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; one with ``from_width`` appears only in terminals at least that wide."""

    title: str
    right: bool = False
    from_width: int = 0
    grows: bool = False  # its text may wrap
    spare: bool = False  # another column holds the same information, so it shrinks first
    ends: int = 0  # trailing characters that distinguish rows and are never cut


@dataclass(frozen=True, slots=True)
class Cell:
    """Text in a style: the number of an ANSI attribute, or empty."""

    text: str
    style: str = ""


def most_columns(width: int) -> int:
    """The number of columns that fit."""
    return max(1, (width + GAP) // (NARROWEST + GAP))


def draw(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int, *, colours: bool) -> list[str]:
    """The lines of the table, at most ``width`` wide if possible, without control characters."""
    columns = [replace(column, title=_plain(column.title)) for column in columns]
    rows = [[Cell(_plain(cell.text), cell.style) for cell in row] for row in rows]
    widths = _fitted(columns, [[_width(column.title), *(_width(row[place].text) for row in rows)]
                               for place, column in enumerate(columns)], width)  # fmt: skip
    titles = [Cell(column.title, "1") for column in columns]
    lines: list[str] = []
    for row in (titles, *rows):
        places = list(zip(row, widths, columns, strict=True))
        pieces = [_pieces(cell.text, room, column) for cell, room, column in places]
        for parts in zip_longest(*pieces, fillvalue=""):
            shown = [
                _padded(part, cell.style if colours else "", room, column.right)
                for part, (cell, room, column) in zip(parts, places, strict=True)
            ]
            lines.append((" " * GAP).join(shown).rstrip())
    return lines


def _plain(text: str) -> str:
    return plain(text).replace("\t", " ")  # the width of a tab is unknown


def _fitted(columns: Sequence[Column], wanted: Sequence[Sequence[int]], width: int) -> list[int]:
    """The width of each column: wrapping columns shrink first, then spare columns, then the widest."""
    widths = [max(of_column) for of_column in wanted]
    room = width - GAP * (len(columns) - 1)
    stages = [(NARROWEST_TEXT, [column.grows for column in columns]), (NARROWEST_SPARE, [c.spare for c in columns]),
              (NARROWEST, [not column.grows for column in columns])]  # fmt: skip
    for least, chosen in stages:
        giving = [place for place, gives in enumerate(chosen) if gives and widths[place] > least]
        if giving and sum(widths) > room:
            levelled = _levelled([widths[place] for place in giving], least, sum(widths) - room)
            for place, given in zip(giving, levelled, strict=True):
                widths[place] = given
    return widths


def _levelled(widths: Sequence[int], least: int, over: int) -> list[int]:
    """The widths reduced by ``over`` in total, widest first, none below ``least``."""
    low, high = least, max(widths)
    while low < high:  # the highest level that removes enough
        level = (low + high + 1) // 2
        enough = sum(width - level for width in widths if width > level) >= over
        low, high = (level, high) if enough else (low, level - 1)
    spare = sum(width - low for width in widths if width > low) - over
    levelled = []
    for width in reversed(widths):  # the last columns keep the remainder
        keeps = width > low and spare > 0
        spare -= keeps
        levelled.append(min(width, low) + keeps)
    return levelled[::-1]


def _pieces(text: str, room: int, column: Column) -> list[str]:
    """The text as lines; a text that may not wrap is cut with an ellipsis."""
    if _width(text) <= room:
        return [text]
    if column.grows:
        return textwrap.wrap(text, room, break_on_hyphens=False)
    ending = text[-column.ends :] if column.ends and room > column.ends + 1 else ""
    return [f"{_cut(text, room - 1 - _width(ending))}…{ending}"]


def _cut(text: str, room: int) -> str:
    """The beginning of the text that fits."""
    for place, char in enumerate(text):
        room -= _width(char)
        if room < 0:
            return text[:place]
    return text


def _padded(part: str, style: str, room: int, right: bool) -> str:
    space = " " * (room - _width(part))
    text = part.replace(FIXED_SPACE, " ")
    styled = f"\x1b[{style}m{text}\x1b[0m" if style and text else text
    return space + styled if right else styled + space


def _width(text: str) -> int:
    """The width of the text in terminal columns."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)
