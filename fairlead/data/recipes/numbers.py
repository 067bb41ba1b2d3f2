"""The steps for numbers: normalise them, and impute missing values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairlead.data.errors import BadData
from fairlead.data.recipes.batch_columns import Array, Frame, is_text
from fairlead.data.recipes.statistics import FrequentValues, Moments, Quantiles
from fairlead.data.recipes.step import Learner, State, Step


class Scaled:
    """A column as (value - shift) * scale in float32, computed at its destination."""

    dtype = np.dtype(np.float32)

    def __init__(self, values: Array, shift: float, scale: float) -> None:
        self.values, self.shift, self.scale = values, shift, scale
        self.shape = (len(values),)

    def write(self, out: Array, start: int, stop: int) -> None:
        away = self.values[start:stop] - self.shift
        np.multiply(away, self.scale, out=out, casting="unsafe")


class ScaledRun:
    """Adjacent scaled columns: computed column by column in one block, then transposed into rows."""

    def __init__(self, parts: Sequence[Scaled]) -> None:
        self._values = [part.values for part in parts]
        self._shifts = [part.shift for part in parts]
        self._scales = np.array([[part.scale] for part in parts])

    def __len__(self) -> int:
        return len(self._values)

    def write(self, out: Array, start: int, stop: int) -> None:
        block = np.empty((len(self._values), stop - start))
        for row, values, shift in zip(block, self._values, self._shifts, strict=True):
            np.subtract(values[start:stop], shift, out=row)
        np.multiply(block, self._scales, out=block)
        out[...] = block.T


class Normalise(Step):
    """Scale numbers. ``log`` is sign(x) log(1 + abs x) and needs no fitting; the others are fitted."""

    name: ClassVar[str] = "normalise"
    how: Literal["standard", "minmax", "robust", "log"] = "standard"

    def learner(self, columns: list[str], frame: Frame) -> Learner | None:
        if self.how == "log":
            return None
        return _QuartileLearner(columns) if self.how == "robust" else _ScaleLearner(columns, self.how)

    def apply(self, state: State, frame: Frame) -> None:
        for place, name in self.present_columns(state, frame):
            values = frame.numbers(name)
            if self.how == "log":
                # As floats first: the smallest integer has no positive counterpart.
                wide = values.astype(np.result_type(values, np.float32), copy=False)
                frame.columns[name] = np.copysign(np.log1p(np.abs(wide)), wide)
            else:
                frame.columns[name] = Scaled(values, float(state["shift"][place]), float(state["scale"][place]))


class _ScaleLearner:
    def __init__(self, columns: list[str], how: str) -> None:
        self._columns, self._how, self._seen = columns, how, Moments(len(columns))

    def summarise(self, frame: Frame) -> Moments:
        seen = Moments(len(self._columns))
        for place, name in enumerate(self._columns):
            seen.measure(place, frame.numbers(name), range_too=self._how == "minmax")
        return seen

    def add(self, seen: Moments) -> None:
        self._seen.add(seen)

    def state(self) -> State:
        seen = self._seen
        _check_finite(self._columns, seen.m2)
        empty = seen.count == 0
        if self._how == "minmax":
            shift, width = np.where(empty, 0.0, seen.least), np.where(empty, 1.0, seen.most - seen.least)
        else:
            shift, width = seen.mean, seen.deviation
            width = np.where(width <= np.abs(shift) * 1e-13, 0.0, width)  # a constant has only rounding noise
        return {"columns": self._columns, "shift": shift, "scale": 1.0 / np.where(width > 0, width, 1.0)}


class _QuartileLearner:
    """Learns median and interquartile range, which are robust to outliers."""

    def __init__(self, columns: list[str]) -> None:
        self._columns, self._seen = columns, [Quantiles() for _ in columns]

    def summarise(self, frame: Frame) -> list[Quantiles]:
        return [_sketch(frame.numbers(name)) for name in self._columns]

    def add(self, seen: list[Quantiles]) -> None:
        for mine, theirs in zip(self._seen, seen, strict=True):
            mine.merge(theirs)

    def state(self) -> State:
        found = np.nan_to_num(np.array([sketch.quantiles(0.25, 0.5, 0.75) for sketch in self._seen]).reshape(-1, 3))
        width = found[:, 2] - found[:, 0]
        return {"columns": self._columns, "shift": found[:, 1], "scale": 1.0 / np.where(width > 0, width, 1.0)}


class Impute(Step):
    """Fill in missing values; with ``indicator`` a column NAME_missing marks them."""

    name: ClassVar[str] = "impute"
    how: Literal["mean", "median", "most_frequent", "constant"] = "mean"
    value: float | str | None = None
    indicator: bool = False

    @property
    def changes_columns(self) -> bool:
        return self.indicator

    def learner(self, columns: list[str], frame: Frame) -> Learner | None:
        return None if self.how == "constant" else _FillValueLearner(columns, self.how)

    def apply(self, state: State, frame: Frame) -> None:
        for place, name in self.present_columns(state, frame):
            value = self.value if self.how == "constant" else state["values"][place]
            column = frame.columns[name]
            if isinstance(column, pa.Array) and is_text(column.type):
                missing = column.is_null()
                frame.columns[name] = pc.fill_null(frame.texts(name), str(value)) if column.null_count else column
                where = missing.to_numpy(zero_copy_only=False)
            else:
                numbers = frame.numbers(name)
                where = np.isnan(numbers) if numbers.dtype.kind == "f" else np.zeros(len(numbers), np.bool_)
                frame.columns[name] = np.where(where, _as_number(value, name), numbers) if where.any() else numbers
            if self.indicator:
                frame.check_new_column(f"{name}_missing", "impute")
                frame.columns[f"{name}_missing"] = where.astype(np.uint8)


class _FillValueLearner:
    def __init__(self, columns: list[str], how: str) -> None:
        self._columns, self._how = columns, how
        self._seen: list[Any] = [self._empty() for _ in columns]

    def _empty(self) -> Any:
        return {"mean": lambda: Moments(1), "median": Quantiles, "most_frequent": FrequentValues}[self._how]()

    def summarise(self, frame: Frame) -> list[Any]:
        return [self._one(frame, name) for name in self._columns]

    def _one(self, frame: Frame, name: str) -> Any:
        if self._how == "most_frequent":
            return value_counts(frame, name)
        if self._how == "median":
            return _sketch(frame.numbers(name))
        moments = Moments(1)
        moments.measure(0, frame.numbers(name), range_too=False)
        return moments

    def add(self, seen: list[Any]) -> None:
        for mine, theirs in zip(self._seen, seen, strict=True):
            if isinstance(mine, Quantiles):
                mine.merge(theirs)
            else:
                mine.add(theirs)

    def state(self) -> State:
        return {"columns": self._columns, "values": [self._value(seen) for seen in self._seen]}

    def _value(self, seen: Any) -> Any:
        if isinstance(seen, FrequentValues):
            found = seen.top()
            return 0.0 if found is None else found
        middle = seen.quantiles(0.5)[0] if isinstance(seen, Quantiles) else float(seen.mean[0])
        return middle if np.isfinite(middle) else 0.0  # the column is never set


def value_counts(frame: Frame, name: str) -> dict[Any, int]:
    """How often each value of a column occurs in a batch, without missing values."""
    places, values = frame.category_codes(name)
    counts = np.bincount(places[places >= 0] if len(places) and places.min() < 0 else places, minlength=len(values))
    return {value: count for value, count in zip(values, counts.tolist(), strict=True) if count and value is not None}


def _sketch(values: Array) -> Quantiles:
    sketch = Quantiles()
    sketch.add(values)
    return sketch


def _as_number(value: Any, name: str) -> float:
    if isinstance(value, str) or value is None:
        raise BadData("the recipe", f"{value!r} cannot replace a missing number", column=name,
                      fix="give impute a number as value")  # fmt: skip
    return float(value)


def _check_finite(columns: list[str], seen: Array) -> None:
    for name, value in zip(columns, seen, strict=True):
        if not np.isfinite(value):
            raise BadData("the training part", "holds infinity, or numbers too large to sum", column=name,
                          fix="normalise it with how: log or robust, or drop it")  # fmt: skip
