"""Column buffers of a block: allocated once, filled by several threads, then put into the grid."""

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
"""Stores the columns of a block and returns its id; a Grid can stand in for it."""


def row_bytes(outputs: tuple[Output, ...]) -> int:
    """Bytes per row; refuses columns without a fixed size."""
    total = 0
    for each in outputs:
        total += dtype_of(each).itemsize * int(np.prod(each.shape, dtype=np.int64))
    if not total:
        raise BadData("the recipe", "it produces no columns", fix="keep at least one column")
    return total


def dtype_of(output: Output) -> np.dtype[Any]:
    """The NumPy type of an output column; refuses text and other non-numeric columns."""
    try:
        found = np.dtype(output.dtype)
    except (TypeError, ValueError):  # an Arrow type that NumPy does not know
        found = np.dtype(object)
    if found.kind not in "fiub":
        raise BadData("the recipe", f"is still {output.dtype} at the end", column=output.name,
                      fix="encode or tokenise it, or leave it out with select")  # fmt: skip
    return found


def empty_columns(outputs: tuple[Output, ...], rows: int) -> dict[str, Array]:
    """Uninitialised buffers for ``rows`` rows; memory is committed only where it is written."""
    return {each.name: np.empty((rows, *each.shape), dtype_of(each)) for each in outputs}


def write_rows(frame: Frame, start: int, stop: int, columns: Mapping[str, Array], at: int) -> None:
    """Copy rows ``start`` to ``stop`` of a frame into the columns, from row ``at`` on."""
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
    """Put the first ``rows`` rows of the columns as one block; returns its id."""
    filled = {name: column[:rows] for name, column in columns.items()}
    if hasattr(put, "put_tensors"):
        return str(put.put_tensors(filled, label=label, cost_s=cost_s))
    return str(put(as_batch(filled)))


class ContentHash:
    """Hashes prepared rows, for sources whose watermark does not identify their content.

    Each column has its own hash, so the division into blocks does not change the result.
    """

    def __init__(self) -> None:
        self._columns: dict[str, Any] = {}

    def add(self, columns: Mapping[str, Array], rows: int) -> None:
        """Hash the next rows, in order."""
        for name, column in columns.items():
            self._columns.setdefault(name, hashlib.sha256()).update(np.ascontiguousarray(column[:rows]).data)

    def digest(self) -> dict[str, str]:
        """Hex digest by column."""
        return {name: each.hexdigest() for name, each in sorted(self._columns.items())}


def key_range(columns: Mapping[str, Array], rows: int, key: str | None) -> list[Any] | None:
    """Smallest and largest key of a block; None without a scalar key column."""
    if key is None or key not in columns or not rows or columns[key].ndim != 1:
        return None
    return [columns[key][:rows].min().item(), columns[key][:rows].max().item()]
