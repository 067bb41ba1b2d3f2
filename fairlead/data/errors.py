"""The error for unusable data: file, row, column, problem and fix."""

from __future__ import annotations

from fairlead.errors import FairleadError

_SHOWN = 80


class BadData(FairleadError):
    """Unusable data, described in one line: place, problem and fix. Rows count from 1, without the header."""

    code, status, exit_code = "bad-data", 422, 4

    def __init__(self, file: object, what: str, *, row: int | None = None, column: str | None = None, fix: str) -> None:
        place = [str(file)]
        place += [f"row {row:,}"] if row is not None else []
        place += [f"column {column!r}"] if column is not None else []
        super().__init__(f"{', '.join(place)}: {what}", fix=fix)
        self.file, self.row, self.column, self.what = str(file), row, column, what

    def with_row_offset(self, rows: int) -> BadData:
        """The same error with its row moved by ``rows``: a parser of one chunk does not know the rows before it."""
        row = None if self.row is None else self.row + rows
        return BadData(self.file, self.what, row=row, column=self.column, fix=str(self.fix))


def printable(value: object) -> str:
    """A value from a file for a message: shortened, without control characters that a terminal would execute."""
    text = value if isinstance(value, str) else repr(value)
    clean = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[: _SHOWN + 1])
    return f"{clean[:_SHOWN]}…" if len(clean) > _SHOWN else clean
