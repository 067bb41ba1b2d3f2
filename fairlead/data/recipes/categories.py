"""The step that encodes categories as codes, one-hot columns or hashes, with a code for unseen values."""

from __future__ import annotations

import zlib
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fairlead.data.errors import BadData, printable
from fairlead.data.recipes.batch_columns import Array, Frame
from fairlead.data.recipes.numbers import value_counts
from fairlead.data.recipes.statistics import FrequentValues
from fairlead.data.recipes.step import Learner, State, Step


class OneHot:
    """Codes as one-hot columns: at most one 1 per row."""

    dtype = np.dtype(np.uint8)

    def __init__(self, codes: Array, width: int) -> None:
        self._codes = codes
        self.shape = (len(codes), width)

    def write(self, out: Array, start: int, stop: int) -> None:
        out[...] = 0
        self.set_ones(out, start, stop)

    def set_ones(self, out: Array, start: int, stop: int, at: int = 0) -> None:
        """Set only the ones, ``at`` columns to the right, in an array of zeros."""
        codes = self._codes[start:stop]
        rows = np.arange(len(codes))
        if len(codes) and codes.min() < 0:
            rows, codes = rows[codes >= 0], codes[codes >= 0]
        out[rows, codes + at] = 1


class Encode(Step):
    """Encode categories as numbers.

    ``ordinal`` gives 0, 1, ... in the order of the values, ``onehot`` one column per value, ``hash`` one of
    ``buckets`` numbers without fitting. Values that the training part did not have, and missing ones, get their ``own``
    code (or column) at the end, ``none`` (-1, or zeros), or are refused.
    """

    name: ClassVar[str] = "encode"
    columns: tuple[str, ...] = ("text",)
    how: Literal["ordinal", "onehot", "hash"] = "ordinal"
    unseen: Literal["own", "none", "refuse"] = "own"
    buckets: int = Field(default=1_024, ge=2, le=1 << 24)
    at_least: int = Field(default=1, ge=1)  # rarer values count as unseen
    limit: int = Field(default=10_000, ge=1, le=1_000_000)  # the most frequent values that are kept

    @property
    def changes_columns(self) -> bool:
        return self.how != "onehot"

    def learner(self, columns: list[str], frame: Frame) -> Learner | None:
        return None if self.how == "hash" else _ValueLearner(columns, self)

    def apply(self, state: State, frame: Frame) -> None:
        for place, name in self.present_columns(state, frame):
            places, values = frame.category_codes(name)
            if self.how == "hash":
                codes = np.array([hash_bucket(value, self.buckets) for value in values] + [0], np.int64)
            else:
                codes = self._codes(name, state["known"][place], values, len(places) and int(places.min()) < 0)
            found = codes[places]  # -1, a missing value, indexes the last code
            if self.how == "onehot":
                width = len(column_labels(self, state, place))
                if not width:
                    raise BadData("the training part", "is never set, so it has no one-hot columns", column=name,
                                  fix="set unseen to own, or drop the column")  # fmt: skip
                frame.columns[name] = OneHot(found, width)
            else:
                frame.columns[name] = found

    def _codes(self, name: str, known: list[Any], values: list[Any], missing: object) -> Array:
        codes = {value: code for code, value in enumerate(known)}
        other = len(known) if self.unseen == "own" else -1
        if self.unseen == "refuse":
            strange = [value for value in values if value not in codes] + ([None] if missing else [])
            if strange:
                raise BadData("the data", f"{printable(strange[0])} was not in the training part", column=name,
                              fix="set unseen to own or none, or fit the recipe again")  # fmt: skip
        return np.array([codes.get(value, other) for value in values] + [other], np.int64)


class _ValueLearner:
    def __init__(self, columns: list[str], step: Encode) -> None:
        self._columns, self._step = columns, step
        self._seen = [FrequentValues(max(65_536, 2 * step.limit)) for _ in columns]

    def summarise(self, frame: Frame) -> list[dict[Any, int]]:
        return [value_counts(frame, name) for name in self._columns]

    def add(self, seen: list[dict[Any, int]]) -> None:
        for mine, theirs in zip(self._seen, seen, strict=True):
            mine.add(theirs)

    def state(self) -> State:
        step = self._step
        return {"columns": self._columns, "known": [seen.common(step.at_least, step.limit) for seen in self._seen]}


def column_labels(step: Encode, state: State, place: int) -> list[str]:
    """The labels of one-hot columns, in order."""
    known = [str(value) for value in state["known"][place]]
    return [*known, "(unseen)"] if step.unseen == "own" else known


def hash_bucket(value: Any, buckets: int) -> int:
    """The bucket of a value, equal in every process (Python's own hash is not)."""
    return zlib.crc32(str(value).encode()) % buckets
