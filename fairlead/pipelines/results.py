"""Passes results from stage to stage through memory: arrays, tables and tensors without a copy, the rest pickled.

A result is one block: its description and the buffers of all arrays in it, however deep. Small plain values travel
inline. A block is opened only in workers of the tenant that made it.
"""

from __future__ import annotations

import contextlib
import io
import math
import mmap
import os
import pickle
import struct
import sys
import uuid
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import cloudpickle

from fairlead.errors import InvalidSpec, NotFound

PLAIN_BYTES = 8 << 10
MAX_FILES = 48  # blocks per tenant in the memory of a node without a grid; the oldest are dropped first
MAX_SHOWN_CHARS, SHOWN_PARTS, SHOWN_DEEP = 200, 6, 2
_ALIGNED = 64
_HEAD = struct.Struct("<8sI")
_MAGIC = b"flstage1"


class ResultStore(Protocol):
    """Stores blocks: the grid, or a folder in memory."""

    def put(self, parts: Sequence[Any], label: str, cost_s: float = 0.0) -> str:
        """Store the parts as one block; ``cost_s``, the time it took to compute, decides what is evicted first."""

    def open(self, block: str) -> list[memoryview]:
        """Its parts, valid while this process lives; raises :class:`NotFound` if it is gone."""


def put(value: Any, place: ResultStore, label: str, cost_s: float = 0.0) -> dict[str, Any]:
    """A reference to the value, as plain data that the control plane may handle."""
    if _is_plain(value) and len(repr(value)) <= PLAIN_BYTES:
        return {"kind": "plain", "plain": value, "shown": describe_value(value)}
    buffers: list[pickle.PickleBuffer] = []
    described = io.BytesIO()
    try:
        _Pickler(described, protocol=5, buffer_callback=buffers.append).dump(value)
    except Exception as error:  # noqa: BLE001 (an object's own pickling may raise anything: report it to the user)
        raise InvalidSpec(
            f"returns a {type(value).__name__} that cannot be passed on: {error}", field=label.rpartition("/")[2],
            fix="return arrays, tables, tensors or plain values; open files and connections inside the next stage",
        ) from None  # fmt: skip
    parts: list[Any] = [described.getbuffer(), *(buffer.raw() for buffer in buffers)]
    size = sum(memoryview(part).nbytes for part in parts)
    return {"kind": "block", "block": place.put(parts, label, cost_s), "bytes": size, "shown": describe_value(value)}


def get(reference: Mapping[str, Any], place: ResultStore) -> Any:
    """The value; its arrays are read-only views of shared memory."""
    if reference.get("kind") == "plain":
        return reference["plain"]
    described, *buffers = place.open(str(reference.get("block", "")))
    return cloudpickle.loads(
        described, buffers=buffers
    )  # safe to unpickle: only workers of this tenant can write its blocks


def describe_value(value: Any, depth: int = 0) -> str:
    """A short description for people: type and size; for small containers, their contents."""
    name = type(value).__name__
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        kind = getattr(value, "dtype", "")
        return f"{name} {' x '.join(map(str, shape))} {kind}".strip()[:MAX_SHOWN_CHARS]
    if _is_plain(value):
        return _truncate(repr(value))
    if depth < SHOWN_DEEP and isinstance(value, Mapping | list | tuple) and 0 < len(value) <= SHOWN_PARTS:
        if isinstance(value, Mapping):
            return _truncate(
                f"{{{', '.join(f'{key}: {describe_value(each, depth + 1)}' for key, each in value.items())}}}"
            )
        return _truncate(f"({', '.join(describe_value(each, depth + 1) for each in value)})")
    return f"{name} of {len(value)}" if isinstance(value, Mapping | list | tuple) else name[:MAX_SHOWN_CHARS]


def _truncate(text: str) -> str:
    text = text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 3]}..."
    return text if is_text(text) else text.encode("ascii", "backslashreplace").decode()[:MAX_SHOWN_CHARS]


def is_text(value: str) -> bool:
    """True if the string is valid Unicode: strings may hold lone surrogates of undecodable bytes."""
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:
        return False


def _is_plain(value: Any, depth: int = 0) -> bool:
    """True if JSON represents the value exactly: no tuples, no non-finite numbers."""
    if value is None or type(value) is bool:
        return True
    if type(value) is str:
        return is_text(value)
    if type(value) is int:
        return abs(value) < 2**53
    if type(value) is float:
        return math.isfinite(value)
    if depth > 8:
        return False
    if type(value) is list:
        return len(value) <= 1000 and all(_is_plain(each, depth + 1) for each in value)
    if type(value) is dict:
        named = all(type(key) is str and is_text(key) for key in value)
        return named and len(value) <= 1000 and all(_is_plain(each, depth + 1) for each in value.values())
    return False


# ---------------------------------------------------------------- tensors


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles tensors out of band, as arrays are; torch's own reducer would copy them."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and type(value) is torch.Tensor and value.layout is torch.strided:
            bare = value.detach()
            if bare.device.type == "cpu" and not bare.is_quantized and not bare.is_conj() and not bare.is_neg():
                flat = bare.contiguous().reshape(-1).view(torch.uint8)
                name = str(bare.dtype).removeprefix("torch.")
                return _tensor, (flat.numpy(), name, tuple(bare.shape), value.requires_grad)
        return super().reducer_override(value)


def _tensor(flat: Any, dtype: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the array is read-only; our docs say so
        made = torch.from_numpy(flat).view(getattr(torch, dtype)).reshape(shape)
    return made.requires_grad_() if requires_grad else made


# ---------------------------------------------------------------- places


class FolderStore:
    """Blocks as files in a folder in memory, for platforms without a grid: one folder per node, readable by all."""

    def __init__(self, own: Path) -> None:
        self._own = own

    def put(self, parts: Sequence[Any], label: str, cost_s: float = 0.0) -> str:
        """Write a block atomically, dropping the oldest if there are too many."""
        self._make_room()
        views = [memoryview(part).cast("B") if memoryview(part).nbytes else memoryview(b"") for part in parts]
        name = f"{uuid.uuid4().hex}.block"
        beside = self._own / f".{name}"
        with beside.open("wb") as file:
            file.write(_HEAD.pack(_MAGIC, len(views)) + b"".join(struct.pack("<Q", view.nbytes) for view in views))
            for view in views:
                file.write(b"\0" * (-file.tell() % _ALIGNED))
                file.write(view)
        beside.replace(self._own / name)
        return f"{self._own.name}/{name}"

    def open(self, block: str) -> list[memoryview]:
        """Map a block from this node's or another node's folder."""
        node, _, name = block.partition("/")
        if not name.endswith(".block") or "/" in name or node in ("", ".", ".."):
            raise NotFound(f"there is no block {block!r}")
        path = self._own.parent / node / name
        try:
            with path.open("rb") as file:
                mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except OSError:
            raise NotFound(f"the block {block} is gone") from None
        with contextlib.suppress(OSError):
            os.utime(path)  # recently used: dropped later
        _, count = _HEAD.unpack_from(mapped)
        sizes = struct.unpack_from(f"<{count}Q", mapped, _HEAD.size)
        at, parts = _HEAD.size + 8 * count, []
        for size in sizes:
            at += -at % _ALIGNED
            parts.append(mapped[at : at + size])
            at += size
        return parts

    def _make_room(self) -> None:
        found = []
        for path in self._own.glob("*.block"):
            with contextlib.suppress(OSError):
                found.append((path.stat().st_mtime, path))
        for _, path in sorted(found)[: max(0, len(found) - MAX_FILES + 1)]:
            path.unlink(missing_ok=True)
