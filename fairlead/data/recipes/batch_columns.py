"""The columns of a batch inside a recipe: Arrow as read, NumPy once they are numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fairlead.data.errors import BadData

Array = np.ndarray[Any, np.dtype[Any]]


class Frame:
    """Columns by name, all with the same number of rows. Missing numbers are NaN; missing text is null.

    A column is an Arrow array, a NumPy array, or a deferred column with ``shape``, ``dtype`` and
    ``write(out, start, stop)``, which is computed at its destination so that it is never held twice.
    """

    def __init__(self, columns: dict[str, Any], places: Array) -> None:
        self.columns, self.row_numbers = columns, places  # places: each row's number in the source
        self.flagged: dict[int, float] = {}  # row of the source -> anomaly score

    @property
    def rows(self) -> int:
        return len(self.row_numbers)

    @classmethod
    def from_batch(cls, batch: pa.RecordBatch, first: int = 0, places: Array | None = None) -> Frame:
        columns = {field.name: as_array(column, field) if pa.types.is_fixed_size_list(field.type) else column
                   for field, column in zip(batch.schema, batch.columns, strict=True)}  # fmt: skip
        return cls(columns, np.arange(first, first + batch.num_rows) if places is None else places)

    def copy(self) -> Frame:
        """A shallow copy, so that steps do not change this frame."""
        return Frame(dict(self.columns), self.row_numbers)

    def numbers(self, name: str) -> Array:
        """A column as numbers of its own width; NaN for missing values."""
        column = self.columns[name]
        if isinstance(column, np.ndarray):
            return column
        if hasattr(column, "write"):
            return to_array(column)
        column = _without_dictionary(column)
        kind = column.type
        if pa.types.is_boolean(kind):
            column = column.cast(pa.uint8())
        elif pa.types.is_time(kind):
            column = column.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64())
        elif pa.types.is_temporal(kind) and not pa.types.is_duration(kind):
            column = pc.cast(column.cast(pa.timestamp("us")), pa.int64())
        elif pa.types.is_decimal(kind) or pa.types.is_null(kind):
            column = column.cast(pa.float64())
        if not is_numeric(column.type):
            raise BadData("the recipe", f"is {kind}, not numbers", column=name, fix="encode or tokenise it first")
        return cast(Array, column.to_numpy(zero_copy_only=False))

    def category_codes(self, name: str) -> tuple[Array, list[Any]]:
        """A column as indices into the list of its distinct values; -1 for missing values."""
        column = self.columns[name]
        if isinstance(column, np.ndarray):
            if column.ndim > 1:
                raise BadData("the recipe", "has several numbers per row at this step, not categories", column=name,
                              fix="encode it before the step that expands it")  # fmt: skip
            column = pa.array(column, from_pandas=column.dtype.kind == "f")
        if not pa.types.is_dictionary(column.type):
            column = _as_json_values(column, name).dictionary_encode()
        places = column.indices
        if places.null_count:
            places = pc.fill_null(places, -1)
        return cast(Array, places.to_numpy(zero_copy_only=False)), cast(list[Any], column.dictionary.to_pylist())

    def texts(self, name: str) -> pa.Array:
        """A column as text; missing values are null."""
        column = self.columns[name]
        if isinstance(column, np.ndarray):
            column = pa.array(column)
        return _without_dictionary(column).cast(
            pa.large_string() if pa.types.is_large_string(column.type) else pa.string()
        )

    def check_new_column(self, name: str, step: str) -> None:
        """Refuse to overwrite an existing column."""
        if name in self.columns:
            raise BadData("the recipe", f"{step} would overwrite this column", column=name,
                          fix="drop it before with select, or rename it in the source")  # fmt: skip

    def filter(self, mask: Array) -> None:
        """Keep only the rows where the mask is true."""
        for name, column in self.columns.items():
            if isinstance(column, pa.Array):
                self.columns[name] = column.filter(pa.array(mask))
            else:
                self.columns[name] = to_array(column)[mask]
        self.row_numbers = self.row_numbers[mask]

    def batch(self) -> pa.RecordBatch:
        """All columns as Arrow; several numbers per row become a fixed-size list."""
        return as_batch({name: column if isinstance(column, pa.Array) else to_array(column)
                         for name, column in self.columns.items()})  # fmt: skip


def to_array(column: Any) -> Array:
    """A NumPy or deferred column as one array."""
    if isinstance(column, np.ndarray):
        return column
    out = np.empty(column.shape, column.dtype)
    column.write(out, 0, len(out))
    return out


def as_batch(columns: dict[str, Any]) -> pa.RecordBatch:
    """Arrays as a record batch without a copy; the shape of a row goes into the field's metadata."""
    fields, arrays = [], []
    for name, column in columns.items():
        array = column if isinstance(column, pa.Array) else _as_arrow(column)
        shaped = not isinstance(column, pa.Array) and column.ndim > 1
        shape = {"shape": json.dumps(list(column.shape[1:]))} if shaped else None
        fields.append(pa.field(name, array.type, metadata=shape))
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _as_arrow(column: Array) -> pa.Array:
    column = np.ascontiguousarray(column)
    if column.dtype == np.bool_:
        column = column.view(np.uint8)
    if column.ndim == 1:
        return pa.array(column)
    width = int(np.prod(column.shape[1:]))
    return pa.FixedSizeListArray.from_arrays(pa.array(column.reshape(-1)), width)


def as_array(column: pa.Array, field: pa.Field) -> Array:
    """A fixed-size column of a record batch as an array in its shape, without a copy."""
    if not pa.types.is_fixed_size_list(column.type):
        return cast(Array, column.to_numpy(zero_copy_only=False))
    written = (field.metadata or {}).get(b"shape")
    shape = tuple(json.loads(written)) if written else (column.type.list_size,)
    return cast(Array, column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), *shape))


def fits_dtype(values: Array, dtype: np.dtype[Any]) -> bool:
    """True if all numbers lie in the range of the type; NaN is in no range of whole numbers."""
    if not values.size:
        return True
    least, most = values.min(), values.max()
    if dtype.kind == "f":
        return bool(np.abs(values[np.isfinite(values)]).max(initial=0) <= np.finfo(dtype).max)
    if not (np.isfinite(least) and np.isfinite(most)):
        return False
    return int(least) >= np.iinfo(dtype).min and int(most) <= np.iinfo(dtype).max


def is_numeric(kind: pa.DataType) -> bool:
    """True if a column of this type holds one number per row."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def is_text(kind: pa.DataType) -> bool:
    """True if a column of this type holds text, plain or dictionary-encoded."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _as_json_values(column: pa.Array, name: str) -> pa.Array:
    """A column as values that JSON can store, because a fitted recipe stores its categories."""
    kind = column.type
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_nan(column), None, column)
    if (pa.types.is_temporal(kind) and not pa.types.is_duration(kind)) or pa.types.is_decimal(kind):
        return column.cast(pa.string())
    if is_numeric(kind) or is_text(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        return column
    raise BadData("the recipe", f"is {kind}, which has no categories", column=name,
                  fix="read it as text or numbers, or drop it")  # fmt: skip


def _without_dictionary(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def column_kinds(frame: Frame, names: Sequence[str]) -> dict[str, str]:
    """The kind of each column: number, numbers, text, or the name of its Arrow type."""
    found = {}
    for name in names:
        column = frame.columns[name]
        if isinstance(column, pa.Array):
            kind = column.type
            number = is_numeric(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind)
            found[name] = "number" if number else "text" if is_text(column.type) else str(column.type)
        else:
            found[name] = "number" if len(column.shape) == 1 else "numbers"
    return found
