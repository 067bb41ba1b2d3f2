"""Snapshots where they lie: whole files, folders of parts, and notes that name a block of the grid; found and checked.

A whole file is a state in torch's own form (``.pt``, all there was at first) or the bytes of a block (``.block``); both
end in a checksum, or in the hash that the grid computed. Written beside and renamed: what has the right name is whole.
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
from fairlead.training.snapshots.flat_state import FlatState, put_together

KEEP = 2
FILE, FLAT, PARTS, NOTE = ".pt", ".block", ".parts", ".grid"
_TRAILER = b"fairlead-crc32:"
_TRAILER_BYTES = len(_TRAILER) + 8
_HASHED = b"fairlead-blake2b:"
_HASHED_BYTES = len(_HASHED) + 64
_HEADER = struct.Struct("<Q")
_PLACE, _SIZES = "place.pt", "sizes.json"
_PIECE = 4 << 20


class Blocks(Protocol):
    """Where the blocks are that notes name."""

    def read(self, note: Path) -> FlatState | None:
        """The state, copied out of its block; None if that is damaged; raises OSError or FairleadError if gone."""

    def drop(self, note: Path) -> None: ...


@dataclass(frozen=True, slots=True)
class Stored:
    """A snapshot; whether it is whole is known only after reading it."""

    step: int
    path: Path
    where: str
    blocks: Blocks | None = None  # where notes are looked up; None: this worker has no grid

    def read(self) -> bytes | FlatState | None:
        """The state, or None if it is gone, cut off or damaged (its checksum says so)."""
        try:
            found = self._read()
        except (OSError, FairleadError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            log(f"snapshot {self.path.name} in {self.where} cannot be read ({why}); looking for an older one")
            return None
        except (msgspec.MsgspecError, ValueError, LookupError, AttributeError):
            found = "is in a form that is not known here"
        if isinstance(found, str):
            log(f"snapshot {self.path.name} in {self.where} {found}; looking for an older one")
            return None
        return found

    def _read(self) -> bytes | FlatState | str:
        """What it holds, or what is wrong with it."""
        if self.path.suffix == NOTE:
            return self._from_grid()
        file = self.path / _PLACE if self.path.suffix == PARTS else self.path
        data = file.read_bytes()
        if data[-_HASHED_BYTES:].startswith(_HASHED):
            return _hashed(memoryview(data)) or "is damaged"
        body, trailer = memoryview(data)[:-_TRAILER_BYTES], data[-_TRAILER_BYTES:]
        if trailer != _trailer(zlib.crc32(body)):
            return "is damaged"
        if file is not self.path and not _complete(self.path):
            return "lacks parts"
        return _flat(body) if self.path.suffix == FLAT else bytes(body)

    def _from_grid(self) -> FlatState | str:
        if self.blocks is None:
            return "lies in the grid, which this worker has not"
        return self.blocks.read(self.path) or "is damaged"

    def remove(self) -> None:
        """It is not needed any more."""
        if self.path.suffix == NOTE:
            if self.blocks is not None:
                self.blocks.drop(self.path)
            self.path.unlink(missing_ok=True)
        elif self.path.suffix == PARTS:
            shutil.rmtree(self.path, ignore_errors=True)
        else:
            self.path.unlink(missing_ok=True)


def listed(folder: Path, where: str, blocks: Blocks | None = None) -> Iterator[Stored]:
    """All snapshots in a folder, in any order."""
    for path in folder.glob("snapshot-*.*"):
        number = path.stem.removeprefix("snapshot-")
        if path.suffix in (FILE, FLAT, PARTS, NOTE) and number.isdecimal():
            yield Stored(int(number), path, where, blocks)


def drop_old(folder: Path, blocks: Blocks | None = None) -> None:
    """Leave the newest ones of a folder; of one step both forms count as one."""
    found = sorted(listed(folder, "", blocks), key=lambda stored: stored.step)
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
    """The bytes of a block whose hash is known already, synced to disk: nothing has to be computed."""

    def save(file: BinaryIO) -> None:
        for begin in range(0, len(block), _PIECE):
            file.write(block[begin : begin + _PIECE])
        file.write(_HEADER.pack(header) + _HASHED + digest.encode())

    _beside(path, save, sync=True)
    return len(block)


def write_file(path: Path, save: Callable[[Any], None], *, sync: bool, trailer: bool = True) -> int:
    """Write beside, then rename: a file with the right name is a whole one. Returns its bytes."""
    sizes: list[int] = []

    def write(file: BinaryIO) -> None:
        checked = _Checked(file)
        save(checked)
        if trailer:
            file.write(_trailer(checked.crc))
        sizes.append(checked.size)

    _beside(path, write, sync=sync)
    return sizes[0]


def _beside(path: Path, write: Callable[[BinaryIO], None], *, sync: bool) -> None:
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
    """The bytes of a block, of which so many at the end are its header, as a file."""

    def save(file: Any) -> None:
        for begin in range(0, len(block), _PIECE):
            file.write(block[begin : begin + _PIECE])
        file.write(_HEADER.pack(header))

    return write_file(path, save, sync=sync)


def write_place(folder: Path, describe: Callable[[Any], None]) -> int:
    """Make a folder of parts complete: what its files must be, and where the training stands. Returns all bytes."""
    sizes = {file.name: file.stat().st_size for file in folder.iterdir()}
    (folder / _SIZES).write_text(json.dumps(sizes))
    return sum(sizes.values()) + write_file(folder / _PLACE, describe, sync=True)


def _hashed(data: memoryview) -> FlatState | None:
    """The state of a block that is followed by the length of its header and its hash."""
    block, digest = data[: -_HASHED_BYTES - _HEADER.size], bytes(data[-64:]).decode()
    if hashlib.blake2b(block, digest_size=32).hexdigest() != digest:
        return None
    return _flat(data[:-_HASHED_BYTES])


def _flat(body: memoryview) -> FlatState:
    block, (header,) = body[: -_HEADER.size], _HEADER.unpack(body[-_HEADER.size :])
    said = read_header(block[len(block) - header :])
    return put_together(said.meta, [block[begin : begin + length] for begin, length in said.parts])


def _complete(parts: Path) -> bool:
    """Whether all files of a snapshot in parts are there and as long as they were."""
    try:
        sizes: dict[str, int] = json.loads((parts / _SIZES).read_text())
        return all((parts / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError):
        return False


def _trailer(crc: int) -> bytes:
    return _TRAILER + f"{crc:08x}".encode()
