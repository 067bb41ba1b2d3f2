"""A block that is open: its bytes as they lie in the arena, as a table, as arrays, as tensors, without a copy."""

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
    """Pinned for as long as it, or anything that was taken from it, is in use: nothing is evicted under a reader.

    The memory is mapped to be read. NumPy refuses to write to it; torch has no such notion, and a write in place ends
    the process: ``clone()`` a tensor that is to be changed.
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
        """Of its parts."""
        return sum(length for _, length in self._header.parts)

    def whole(self) -> tuple[memoryview, int]:
        """All of its bytes, parts and header, and how many at the end are the header; for a copy elsewhere."""
        data = self._opened()
        return data.toreadonly(), self._header_bytes

    def intact(self) -> bool:
        """Whether its bytes are those that were put, as far as their hash was known when it was opened."""
        return not self._digest or hashlib.blake2b(self._opened(), digest_size=32).hexdigest() == self._digest

    def parts(self) -> list[memoryview]:
        """What was put, as read-only views."""
        return [part.toreadonly() for part in self._parts()]

    def _parts(self) -> list[memoryview]:
        data = self._opened()
        return [data[begin : begin + length] for begin, length in self._header.parts]

    def _opened(self) -> memoryview:
        if self._data is None:
            raise InvalidSpec(f"block {self.id} is closed", fix="use it before it is closed")
        return self._data

    def table(self) -> pa.Table:
        """The table whose columns lie in the arena."""
        import pyarrow as pa

        self._must_be(TABLE)
        return pa.ipc.open_stream(pa.py_buffer(self.parts()[0])).read_all()

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Read-only arrays by name: what was put as tensors, or the columns of a table of fixed-size values."""
        import numpy as np

        if self.kind == TABLE:
            table = self.table()
            return {name: _column(name, table.column(name)) for name in table.column_names}
        self._must_be(TENSORS)
        found = {}
        for (name, kind, shape), part in zip(self.meta["tensors"], self.parts(), strict=True):
            if kind.startswith("torch."):
                raise InvalidSpec(f"{name} is of the type {kind}, which NumPy does not know", fix="use tensors()")
            found[name] = np.frombuffer(part, np.dtype(kind)).reshape(shape)
        return found

    def tensors(self) -> dict[str, torch.Tensor]:
        """The same as tensors, which must not be written to."""
        import torch

        if self.kind == TABLE:
            with warnings.catch_warnings():  # torch warns that it cannot promise not to write
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
        """Not needed any more; views that were taken hold it until they are gone, too."""
        self._data = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _column(name: str, column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """One column as an array; several chunks, which a block of one batch does not have, must be copied together."""
    import pyarrow as pa

    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if column.null_count:
        raise InvalidSpec(f"column {name} has {column.null_count} empty values", fix="impute them in the recipe")
    widths = []
    while pa.types.is_fixed_size_list(array.type):
        widths.append(array.type.list_size)
        array = array.flatten()
    if not (pa.types.is_primitive(array.type) or pa.types.is_boolean(array.type)):
        raise InvalidSpec(f"column {name} of type {column.type} has no fixed size", fix="encode it in the recipe")
    plain: np.ndarray[Any, Any] = array.to_numpy(zero_copy_only=not pa.types.is_boolean(array.type))
    return plain.reshape((-1, *widths)) if widths else plain


def _torch_type(kind: str) -> torch.dtype:
    import numpy as np
    import torch

    if kind.startswith("torch."):
        return getattr(torch, kind.removeprefix("torch."))  # type: ignore[no-any-return]
    return torch.from_numpy(np.empty(0, np.dtype(kind))).dtype


def flatten(tensors: Mapping[str, Any]) -> tuple[list[memoryview], list[tuple[str, str, list[int]]]]:
    """The bytes of each, and what is needed to make it again."""
    import numpy as np

    parts, facts = [], []
    for name, value in tensors.items():
        kind, shape = "", list(value.shape)
        if type(value).__module__.startswith("torch"):
            value = value.detach().cpu().contiguous()
            try:
                value = value.numpy()
            except TypeError:  # a type that NumPy does not know
                import torch

                kind, value = str(value.dtype), value.reshape(-1).view(torch.uint8).numpy()
        array = np.ascontiguousarray(value)
        if array.dtype.hasobject:
            raise InvalidSpec(f"{name} holds objects", fix="put arrays of numbers")
        parts.append(array.reshape(-1).view(np.uint8).data)
        facts.append((name, kind or array.dtype.str, shape))
    return parts, facts
