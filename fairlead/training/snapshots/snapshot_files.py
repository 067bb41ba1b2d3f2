"""Snapshots on disk: whole files, folders of shards, and notes that name a grid block; lists and verifies them.

A whole file is a state in torch's own format (``.pt``, the first version's only one) or the bytes of a block
(``.block``); both end in a checksum, or in the hash that the grid computed. Files are written under another name and
renamed: a file with the right name is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from fairlead.errors import FairleadError
from fairlead.grid.layout import read_header
from fairlead.training.channel import log
from fairlead.training.snapshots.flat_state import FlatState, flat_state_from_parts

KEEP = 2
FILE, FLAT, SHARDS, NOTE = ".pt", ".block", ".parts", ".grid"
_TRAILER = b"fairlead-crc32:"
_TRAILER_BYTES = len(_TRAILER) + 8
_HASHED = b"fairlead-blake2b:"
_HASHED_BYTES = len(_HASHED) + 64
_HEADER = struct.Struct("<Q")
_PLACE, _SIZES = "place.pt", "sizes.json"
_PIECE = 4 << 20


class Blocks(Protocol):
    """The grid blocks that notes name."""

    def read(self, note: Path) -> FlatState | None:
        """The state, copied out of its block; None if it is damaged; raises OSError or FairleadError if it is gone."""

    def drop(self, note: Path) -> None: ...


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A snapshot in the listing; only reading shows whether it is intact."""

    step: int
    path: Path
    where: str
    blocks: Blocks | None = None  # None: this worker has no grid

    def read(self) -> bytes | FlatState | None:
        """The state, or None if it is gone, truncated or damaged (by its checksum)."""
        try:
            found = self._read()
        except (OSError, FairleadError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            log(f"snapshot {self.path.name} in {self.where} cannot be read ({why}); looking for an older one")
            return None
        except (msgspec.MsgspecError, ValueError, LookupError, AttributeError):
            found = "has an unknown format"
        if isinstance(found, str):
            log(f"snapshot {self.path.name} in {self.where} {found}; looking for an older one")
            return None
        return found

    def _read(self) -> bytes | FlatState | str:
        """The state, or what is wrong with it."""
        if self.path.suffix == NOTE:
            return self._from_grid()
        file = self.path / _PLACE if self.path.suffix == SHARDS else self.path
        data = file.read_bytes()
        if data[-_HASHED_BYTES:].startswith(_HASHED):
            return _read_hashed(memoryview(data)) or "is damaged"
        body, trailer = memoryview(data)[:-_TRAILER_BYTES], data[-_TRAILER_BYTES:]
        if trailer != _trailer(zlib.crc32(body)):
            return "is damaged"
        if file is not self.path and not _complete(self.path):
            return "lacks shards"
        return _read_flat(body) if self.path.suffix == FLAT else bytes(body)

    def _from_grid(self) -> FlatState | str:
        if self.blocks is None:
            return "lies in the grid, and this worker has none"
        return self.blocks.read(self.path) or "is damaged"

    def remove(self) -> None:
        """Delete the snapshot."""
        if self.path.suffix == NOTE:
            if self.blocks is not None:
                self.blocks.drop(self.path)
            self.path.unlink(missing_ok=True)
        elif self.path.suffix == SHARDS:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self.path.unlink(missing_ok=True)


def list_snapshots(folder: Path, where: str, blocks: Blocks | None = None) -> Iterator[StoredSnapshot]:
    """All snapshots in a folder, in any order."""
    for path in folder.glob("snapshot-*.*"):
        number = path.stem.removeprefix("snapshot-")
        if path.suffix in (FILE, FLAT, SHARDS, NOTE) and number.isdecimal():
            yield StoredSnapshot(int(number), path, where, blocks)


def drop_old_snapshots(folder: Path, blocks: Blocks | None = None) -> None:
    """Keep the newest KEEP steps of a folder; several formats of one step count as one."""
    found = sorted(list_snapshots(folder, "", blocks), key=lambda stored: stored.step)
    kept = sorted({stored.step for stored in found})[-KEEP:]
    for stored in found:
        if stored.step not in kept:
            stored.remove()


# ---------------------------------------------------------------- writing


class _Checked:
    """Counts and checksums what is written through it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size, self.crc = 0, 0

    def write(self, data: Any) -> int:
        self.crc = zlib.crc32(data, self.crc)
        self.size += len(data)
        self._file.write(data)
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def write_hashed(path: Path, block: memoryview, header: int, digest: str) -> int:
    """Write the bytes of a block whose hash is known, synced to disk: no checksum has to be computed."""

    def save(file: BinaryIO) -> None:
        for begin in range(0, len(block), _PIECE):
            file.write(block[begin : begin + _PIECE])
        file.write(_HEADER.pack(header) + _HASHED + digest.encode())

    _write_atomically(path, save, sync=True)
    return len(block)


def write_file(path: Path, save: Callable[[Any], None], *, sync: bool, trailer: bool = True) -> int:
    """Write to a temporary file, then rename: a file with this name is always complete. Returns its bytes."""
    sizes: list[int] = []

    def write(file: BinaryIO) -> None:
        checked = _Checked(file)
        save(checked)
        if trailer:
            file.write(_trailer(checked.crc))
        sizes.append(checked.size)

    _write_atomically(path, write, sync=sync)
    return sizes[0]


def _write_atomically(path: Path, write: Callable[[BinaryIO], None], *, sync: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            write(file)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_flat(path: Path, block: memoryview, header: int, *, sync: bool) -> int:
    """Write the bytes of a block, whose last ``header`` bytes are its header, as a file."""

    def save(file: Any) -> None:
        for begin in range(0, len(block), _PIECE):
            file.write(block[begin : begin + _PIECE])
        file.write(_HEADER.pack(header))

    return write_file(path, save, sync=sync)


def complete_shards(folder: Path, describe: Callable[[Any], None]) -> int:
    """Make a folder of shards valid: write the sizes of its files and the training's progress. Returns all bytes."""
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    (folder / _SIZES).write_text(json.dumps(sizes))
    return sum(sizes.values()) + write_file(folder / _PLACE, describe, sync=True)


def _read_hashed(data: memoryview) -> FlatState | None:
    """The state from a block that is followed by its header's length and its hash; None if it is damaged."""
    block, digest = data[: -_HASHED_BYTES - _HEADER.size], bytes(data[-64:]).decode()
    if hashlib.blake2b(block, digest_size=32).hexdigest() != digest:
        return None
    return _read_flat(data[:-_HASHED_BYTES])


def _read_flat(body: memoryview) -> FlatState:
    block, (header,) = body[: -_HEADER.size], _HEADER.unpack(body[-_HEADER.size :])
    found = read_header(block[len(block) - header :])
    return flat_state_from_parts(found.meta, [block[begin : begin + length] for begin, length in found.parts])


def _complete(parts: Path) -> bool:
    """Whether all files of a sharded snapshot exist with the right sizes."""
    try:
        sizes: dict[str, int] = json.loads((parts / _SIZES).read_text())
        return all((parts / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _trailer(crc: int) -> bytes:
    return _TRAILER + f"{crc:08x}".encode()
