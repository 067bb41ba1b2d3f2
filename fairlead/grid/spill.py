"""Stores spilled blocks encrypted on disk: AES-GCM in pieces, each bound to its tenant, block and position."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fairlead.grid.errors import is_id

PIECE = 4 << 20
TAG = 16
_NONCE = struct.Struct(">8sI")


class DamagedSpill(Exception):
    """The stored block is truncated, changed, or not written by this platform."""


def derive(key: bytes, purpose: str) -> bytes:
    """Derive a key for one purpose from a tenant's key (HKDF)."""
    return HKDF(hashes.SHA256(), 32, salt=None, info=f"fairlead grid {purpose}".encode()).derive(key)


class Cipher:
    """Encrypts blocks of one tenant, each under a fresh nonce prefix."""

    def __init__(self, key: bytes, tenant: str) -> None:
        self._cipher = AESGCM(key)
        self._tenant = tenant.encode()

    def seal(self, block: str, data: memoryview) -> Iterator[bytes]:
        """Encrypt: yields the nonce prefix, then the pieces."""
        prefix = os.urandom(8)
        yield prefix
        for number, begin in enumerate(range(0, max(1, len(data)), PIECE)):
            piece = data[begin : begin + PIECE]
            bound = self._bound(block, number, last=begin + PIECE >= len(data))
            yield self._cipher.encrypt(_NONCE.pack(prefix, number), piece, bound)

    def open(self, block: str, nbytes: int, read: Callable[[int], bytes | memoryview]) -> Iterator[bytes]:
        """Decrypt ``nbytes`` of content piece by piece from ``read(length)``; raises DamagedSpill."""
        prefix = bytes(read(8))
        for number, begin in enumerate(range(0, max(1, nbytes), PIECE)):
            length = min(PIECE, nbytes - begin)
            bound = self._bound(block, number, last=begin + PIECE >= nbytes)
            try:
                yield self._cipher.decrypt(_NONCE.pack(prefix, number), read(length + TAG), bound)
            except (InvalidTag, ValueError):
                raise DamagedSpill(f"block {block} was changed on disk") from None

    def unseal(self, block: str, sealed: memoryview) -> Any:
        """Decrypt a whole block into private memory; raises DamagedSpill."""
        nbytes = plain_bytes(len(sealed))
        plain = (ctypes.c_char * nbytes)()
        into, place, taken = memoryview(plain).cast("B"), 0, 0

        def read(length: int) -> memoryview:
            nonlocal taken
            taken += length
            return sealed[taken - length : taken]

        for piece in self.open(block, nbytes, read):
            into[place : place + len(piece)] = piece
            place += len(piece)
        return plain

    def _bound(self, block: str, number: int, *, last: bool) -> bytes:
        return b"\0".join((self._tenant, block.encode(), str(number).encode(), b"last" if last else b""))


def sealed_bytes(nbytes: int) -> int:
    """Length of the encrypted form of this many bytes."""
    return 8 + nbytes + TAG * max(1, -(-nbytes // PIECE))


def plain_bytes(nbytes: int) -> int:
    """Length of the content of this many encrypted bytes."""
    pieces = max(1, -(-(nbytes - 8) // (PIECE + TAG)))
    return nbytes - 8 - TAG * pieces


class Disk:
    """The folder of one tenant's spilled blocks on one node."""

    def __init__(self, folder: Path, cipher: Cipher) -> None:
        self._folder, self._cipher = folder, cipher

    def write(self, block: str, data: memoryview) -> None:
        """Write the block atomically."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = self._path(block).with_suffix(".part")
        try:
            with part.open("wb") as file:
                for piece in self._cipher.seal(block, data):
                    file.write(piece)
            part.rename(self._path(block))
        except OSError:
            part.unlink(missing_ok=True)
            raise

    def read(self, block: str, into: memoryview) -> None:
        """Read a block into memory; raises DamagedSpill or OSError."""
        place = 0
        with self._path(block).open("rb") as file:
            for piece in self._cipher.open(block, len(into), file.read):
                into[place : place + len(piece)] = piece
                place += len(piece)
        if place != len(into):
            raise DamagedSpill(f"block {block} is truncated on disk")

    def drop(self, block: str) -> None:
        self._path(block).unlink(missing_ok=True)

    def _path(self, block: str) -> Path:
        """Path of the block's file; raises ValueError for anything but a block id, which could lead elsewhere."""
        if not is_id(block):
            raise ValueError(f"{block[:40]!r} is not a block id")
        return self._folder / block
