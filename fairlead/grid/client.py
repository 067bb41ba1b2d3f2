"""The grid's client in a worker: a connection to the node's grid process and the tenant's arena in memory."""

from __future__ import annotations

import functools
import os
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fairlead.errors import InvalidSpec
from fairlead.grid import messages as m
from fairlead.grid.block import TABLE, TENSORS, Block, flatten
from fairlead.grid.connection import GridConnection
from fairlead.grid.copying import copy
from fairlead.grid.layout import Layout, read_header
from fairlead.grid.reserved_room import ReservedRoom
from fairlead.grid.spill import Cipher, sealed_bytes
from fairlead.grid.values import LONGEST_LABEL, TOKEN_VARIABLE, VARIABLE, BlockId, BlockInfo, Usage

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import torch
    from typing_extensions import Buffer

_Write = Callable[[memoryview], None]
_AT_ONCE = 4 << 20  # up to this size pages are prefaulted in the calling thread, beyond it in the background


class Grid:
    """Thread-safe; a forked child opens a connection of its own."""

    def __init__(self, path: Path | str, token: str = "", *, wait_s: float = 30.0) -> None:
        """Connect. Every request waits up to ``wait_s`` for a grid process that is restarting."""
        self._line = GridConnection(Path(path), token, wait_s)
        self._open: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    @classmethod
    def of_this_worker(cls) -> Grid | None:
        """The grid of this worker's node; None where there is none."""
        path = os.environ.get(VARIABLE)
        return None if not path else _connected(path, os.environ.get(TOKEN_VARIABLE, ""))

    # ------------------------------------------------------------ put

    def put(
        self, parts: Sequence[Buffer], *, kind: str, meta: Mapping[str, object], label: str = "", cost_s: float = 0.0
    ) -> BlockId:
        """Copy the parts into a new immutable block; blocks with a higher ``cost_s`` per byte are evicted later."""
        views = [memoryview(part).cast("B") for part in parts]
        layout = Layout([len(view) for view in views], meta)

        def write(block: memoryview) -> None:
            for (begin, length), view in zip(layout.parts, views, strict=True):
                copy(block[begin : begin + length], view)

        return self._put(layout, write, kind, label, cost_s)

    def put_table(self, table: pa.Table | pa.RecordBatch, *, label: str = "", cost_s: float = 0.0,
                  meta: Mapping[str, object] | None = None) -> BlockId:  # fmt: skip
        """Write an Arrow table straight into the arena."""
        import pyarrow as pa

        def stream(sink: Any) -> None:
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write(table)

        measure = pa.MockOutputStream()
        stream(measure)
        layout = Layout([measure.size()], {"rows": table.num_rows, **(meta or {})})

        def write(block: memoryview) -> None:
            stream(pa.FixedSizeBufferWriter(pa.py_buffer(block[: measure.size()])))

        return self._put(layout, write, TABLE, label, cost_s)

    def put_tensors(self, tensors: Mapping[str, np.ndarray[Any, Any] | torch.Tensor], *, label: str = "",
                    cost_s: float = 0.0, meta: Mapping[str, object] | None = None) -> BlockId:  # fmt: skip
        """Put arrays or tensors by name."""
        parts, facts = flatten(tensors)
        return self.put(parts, kind=TENSORS, meta={**(meta or {}), "tensors": facts}, label=label, cost_s=cost_s)

    def make_tensors(self, shapes: Mapping[str, tuple[str, Sequence[int]]],
                     fill: Callable[[dict[str, np.ndarray[Any, Any]]], None], *, label: str = "", cost_s: float = 0.0,
                     meta: Mapping[str, object] | None = None) -> BlockId:  # fmt: skip
        """Put tensors that ``fill`` computes in place: it gets writable arrays in the arena."""
        import numpy as np

        facts = [(name, np.dtype(kind).str, [int(side) for side in shape]) for name, (kind, shape) in shapes.items()]
        lengths = [np.dtype(kind).itemsize * int(np.prod(shape, dtype=np.int64)) for _, kind, shape in facts]
        layout = Layout(lengths, {**(meta or {}), "tensors": facts})

        def write(block: memoryview) -> None:
            fill({name: np.frombuffer(block[begin : begin + length], np.dtype(kind)).reshape(shape)
                  for (name, kind, shape), (begin, length) in zip(facts, layout.parts, strict=True)})  # fmt: skip

        return self._put(layout, write, TENSORS, label, cost_s)

    def reserve(self, nbytes: int) -> ReservedRoom:
        """Reserve prefaulted memory for a block that is written later."""
        return ReservedRoom(self._line, BlockId(uuid.uuid4().hex), nbytes)

    def _put(self, layout: Layout, write: _Write, kind: str, label: str, cost_s: float) -> BlockId:
        if len(label) > LONGEST_LABEL or len(kind) > LONGEST_LABEL:
            raise InvalidSpec(
                f"longer than {LONGEST_LABEL} characters", field="label", value=label[:20], fix="shorten it"
            )
        block = BlockId(uuid.uuid4().hex)
        key = self._line.welcome.memory_key
        header = len(layout.header)
        if key:
            self._put_sealed(block, layout, write, m.Commit(block, header, kind, label, cost_s), key)
        elif layout.nbytes <= m.INLINE_BYTES:
            whole = bytearray(layout.nbytes)
            write(memoryview(whole))
            layout.finish(memoryview(whole))
            self._line.ask(m.PutSmall(block, bytes(whole), header, kind, label, cost_s))
        else:
            self._write(block, layout, write, m.Commit(block, header, kind, label, cost_s))
        return block

    def _write(self, block: BlockId, layout: Layout, write: _Write, commit: m.Commit) -> None:
        placed = self._line.ask(m.Reserve(block, layout.nbytes), m.Placed)
        arena = self._line.writing()
        try:
            arena.prefault(placed.offset, placed.nbytes)
            room = arena.view(placed.offset, placed.nbytes)
            write(room)
            layout.finish(room)
        except BaseException:
            self._line.release(block, self._line.session)
            raise
        self._line.ask(commit)

    def _put_sealed(self, block: BlockId, layout: Layout, write: _Write, commit: m.Commit, key: bytes) -> None:
        """Write the block into private memory and encrypt it piece by piece into the arena."""
        whole = memoryview(bytearray(layout.nbytes))
        write(whole)
        layout.finish(whole)

        def seal(room: memoryview) -> None:
            place = 0
            for piece in Cipher(key, self._line.welcome.tenant).seal(block, whole):
                room[place : place + len(piece)] = piece
                place += len(piece)

        self._write(block, Layout.opaque(sealed_bytes(layout.nbytes)), seal, commit)

    # ------------------------------------------------------------ open

    def open(self, block: BlockId) -> Block:
        """Pin and map a block; it is first restored from disk or copied from another node if need be."""
        if self._line.reset_after_fork():
            self._open.clear()  # those pins belong to the parent process
        window = self._open.get(block)
        if window is None:
            window = self._pin(block)
        data = memoryview(window).cast("B")
        header = read_header(data[len(data) - window.header :])
        return Block(block, window.kind, header, data, window.digest, window.header)

    def _pin(self, block: BlockId) -> Any:
        placed = self._line.ask(m.Open(block), m.Placed)
        arena = self._line.reading(placed.warm)
        if placed.nbytes <= _AT_ONCE:
            arena.prefault(placed.offset, placed.nbytes)
        else:
            self._line.prefault_later(placed.offset, placed.nbytes)
        window = arena.window(placed.offset, placed.nbytes)
        if self._line.welcome.memory_key:
            window = self._unseal(block, window)
            self._line.release(block, self._line.session)
            window.digest = ""  # the digest is of the encrypted bytes; AES-GCM has verified them
        else:
            window.digest = placed.digest
            weakref.finalize(window, self._line.release, block, self._line.session)
        window.kind, window.header = placed.kind, placed.header
        self._open[block] = window
        return window

    def _unseal(self, block: BlockId, window: Any) -> Any:
        """A decrypted copy in this process's memory."""
        cipher = Cipher(self._line.welcome.memory_key, self._line.welcome.tenant)
        return cipher.unseal(block, memoryview(window).cast("B"))

    def drop(self, block: BlockId) -> None:
        """Remove the block from this node; refused while it is open."""
        self._line.ask(m.Drop(block))

    # ------------------------------------------------------------ ask

    def usage(self) -> Usage:
        """This tenant's usage on this node."""
        return self._line.ask(m.AskUsage(), m.UsageAnswer).usage

    def blocks(self) -> list[BlockInfo]:
        """All blocks of this tenant on this node."""
        found: list[BlockInfo] = []
        while True:
            page = self._line.ask(m.AskBlocks(found[-1].id if found else ""), m.Blocks)
            found += page.blocks
            if not page.more:
                return found

    def close(self) -> None:
        """Allow no further requests; open blocks stay pinned until the last view is gone, then the connection ends."""
        self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@functools.lru_cache(maxsize=4)
def _connected(path: str, token: str) -> Grid:
    return Grid(path, token)
