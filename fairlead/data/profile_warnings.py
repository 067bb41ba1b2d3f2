"""What about a profile will need attention before anybody trains on it, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairlead.data.profile import ColumnProfile

_STAND_INS = frozenset({"?", "-", "--", "none", "unknown", "select", "n/a", "na", "missing", "null", "undefined"})
_PROSE = 50  # letters from which on a text is read rather than looked up
_SOME = 20  # rows below which nothing is peculiar


def anomalies_of(columns: Sequence[ColumnProfile], rows: int) -> Iterator[str]:
    """One sentence per finding, in the order of the columns."""
    if rows == 0:
        yield "there are no rows"
        return
    for column in columns:
        yield from (f"{column.name}: {what}" for what in _of(column, rows))


def _of(column: ColumnProfile, rows: int) -> Iterator[str]:
    present = rows - column.nulls
    if present == 0:
        yield "is never set"
        return
    if column.nulls > rows / 2:
        yield f"is not set in {column.nulls:,} of {rows:,} rows"
    if column.distinct == 1 and column.exact and rows > 1:
        yield f"is the same in all rows that have it: {_short(column.top[0][0])}"
    if column.length is not None:
        yield from _of_text(column, present)
    if rows > _SOME and _is_key(column, present):
        yield "is different in every row: an identifier rather than a feature"
    if column.strange:
        yield f"{column.strange:,} values are infinite or no number"


def _of_text(column: ColumnProfile, present: int) -> Iterator[str]:
    if present * 0.5 < column.numbers < present:
        yield f"is text, but {column.numbers:,} of {present:,} values are numbers"
    elif column.numbers == present:
        yield "is text, but every value is a number"
    if column.padded:
        yield f"{column.padded:,} values have blanks around them"
    for value, count in column.top:
        if str(value).strip().lower() in _STAND_INS:
            often = f" ({count:,} rows)" if count else ""
            yield f"{_short(value)} seems to stand for a missing value{often}"


def _is_key(column: ColumnProfile, present: int) -> bool:
    if column.length is not None and column.length > _PROSE:
        return False
    if column.distinct is None or column.type in ("double", "float", "halffloat", "bool"):
        return False
    return column.distinct == present if column.exact else column.distinct > 0.97 * present


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
