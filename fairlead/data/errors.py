"""What is said of data that cannot be used: the file, the row, the column, what is wrong and what to do about it."""

from __future__ import annotations

from fairlead.errors import FairleadError

_SHOWN = 80


class BadData(FairleadError):
    """Data that does not fit: one line that says where, what and the fix. Rows are counted from 1, a header aside."""

    code, status, exit_code = "bad-data", 422, 4

    def __init__(self, file: object, what: str, *, row: int | None = None, column: str | None = None, fix: str) -> None:
        place = [str(file)]
        place += [f"row {row:,}"] if row is not None else []
        place += [f"column {column!r}"] if column is not None else []
        super().__init__(f"{', '.join(place)}: {what}", fix=fix)
        self.file, self.row, self.column, self.what = str(file), row, column, what

    def with_row_offset(self, rows: int) -> BadData:
        """The same, by so many rows further on: where a piece is parsed, the rows before it are not known."""
        row = None if self.row is None else self.row + rows
        return BadData(self.file, self.what, row=row, column=self.column, fix=str(self.fix))


def printable(value: object) -> str:
    """A strange value, short and without anything that a terminal could take for a command."""
    text = value if isinstance(value, str) else repr(value)
    clean = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[: _SHOWN + 1])
    return f"{clean[:_SHOWN]}…" if len(clean) > _SHOWN else clean
