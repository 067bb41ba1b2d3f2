"""An open block: read its bytes, table, arrays or tensors from the arena without a copy."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from fairlead.errors import InvalidSpec
from fairlead.grid.layout import Header
from fairlead.grid.values import BlockId

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import torch

TABLE, TENSORS = "table", "tensors"


class Block:
    """Pinned while it, or any view taken from it, is in use: a block is never evicted under a reader.

    The memory is mapped read-only. NumPy refuses to write to it; torch has no such check, and a write in place kills
    the process: ``clone()`` a tensor before changing it.
    """

    def __init__(self, block: BlockId, kind: str, header: Header, data: memoryview, digest: str = "",
                 header_bytes: int = 0) -> None:  # fmt: skip
        self.id, self.kind, self._digest, self._header_bytes = block, kind, digest, header_bytes
        self._header = header
        self._data: memoryview | None = data

    @property
    def meta(self) -> Mapping[str, Any]:
        return self._header.meta

    @property
    def nbytes(self) -> int:
        """Bytes of the parts, without padding and header."""
        return sum(length for _, length in self._header.parts)

    def whole(self) -> tuple[memoryview, int]:
        """All bytes including padding and header, and the header's length; for copying the block elsewhere."""
        data = self._opened()
        return data.toreadonly(), self._header_bytes

    def intact(self) -> bool:
        """True when the bytes match the digest; also when no digest was known at the time of opening."""
        return not self._digest or hashlib.blake2b(self._opened(), digest_size=32).hexdigest() == self._digest

    def parts(self) -> list[memoryview]:
        """The parts that were put, as read-only views."""
        return [part.toreadonly() for part in self._parts()]

    def _parts(self) -> list[memoryview]:
        data = self._opened()
        return [data[begin : begin + length] for begin, length in self._header.parts]

    def _opened(self) -> memoryview:
        if self._data is None:
            raise InvalidSpec(f"block {self.id} is closed", fix="read it before close()")
        return self._data

    def table(self) -> pa.Table:
        """The table; its columns lie in the arena."""
        import pyarrow as pa

        self._must_be(TABLE)
        return pa.ipc.open_stream(pa.py_buffer(self.parts()[0])).read_all()

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Read-only arrays by name: put as tensors, or the fixed-size columns of a table."""
        import numpy as np

        if self.kind == TABLE:
            table = self.table()
            return {name: _column(name, table.column(name)) for name in table.column_names}
        self._must_be(TENSORS)
        found = {}
        for (name, kind, shape), part in zip(self.meta["tensors"], self.parts(), strict=True):
            if kind.startswith("torch."):
                raise InvalidSpec(f"{name} has type {kind}, which NumPy does not support", fix="use tensors()")
            found[name] = np.frombuffer(part, np.dtype(kind)).reshape(shape)
        return found

    def tensors(self) -> dict[str, torch.Tensor]:
        """The same as torch tensors; do not write to them."""
        import torch

        if self.kind == TABLE:
            with warnings.catch_warnings():  # torch warns about read-only arrays
                warnings.simplefilter("ignore", UserWarning)
                return {name: torch.from_numpy(array) for name, array in self.arrays().items()}
        self._must_be(TENSORS)
        found = {}
        for (name, kind, shape), part in zip(self.meta["tensors"], self._parts(), strict=True):
            dtype = _torch_type(kind)
            flat = torch.frombuffer(part, dtype=dtype) if len(part) else torch.empty(0, dtype=dtype)
            found[name] = flat.reshape(shape)
        return found

    def _must_be(self, kind: str) -> None:
        if self.kind != kind:
            raise InvalidSpec(f"block {self.id} holds {self.kind}, not {kind}", fix="use parts()")

    def close(self) -> None:
        """Release the block; it stays pinned until the last view of it is gone."""
        self._data = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _column(name: str, column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """One column as an array; several chunks are copied into one (a block of one batch has one chunk)."""
    import pyarrow as pa

    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if column.null_count:
        raise InvalidSpec(f"column {name} has {column.null_count} empty values", fix="impute them in the recipe")
    widths = []
    while pa.types.is_fixed_size_list(array.type):
        widths.append(array.type.list_size)
        array = array.flatten()
    if not (pa.types.is_primitive(array.type) or pa.types.is_boolean(array.type)):
        raise InvalidSpec(f"column {name} of type {column.type} has no fixed width", fix="encode it in the recipe")
    plain: np.ndarray[Any, Any] = array.to_numpy(zero_copy_only=not pa.types.is_boolean(array.type))
    return plain.reshape((-1, *widths)) if widths else plain


def _torch_type(kind: str) -> torch.dtype:
    import numpy as np
    import torch

    if kind.startswith("torch."):
        return getattr(torch, kind.removeprefix("torch."))  # type: ignore[no-any-return]
    return torch.from_numpy(np.empty(0, np.dtype(kind))).dtype


def flatten(tensors: Mapping[str, Any]) -> tuple[list[memoryview], list[tuple[str, str, list[int]]]]:
    """The bytes of each array, and its name, type and shape."""
    import numpy as np

    parts, facts = [], []
    for name, value in tensors.items():
        kind, shape = "", list(value.shape)
        if type(value).__module__.startswith("torch"):
            value = value.detach().cpu().contiguous()
            try:
                value = value.numpy()
            except TypeError:  # NumPy lacks this type, such as bfloat16
                import torch

                kind, value = str(value.dtype), value.reshape(-1).view(torch.uint8).numpy()
        array = np.ascontiguousarray(value)
        if array.dtype.hasobject:
            raise InvalidSpec(f"{name} holds Python objects", fix="put arrays of numbers")
        parts.append(array.reshape(-1).view(np.uint8).data)
        facts.append((name, kind or array.dtype.str, shape))
    return parts, facts
