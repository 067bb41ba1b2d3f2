"""Describes the output columns of a recipe: types, shapes and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fairlead.data.recipes.batch_columns import Frame, is_numeric
from fairlead.data.recipes.categories import Encode, column_labels
from fairlead.data.recipes.column_assembly import Assemble, Select
from fairlead.data.recipes.step import State, Step


@dataclass(frozen=True, slots=True)
class Output:
    """An output column: type and shape of a row, and the labels of its numbers if known."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()


def describe_outputs(
    steps: Sequence[Step], target: str | None, states: Sequence[State], frame: Frame
) -> tuple[Output, ...]:
    """The output columns, from a batch that passed all steps; one-hot columns and matrices get labels."""
    parts: dict[str, list[str]] = {}
    for step, state in zip(steps, states, strict=True):
        if isinstance(step, Encode) and step.how == "onehot":
            for place, name in enumerate(state["columns"]):
                parts[name] = [f"{name}={label}" for label in column_labels(step, state, place)]
        elif isinstance(step, Encode) and step.how == "ordinal":
            for place, name in enumerate(state["columns"]):
                if name == target:
                    parts[name] = [str(value) for value in state["known"][place]]
        elif isinstance(step, Assemble):
            parts[step.into] = [part for name in state["columns"] for part in parts.get(name, [name])]
        elif isinstance(step, Select):
            parts = {name: each for name, each in parts.items() if name in state["columns"]}
    found = []
    for name, column in frame.columns.items():
        shape = () if isinstance(column, pa.Array) else tuple(int(size) for size in column.shape[1:])
        size = int(np.prod(shape)) if shape else 1
        named = parts.get(name, [])
        fits = len(named) == size or name == target
        found.append(Output(name, _dtype(column), shape, tuple(named) if fits else ()))
    return tuple(found)


def _dtype(column: Any) -> str:
    """The NumPy name of a numeric type, else the Arrow name."""
    if not isinstance(column, pa.Array):
        return str(column.dtype)
    if pa.types.is_boolean(column.type):
        return "uint8"
    if pa.types.is_decimal(column.type):
        return "float64"
    return str(np.dtype(column.type.to_pandas_dtype())) if is_numeric(column.type) else str(column.type)
