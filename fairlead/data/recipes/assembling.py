"""Steps that decide what comes out: numbers side by side as one matrix, and which columns stay."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from fairlead.data.recipes.categories import OneHot
from fairlead.data.recipes.frame import Array, Frame, kinds
from fairlead.data.recipes.step import State, Step

_ROWS = 1_024  # written at a time: a column's stride then stays within the second-level cache


class Matrix:
    """Columns side by side, each computed where it lies in the matrix."""

    def __init__(self, rows: int, parts: list[Any], dtype: np.dtype[Any]) -> None:
        self._parts, self.dtype = parts, dtype
        self.shape = (rows, sum(width(part) for part in parts))

    def write(self, out: Array, start: int, stop: int) -> None:
        for begin in range(start, stop, _ROWS):
            end = min(begin + _ROWS, stop)
            self._some(out[begin - start : end - start], begin, end)

    def _some(self, out: Array, start: int, stop: int) -> None:
        if any(isinstance(part, OneHot) for part in self._parts):
            out[...] = 0
        at = 0
        for part in self._parts:
            wide = width(part)
            if isinstance(part, OneHot):
                part.mark(out, start, stop, at)
            elif len(part.shape) > 1:
                out[:, at : at + wide] = part[start:stop].reshape(stop - start, wide)
            elif isinstance(part, np.ndarray):
                out[:, at] = part[start:stop]
            else:
                part.write(out[:, at], start, stop)
            at += wide


class Assemble(Step):
    """Put columns side by side as one matrix, ready to be a tensor; they are no columns of their own any more."""

    name: ClassVar[str] = "assemble"
    columns: tuple[str, ...] = ("*",)
    into: str = "features"
    dtype: Literal["float32", "float64", "float16", "int32", "int64", "uint8"] = "float32"

    @property
    def renames(self) -> bool:
        return True

    def resolve(self, frame: Frame, target: str | None) -> list[str]:
        """A pattern means numbers only; text that is named is refused when it is applied."""
        chosen = super().resolve(frame, target)
        kind = kinds(frame, chosen)
        return [name for name in chosen if name in self.columns or kind[name] in ("number", "numbers")]

    def apply(self, state: State, frame: Frame) -> None:
        parts = []
        for _, name in self.present(state, frame):
            column = frame.columns.pop(name)
            if not isinstance(column, np.ndarray | OneHot) and not hasattr(column, "write"):
                frame.columns[name] = column
                column = frame.numbers(name)
                del frame.columns[name]
            parts.append(column)
        frame.columns[self.into] = Matrix(frame.rows, parts, np.dtype(self.dtype))


class Select(Step):
    """Keep these columns only."""

    name: ClassVar[str] = "select"
    columns: tuple[str, ...] = ("*",)

    def resolve(self, frame: Frame, target: str | None) -> list[str]:
        chosen = super().resolve(frame, target)
        if target is not None and target in frame.columns and target not in chosen and self.matches:
            chosen.append(target)
        return chosen

    def apply(self, state: State, frame: Frame) -> None:
        frame.columns = {name: frame.columns[name] for _, name in self.present(state, frame)}


def width(column: Any) -> int:
    """How many numbers a row of this column has."""
    return int(np.prod(column.shape[1:])) if len(column.shape) > 1 else 1
