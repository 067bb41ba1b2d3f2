"""Reads arrays: .npy, .npz, .safetensors and arrays in memory; further dimensions become fixed-size lists."""

from __future__ import annotations

import json
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from fairlead.data.errors import BadData, printable
from fairlead.data.options import Options
from fairlead.data.source import Batches

Arrays = Mapping[str, "np.ndarray"]
_GET_AGAIN = "get the file again and compare its checksum"
_MOST_HEADER = 16 << 20
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
           "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "?"}  # fmt: skip


def array_field(name: str, kind: pa.DataType, shape: tuple[int, ...]) -> pa.Field:
    """The field of a column of arrays: a fixed-size list with the shape in its metadata."""
    size = int(np.prod(shape, dtype=np.int64))
    return pa.field(name, pa.list_(kind, size), metadata={"shape": json.dumps(list(shape))})


def fixed_size_list(rows: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Rows of one length as a fixed-size list column, without a copy."""
    values = pa.array(np.ascontiguousarray(rows).reshape(-1), kind.value_type)
    return pa.FixedSizeListArray.from_arrays(values, kind.list_size)


def in_memory(given: Any) -> dict[str, np.ndarray] | None:
    """One or several arrays or tensors as named NumPy arrays; None for anything else."""
    if isinstance(given, Mapping):
        parts = {str(name): _plain(value) for name, value in given.items()}
    elif isinstance(given, tuple | list) and given and all(_is_array(value) for value in given):
        names = ("x", "y", *(f"array_{place}" for place in range(2, len(given))))
        parts = {name: _plain(value) for name, value in zip(names, given, strict=False)}
    elif _is_array(given):
        parts = {"x": _plain(given)}
    else:
        return None
    return None if any(value is None for value in parts.values()) else parts


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and hasattr(value, "shape")


def _plain(value: Any) -> Any:
    if hasattr(value, "detach"):  # a tensor, without importing torch
        value = value.detach().cpu()
    return np.asarray(value) if _is_array(value) or isinstance(value, list | tuple) else None


def schema_of(name: object, arrays: Arrays) -> pa.Schema:
    """The schema with one column per array; refuses arrays of different lengths or unsafe types."""
    lengths = {key: value.shape[0] if value.ndim else None for key, value in arrays.items()}
    if not lengths or None in lengths.values() or len(set(lengths.values())) > 1:
        shapes = ", ".join(f"{key} {value.shape}" for key, value in arrays.items()) or "none"
        raise BadData(name, f"arrays have different numbers of rows: {shapes}", fix="read arrays of one length")
    fields = []
    for key, value in arrays.items():
        if value.dtype.hasobject or value.dtype.kind not in "biufSU":
            fix = "store numbers or text of fixed length"
            raise BadData(name, f"{value.dtype} cannot be read safely", column=key, fix=fix)
        if value.dtype.kind == "f" and value.dtype.itemsize > 8:
            raise BadData(name, f"{value.dtype} is wider than any column", column=key, fix="store it as float64")
        if 0 in value.shape[1:]:
            raise BadData(name, f"a row of shape {value.shape[1:]} is empty", column=key, fix="leave this array out")
        kind = pa.string() if value.dtype.kind == "U" else pa.from_numpy_dtype(value.dtype.newbyteorder("="))
        kind = pa.binary() if value.dtype.kind == "S" else kind
        fields.append(pa.field(key, kind) if value.ndim == 1 else array_field(key, kind, value.shape[1:]))
    return pa.schema(fields)


def check_same_arrays(file: object, schema: pa.Schema, own: pa.Schema, first: object) -> None:
    """Refuse a further file unless it has the arrays of the first, with the same types and shapes."""
    if not own.equals(schema, check_metadata=True):
        raise BadData(file, f"does not continue {first}: {_columns_in_words(own)} after {_columns_in_words(schema)}",
                      fix="read files that continue each other, with a pattern such as part-*.npy; put arrays that "
                          "belong side by side, such as x and y, into one .npz or .safetensors")  # fmt: skip


def _columns_in_words(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def rows_of(arrays: Arrays) -> int:
    """How many there are, by the first of them."""
    return int(next(iter(arrays.values())).shape[0])


def batches(arrays: Arrays, schema: pa.Schema, options: Options) -> Batches:
    """Rows of all arrays side by side; mapped files are read as they are needed."""
    rows = next(iter(arrays.values())).shape[0]
    each = sum(value[:1].nbytes for value in arrays.values())
    step = max(1, min(options.batch_rows, options.memory_bytes // 8 // max(1, each)))
    for begin in range(0, rows, step):
        parts = [_column(arrays[field.name][begin : begin + step], field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(parts, schema=schema)


def _column(part: np.ndarray, kind: pa.DataType) -> pa.Array:
    native = part.astype(part.dtype.newbyteorder("="), copy=False)
    if pa.types.is_fixed_size_list(kind):
        return fixed_size_list(native.reshape(len(native), -1), kind)
    return pa.array(native, kind)


def open_arrays(path: Path, options: Options) -> Arrays:
    """The arrays of a file, memory-mapped; arrays that need unpickling are refused."""
    by_suffix: dict[str, Callable[[Path, Options], Arrays]] = {".npy": _npy, ".npz": _npz, ".safetensors": _tensors}
    try:
        return by_suffix[path.suffix.lower()](path, options)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, SyntaxError, TypeError,
            NotImplementedError, OverflowError, MemoryError, tokenize.TokenError) as error:  # fmt: skip
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise BadData(path, f"is not a complete array file: {printable(str(error))}", fix=_GET_AGAIN) from error


def _npy(path: Path, options: Options) -> Arrays:
    return {"x": np.load(path, mmap_mode="r", allow_pickle=False)}


def _npz(path: Path, options: Options) -> Arrays:
    """Unpack members one by one, after checking the sizes that their headers announce."""
    found = {}
    with zipfile.ZipFile(path) as archive:
        total = sum(info.file_size for info in archive.infolist())
        if total > options.memory_bytes // 2:
            what = f"unpacks to {total:,} bytes, half of the memory is {options.memory_bytes // 2:,}"
            raise BadData(path, what, fix="store it as .npy, which is mapped; or read with a higher memory_bytes=")
        for info in archive.infolist():
            with archive.open(info) as member:
                found[info.filename.removesuffix(".npy")] = _npz_member(member, info.file_size)
    return found


def _npz_member(member: Any, size: int) -> np.ndarray:
    """Read an array from a member; refuses a header that announces more than the member holds."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(member)
    if dtype.hasobject:
        raise ValueError("it holds Python objects: store numbers or text of fixed length")
    if int(np.prod(shape, dtype=object)) * dtype.itemsize > size:
        raise ValueError("its header announces more than it holds")
    flat = np.frombuffer(member.read(size), dtype, count=int(np.prod(shape, dtype=np.int64)))
    return flat.reshape(shape, order="F" if fortran else "C")


def _tensors(path: Path, options: Options) -> Arrays:
    """Read a safetensors file: the length of a JSON header, the header, the bytes."""
    total = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(_MOST_HEADER, total - 8):
            raise ValueError("its header is longer than the file")
        header = json.loads(file.read(length))
    bytes_ = np.memmap(path, np.uint8, "r", offset=8 + length) if total > 8 + length else np.empty(0, np.uint8)
    found = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        begin, end = about["data_offsets"]
        if not 0 <= begin <= end <= len(bytes_):
            raise ValueError(f"{name} lies outside of the file")
        found[name] = bytes_[begin:end].view(np.dtype(_DTYPES[about["dtype"]])).reshape(about["shape"])
    return found
