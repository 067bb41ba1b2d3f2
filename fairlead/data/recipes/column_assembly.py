"""The steps that shape the output: join columns into one matrix, and select columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from fairlead.data.errors import BadData
from fairlead.data.recipes.batch_columns import Array, Frame, column_kinds, fits_dtype
from fairlead.data.recipes.categories import OneHot
from fairlead.data.recipes.numbers import Scaled, ScaledRun
from fairlead.data.recipes.step import State, Step

_ROWS = 4_096  # written at a time, so that the strided writes stay in the second-level cache


class Matrix:
    """Columns side by side, each computed at its place in the matrix."""

    def __init__(self, rows: int, parts: list[Any], dtype: np.dtype[Any], names: Sequence[str] = ()) -> None:
        self.dtype, self._names = dtype, names
        widths = [row_width(part) for part in parts]
        self.shape = (rows, sum(widths))
        begins = np.cumsum([0, *widths[:-1]]).tolist() if parts else []
        self._begins = begins
        self._hot = [(at, part) for at, part in zip(begins, parts, strict=True) if isinstance(part, OneHot)]
        self._runs = _adjacent_runs(
            [(at, part) for at, part in zip(begins, parts, strict=True) if isinstance(part, Scaled)]
        )
        self._rest = [(at, wide, part) for at, wide, part in zip(begins, widths, parts, strict=True)
                      if not isinstance(part, OneHot | Scaled)]  # fmt: skip

    def write(self, out: Array, start: int, stop: int) -> None:
        for begin in range(start, stop, _ROWS):
            end = min(begin + _ROWS, stop)
            if self.dtype.kind != "f" or self.dtype.itemsize < 4:
                self._check(begin, end)
            self._write_rows(out[begin - start : end - start], begin, end)

    def _check(self, start: int, stop: int) -> None:
        """Refuse numbers that do not fit a small type."""
        wide = np.empty((stop - start, self.shape[1]))
        self._write_rows(wide, start, stop)
        if not fits_dtype(wide, self.dtype):
            place = next(place for place in range(self.shape[1]) if not fits_dtype(wide[:, place], self.dtype))
            column = self._names[int(np.searchsorted(self._begins, place, "right")) - 1] if self._names else None
            raise BadData("the data", f"holds missing values, or numbers too large for {self.dtype}", column=column,
                          fix="assemble with dtype: float32, and impute missing values")  # fmt: skip

    def _write_rows(self, out: Array, start: int, stop: int) -> None:
        if self._hot:
            out[...] = 0
        for at, hot in self._hot:
            hot.set_ones(out, start, stop, at)
        for at, run in self._runs:
            run.write(out[:, at : at + len(run)], start, stop)
        for at, wide, part in self._rest:
            if len(part.shape) > 1:
                out[:, at : at + wide] = part[start:stop].reshape(stop - start, wide)
            elif isinstance(part, np.ndarray):
                out[:, at] = part[start:stop]
            else:
                part.write(out[:, at], start, stop)


def _adjacent_runs(scaled: list[tuple[int, Scaled]]) -> list[tuple[int, ScaledRun]]:
    """Groups of adjacent scaled columns, each written in one go."""
    found: list[tuple[int, list[Scaled]]] = []
    for at, part in scaled:
        if found and found[-1][0] + len(found[-1][1]) == at:
            found[-1][1].append(part)
        else:
            found.append((at, [part]))
    return [(at, ScaledRun(parts)) for at, parts in found]


class Assemble(Step):
    """Join columns into one matrix, ready to become a tensor; the original columns are removed."""

    name: ClassVar[str] = "assemble"
    columns: tuple[str, ...] = ("*",)
    into: str = "features"
    dtype: Literal["float32", "float64", "float16", "int32", "int64", "uint8"] = "float32"

    @property
    def changes_columns(self) -> bool:
        return True

    def resolve(self, frame: Frame, target: str | None) -> list[str]:
        """The columns to join. A pattern matches only numbers; text given by name is refused later, by ``apply``."""
        chosen = super().resolve(frame, target)
        kind = column_kinds(frame, chosen)
        return [name for name in chosen if name in self.columns or kind[name] in ("number", "numbers")]

    def apply(self, state: State, frame: Frame) -> None:
        parts, names = [], [name for _, name in self.present_columns(state, frame)]
        for name in names:
            column = frame.columns.pop(name)
            if not isinstance(column, np.ndarray | OneHot) and not hasattr(column, "write"):
                frame.columns[name] = column
                column = frame.numbers(name)
                del frame.columns[name]
            parts.append(column)
        frame.check_new_column(self.into, "assemble")
        frame.columns[self.into] = Matrix(frame.rows, parts, np.dtype(self.dtype), names)


class Select(Step):
    """Keep these columns only."""

    name: ClassVar[str] = "select"
    columns: tuple[str, ...] = ("*",)

    def resolve(self, frame: Frame, target: str | None) -> list[str]:
        chosen = super().resolve(frame, target)
        chosen += [
            name for name in self.columns if name in frame.columns and name not in chosen
        ]  # a column may be called "text"
        if target is not None and target in frame.columns and target not in chosen and self.uses_patterns:
            chosen.append(target)
        return chosen

    def apply(self, state: State, frame: Frame) -> None:
        frame.columns = {name: frame.columns[name] for _, name in self.present_columns(state, frame)}


def row_width(column: Any) -> int:
    """Numbers per row of a column."""
    return int(np.prod(column.shape[1:])) if len(column.shape) > 1 else 1
