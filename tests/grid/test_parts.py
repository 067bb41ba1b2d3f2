"""A block as its reader sees it: parts, arrays, tables and tensors, of whatever kind was put."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from fairlead.errors import InvalidSpec
from fairlead.grid.block import TABLE, TENSORS, Block, _column, flatten
from fairlead.grid.layout import Layout, read_header
from fairlead.grid.standalone import standalone_grid
from fairlead.grid.values import BlockId

A = BlockId("a" * 32)


def block(kind: str, parts: list[Any], meta: dict[str, Any], digest: str | None = None) -> Block:
    views = [memoryview(part).cast("B") for part in parts]
    layout = Layout([len(view) for view in views], meta)
    data = memoryview(bytearray(layout.nbytes))
    for (begin, length), view in zip(layout.parts, views, strict=True):
        data[begin : begin + length] = view
    layout.finish(data)
    digest = hashlib.blake2b(data, digest_size=32).hexdigest() if digest is None else digest
    return Block(A, kind, read_header(data[len(data) - len(layout.header) :]), data, digest, len(layout.header))


def tensors(**named: Any) -> Block:
    parts, facts = flatten(named)
    return block(TENSORS, parts, {"tensors": facts})


def test_arrays_and_tensors_come_back_as_they_were_put() -> None:
    given = {
        "a": np.arange(6.0).reshape(2, 3), "b": torch.arange(4, dtype=torch.int32),
        "t": torch.arange(6).reshape(2, 3).t(),
        "none": np.empty((0, 3), np.float32), "one": np.array(7, np.int8), "flag": torch.tensor([True, False]),
    }  # fmt: skip
    found = tensors(**given)
    assert set(found.arrays()) == set(found.tensors()) == set(given)
    for name, value in given.items():
        array, tensor = found.arrays()[name], found.tensors()[name]
        assert array.shape == tuple(value.shape) == tuple(tensor.shape) and str(array.dtype) in str(
            np.asarray(value).dtype
        )
        assert np.array_equal(array, np.asarray(value)) and np.array_equal(tensor.numpy(), np.asarray(value))
        assert not array.flags.writeable


def test_what_numpy_does_not_know_comes_as_tensors_only() -> None:
    given = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    found = tensors(x=given.requires_grad_(True))
    assert found.meta["tensors"] == [("x", "torch.bfloat16", [2])] or found.meta["tensors"] == [
        ["x", "torch.bfloat16", [2]]
    ]
    assert torch.equal(found.tensors()["x"], given.detach()) and found.tensors()["x"].dtype == torch.bfloat16
    with pytest.raises(InvalidSpec, match="NumPy does not support"):
        found.arrays()
    with pytest.raises(InvalidSpec, match="x holds Python objects"):
        flatten({"x": np.array([{}, 1], object)})


def table(columns: dict[str, Any]) -> Block:
    made = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write(made)
    return block(TABLE, [sink.getvalue()], {"rows": made.num_rows})


def test_columns_of_a_table_are_arrays_however_deep_their_lists_of_fixed_size_are() -> None:
    deep = pa.FixedSizeListArray.from_arrays(pa.FixedSizeListArray.from_arrays(pa.array(range(12)), 2), 3)
    found = table({"n": [1, 2], "f": [0.5, 1.5], "flag": [True, False], "deep": deep})
    assert found.table().num_rows == 2 and found.meta == {"rows": 2}
    arrays = found.arrays()
    assert arrays["deep"].tolist() == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]
    assert arrays["n"].tolist() == [1, 2] and arrays["flag"].tolist() == [True, False] and arrays["flag"].dtype == bool
    assert found.tensors()["deep"].shape == (2, 3, 2)
    for columns, words in (({"n": [1, None]}, "1 empty values"), ({"s": ["a", "b"]}, "no fixed width")):
        with pytest.raises(InvalidSpec, match=words):
            table(columns).arrays()


def test_chunks_are_put_together() -> None:
    assert _column("c", pa.chunked_array([[1, 2], [3]])).tolist() == [1, 2, 3]
    assert _column("c", pa.chunked_array([[1, 2]])).tolist() == [1, 2]


def test_a_block_is_taken_for_what_it_is() -> None:
    found = block("other", [b"abc", b"", b"de"], {"x": 1})
    assert [bytes(part) for part in found.parts()] == [b"abc", b"", b"de"] and found.nbytes == 5
    assert all(part.readonly for part in found.parts())
    for asked in (found.arrays, found.tensors, found.table):
        with pytest.raises(InvalidSpec, match="holds other"):
            asked()
    assert found.intact() and block("k", [b"abc"], {}, "").intact() and not block("k", [b"abc"], {}, "0" * 64).intact()
    with found as same:
        whole, header = same.whole()
        assert len(whole) == len(found._opened()) and whole.readonly and 0 < header < len(whole)
    with pytest.raises(InvalidSpec, match="is closed"):
        found.parts()


def test_reserved_room_of_an_encrypted_tenant_is_sealed_when_it_is_committed(tmp_path: Path) -> None:
    data = bytes(range(256)) * 40
    layout = Layout([len(data)], {"note": "sealed"})
    with standalone_grid(tmp_path, quota=8 << 20, encrypted=True) as running, running.connect() as grid:
        room = grid.reserve(layout.nbytes)
        room.view[: len(data)] = data
        with grid.open(room.commit(layout, kind="k", label="l")) as block:
            assert not room.in_arena and bytes(block.parts()[0]) == data and block.meta == {"note": "sealed"}
