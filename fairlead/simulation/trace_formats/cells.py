"""Reads the rows of a trace file; refuses an invalid cell by line, column and value."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.errors import InvalidSpec

LONGEST_S = 1e9
"""No job takes longer: thirty years."""

LATEST_S = 1e13
"""Nothing arrives later; milliseconds since 1970 are less."""


def text_of(path: Path) -> str:
    """All that is written there, without the mark that some programs put before it."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        text = f"byte {error.start} is no UTF-8 text"
        raise InvalidSpec(text, field=path.name, fix="save the file as UTF-8") from error


@dataclass(frozen=True, slots=True)
class Row:
    """One line under a header."""

    file: str
    line: int
    cells: Mapping[str, str]

    def at(self, column: str) -> str:
        """Where a cell stands."""
        return f"{self.file}: line {self.line}: {column}"

    def text(self, column: str, default: str | None = None) -> str:
        found = (self.cells.get(column) or "").strip()
        if not found and default is None:
            raise InvalidSpec("nothing is written there", field=self.at(column), fix="write a value")
        return found or default or ""

    def number(
        self, column: str, default: float | None = None, *, least: float = 0.0, most: float = math.inf,
        above: float | None = None,
    ) -> float:  # fmt: skip
        """A finite number between these; ``default`` where nothing is written."""
        if default is not None and not self.text(column, ""):
            return default
        text = self.text(column)
        try:
            value = float(text)
        except ValueError as error:
            raise InvalidSpec(f"{text!r} is not a number", field=self.at(column), fix="write a number") from error
        if not math.isfinite(value) or not least <= value <= most or (above is not None and value <= above):
            low = f"more than {above:g}" if above is not None else f"at least {least:g}"
            high = f" and at most {most:g}" if most < math.inf else ""
            raise InvalidSpec(f"{text} cannot be", field=self.at(column), fix=f"write a number that is {low}{high}")
        return value

    def whole(self, column: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number that is not less."""
        value = self.number(column, None if default is None else float(default), least=float(least))
        if value != int(value):
            raise InvalidSpec(f"{value:g} is not a whole number", field=self.at(column), fix="write a whole number")
        return int(value)


def rows_of(path: Path, *, lower: bool = False) -> tuple[Sequence[str], list[Row]]:
    """The header of a CSV, in small letters if wanted, and its rows that are not empty."""
    lines = csv.reader(io.StringIO(text_of(path), newline=""))
    header = [name.strip().lower() if lower else name.strip() for name in next(lines, [])]
    told = ((lines.line_num, dict(zip(header, line, strict=False))) for line in lines if any(line))
    return header, [Row(path.name, number, cells) for number, cells in told]
