"""The step that pads lists to one length and assigns them to length buckets."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from fairlead.data.errors import BadData
from fairlead.data.recipes.batch_columns import Array, Frame, fits_dtype
from fairlead.data.recipes.statistics import Quantiles
from fairlead.data.recipes.step import Learner, State, Step


class Pad(Step):
    """Cut and pad lists to one length; NAME_length holds the used length, NAME_bucket the length bucket.

    Without ``length``, ``coverage`` of the lists fit uncut. ``buckets`` is their number (about equally full) or the
    list of their upper lengths.
    """

    name: ClassVar[str] = "pad"
    length: int | None = Field(default=None, ge=1, le=1_000_000)
    coverage: float = Field(default=0.95, gt=0, le=1)
    buckets: int | tuple[int, ...] = 1
    value: float = 0
    side: Literal["right", "left"] = "right"
    dtype: Literal["int32", "int64", "float32"] = "int32"

    @property
    def changes_columns(self) -> bool:
        return True

    def learner(self, columns: list[str], frame: Frame) -> Learner | None:
        return _LengthLearner(columns, self)

    def apply(self, state: State, frame: Frame) -> None:
        for place, name in self.present_columns(state, frame):
            length, ends = int(state["length"][place]), np.asarray(state["ends"][place])
            values, lengths = _lists(frame, name)
            lengths_cut = np.minimum(lengths, length).astype(np.int32)
            self._check(values, name)
            frame.columns[name] = self._padded(values, lengths, lengths_cut, length)
            frame.columns[f"{name}_length"] = lengths_cut
            frame.columns[f"{name}_bucket"] = np.searchsorted(ends, lengths_cut).astype(np.int32)

    def _check(self, values: Array, name: str) -> None:
        """Refuse values that the target type would change."""
        whole = np.dtype(self.dtype).kind == "i"
        what = fix = ""
        if values.dtype.kind not in "iufb":
            what, fix = "holds lists of other values than numbers", "encode or tokenise it first"
        elif whole and values.dtype.kind == "f" and np.isnan(values).any():
            what, fix = "holds lists with missing values", "fill them in, or pad with dtype: float32"
        elif whole and values.dtype.kind == "f" and (values != np.floor(values)).any():
            what, fix = f"holds fractions, which {self.dtype} cannot store", "pad with dtype: float32"
        elif whole and not fits_dtype(values, np.dtype(self.dtype)):
            what, fix = f"holds numbers too large for {self.dtype}", "pad with dtype: int64 or float32"
        if what:
            raise BadData("the data", what, column=name, fix=fix)

    def _padded(self, values: Array, lengths: Array, cut: Array, length: int) -> Array:
        out = np.full((len(lengths), length), self.value, np.dtype(self.dtype))
        places = np.arange(length)
        starts = np.cumsum(lengths) - lengths
        taken = (places < cut[:, None]).nonzero()
        into = taken[1] if self.side == "right" else taken[1] + (length - cut)[taken[0]]
        out[taken[0], into] = values[starts[taken[0]] + taken[1]]
        return out


class _LengthLearner:
    def __init__(self, columns: list[str], step: Pad) -> None:
        self._columns, self._step = columns, step
        self._seen = [Quantiles() for _ in columns]

    def summarise(self, frame: Frame) -> list[Array]:
        return [_lists(frame, name)[1] for name in self._columns]

    def add(self, seen: list[Array]) -> None:
        for sketch, lengths in zip(self._seen, seen, strict=True):
            sketch.add(lengths)

    def state(self) -> State:
        found = [self._one(sketch) for sketch in self._seen]
        return {
            "columns": self._columns,
            "length": [length for length, _ in found],
            "ends": [ends for _, ends in found],
        }

    def _one(self, sketch: Quantiles) -> tuple[int, list[int]]:
        step = self._step
        length = step.length or max(1, int(np.ceil(np.nan_to_num(sketch.quantiles(step.coverage)[0]))))
        if isinstance(step.buckets, int):
            parts = [(place + 1) / step.buckets for place in range(step.buckets - 1)]
            ends = [int(np.ceil(end)) for end in np.nan_to_num(sketch.quantiles(*parts))] if parts else []
        else:
            ends = list(step.buckets)
        return length, [*sorted({end for end in ends if 0 < end < length}), length]


def _lists(frame: Frame, name: str) -> tuple[Array, Array]:
    """The concatenated values of all lists, and the length of each."""
    column: Any = frame.columns[name]
    if not isinstance(column, pa.Array) or not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        raise BadData("the recipe", "holds no lists", column=name, fix="tokenise it with pad: false, or drop it")
    lengths = np.nan_to_num(column.value_lengths().to_numpy(zero_copy_only=False)).astype(np.int64)
    return column.flatten().to_numpy(zero_copy_only=False), lengths
