"""Where prepared rows land: the columns of a block, filled by several threads, each at its own place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from fairlead.data.errors import BadData
from fairlead.data.recipes.batch_columns import Array, Frame, as_batch
from fairlead.data.recipes.outputs import Output

PutBlock = Callable[[pa.RecordBatch], str]
"""Takes the columns of a block and returns its id; a Grid will do as well."""


def row_bytes(outputs: tuple[Output, ...]) -> int:
    """What a row takes; refuses columns that have no fixed size."""
    total = 0
    for each in outputs:
        total += dtype_of(each).itemsize * int(np.prod(each.shape, dtype=np.int64))
    if not total:
        raise BadData("the recipe", "nothing comes out of it", fix="keep at least one column")
    return total


def dtype_of(output: Output) -> np.dtype[Any]:
    """The type of a column's numbers."""
    try:
        found = np.dtype(output.dtype)
    except (TypeError, ValueError):  # Arrow's name of what NumPy has no type for
        found = np.dtype(object)
    if found.kind not in "fiub":
        raise BadData("the recipe", f"is still {output.dtype} at the end", column=output.name,
                      fix="encode or tokenise it, or leave it out with select")  # fmt: skip
    return found


def empty_columns(outputs: tuple[Output, ...], rows: int) -> dict[str, Array]:
    """Room for so many rows; memory is used as far as it is written."""
    return {each.name: np.empty((rows, *each.shape), dtype_of(each)) for each in outputs}


def write_rows(frame: Frame, start: int, stop: int, columns: Mapping[str, Array], at: int) -> None:
    """Rows start to stop of a frame into the columns, from row ``at`` on."""
    for name, room in columns.items():
        out = room[at : at + stop - start]
        column = frame.columns.get(name)
        if column is None:
            raise BadData("the data", "is missing", column=name, fix="a data set for training needs its target")
        if hasattr(column, "write"):
            column.write(out, start, stop)
            continue
        values = column if isinstance(column, np.ndarray) else frame.numbers(name)
        if values.dtype.kind == "f" and out.dtype.kind != "f" and np.isnan(values).any():
            raise BadData("the data", "has missing values", column=name, fix="impute them in the recipe")
        out[...] = values[start:stop]


def put_block(columns: Mapping[str, Array], rows: int, put: Any, label: str, cost_s: float) -> str:
    """Put the first so many rows of the columns as one block."""
    filled = {name: column[:rows] for name, column in columns.items()}
    if hasattr(put, "put_tensors"):
        return str(put.put_tensors(filled, label=label, cost_s=cost_s))
    return str(put(as_batch(filled)))


class ContentHash:
    """The hash of prepared rows, for sources whose watermark does not tell one content from another.

    Column by column, so that it does not matter how the rows were cut into blocks.
    """

    def __init__(self) -> None:
        self._columns: dict[str, Any] = {}

    def add(self, columns: Mapping[str, Array], rows: int) -> None:
        """The next rows, in their order."""
        for name, column in columns.items():
            self._columns.setdefault(name, hashlib.sha256()).update(np.ascontiguousarray(column[:rows]).data)

    def digest(self) -> dict[str, str]:
        """By column."""
        return {name: each.hexdigest() for name, each in sorted(self._columns.items())}


def key_range(columns: Mapping[str, Array], rows: int, key: str | None) -> list[Any] | None:
    """The least and the largest key of a block."""
    if key is None or key not in columns or not rows or columns[key].ndim != 1:
        return None
    return [columns[key][:rows].min().item(), columns[key][:rows].max().item()]
