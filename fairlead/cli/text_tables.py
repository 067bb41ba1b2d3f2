"""Tables drawn in plain text: they fit the terminal, keep names whole and cost next to nothing to load."""

from __future__ import annotations

import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from fairlead.terminal import plain

GAP = 2
NARROWEST = 4  # of a column that must give way
NARROWEST_SPARE = 8  # of one that says what another says too, before that one gives way
NARROWEST_TEXT = 16  # of one that may go on in the next line
FIXED_SPACE = "\u00a0"  # keeps two words of a cell on one line; drawn as a space


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; one with ``from_width`` appears only in terminals at least that wide."""

    title: str
    right: bool = False
    from_width: int = 0
    grows: bool = False  # its text may go on in the next line
    spare: bool = False  # another column tells the same, so it gives way first
    ends: int = 0  # so many characters at the end tell rows apart, so it is cut before them


@dataclass(frozen=True, slots=True)
class Cell:
    """Text in a style: the number of an ANSI attribute, or empty."""

    text: str
    style: str = ""


def most_columns(width: int) -> int:
    """How many columns a table can have and still fit."""
    return max(1, (width + GAP) // (NARROWEST + GAP))


def draw(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int, *, colours: bool) -> list[str]:
    """The lines of the table, none wider than ``width`` as long as that can be; titles and cells steer no terminal."""
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
    return plain(text).replace("\t", " ")  # whose width nobody knows


def _fitted(columns: Sequence[Column], wanted: Sequence[Sequence[int]], width: int) -> list[int]:
    """What each column gets: first those that may wrap give way, then what is to spare, then always the widest."""
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
    """The widths without so many columns in all, as far as none gets narrower than ``least``: the widest give first."""
    low, high = least, max(widths)
    while low < high:  # the highest level that all give enough above
        level = (low + high + 1) // 2
        enough = sum(width - level for width in widths if width > level) >= over
        low, high = (level, high) if enough else (low, level - 1)
    spare = sum(width - low for width in widths if width > low) - over
    levelled = []
    for width in reversed(widths):  # the last ones keep what is left over
        keeps = width > low and spare > 0
        spare -= keeps
        levelled.append(min(width, low) + keeps)
    return levelled[::-1]


def _pieces(text: str, room: int, column: Column) -> list[str]:
    """The text line by line; one that may not wrap has an ellipsis where something had to go."""
    if _width(text) <= room:
        return [text]
    if column.grows:
        return textwrap.wrap(text, room, break_on_hyphens=False)
    ending = text[-column.ends :] if column.ends and room > column.ends + 1 else ""
    return [f"{_cut(text, room - 1 - _width(ending))}…{ending}"]


def _cut(text: str, room: int) -> str:
    """As much of the text as has room."""
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
    """Columns of the terminal that the text takes."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)
