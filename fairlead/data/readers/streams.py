"""Reads files as blocks of bytes and decompresses them, with limits on memory and expansion."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from isal import igzip
from isal.igzip_lib import IsalError

from fairlead.data.errors import BadData
from fairlead.data.options import MIB, Options

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"PK\x05\x06": "zip"}
_BROKEN: tuple[Any, ...] = (
    OSError, EOFError, zlib.error, IsalError, zipfile.BadZipFile, NotImplementedError, ValueError,
)  # fmt: skip


def compression_of(path: Path) -> str | None:
    """The compression of a file, by its first bytes, which are more reliable than its name."""
    with path.open("rb") as file:
        begin = file.read(6)
    return next((kind for magic, kind in _MAGIC.items() if begin.startswith(magic)), None)


def split_archive_path(path: Path) -> tuple[Path, str | None]:
    """A path, or an archive and its member for a path such as ``bank.zip/bank-full.csv``."""
    for parent in path.parents:
        if parent.is_file():
            return parent, path.relative_to(parent).as_posix()
    return path, None


def blocks(path: Path, options: Options) -> Iterator[bytes]:
    """The decompressed bytes of a file in blocks; of a plain file only those in the window."""
    archive, member = split_archive_path(path)
    kind = compression_of(archive)
    if kind is None:
        yield from _plain_blocks(archive, *options.window)
        return
    packed = max(1, archive.stat().st_size)
    unpacked = _zip_blocks(archive, member) if kind == "zip" else _decompressed_blocks(archive, kind)
    seen = 0
    while True:
        try:
            block = next(unpacked, b"")
        except _BROKEN as error:  # from the decompressor only, not from the consumer of the blocks
            what = f"cannot be decompressed as {kind}: {str(error) or 'it ends too early'}"
            raise BadData(path, what, fix="get the file again and compare its checksum") from error
        if not block:
            return
        seen += len(block)
        if seen > options.unpacked_free_bytes and seen > packed * options.expansion:
            what = f"{packed:,} bytes expand to more than {options.expansion:g} times as many: a decompression bomb?"
            raise BadData(path, what, fix="if it is genuine, read it with a higher expansion=")
        yield block


def _plain_blocks(path: Path, start: int, stop: int | None) -> Iterator[bytes]:
    left = (path.stat().st_size if stop is None else stop) - start  # lines appended meanwhile wait for the next read
    with path.open("rb") as file:
        file.seek(start)
        while block := file.read(max(0, min(MIB, left))):
            left -= len(block)
            yield block


def _decompressed_blocks(path: Path, kind: str) -> Iterator[bytes]:
    """These codecs verify checksums, detect truncation and refuse frames that need too much memory."""
    if kind == "gzip":  # three times as fast as zlib
        with igzip.IGzipFile(path, "rb") as stream:  # type: ignore[no-untyped-call]
            while block := stream.read(MIB):
                yield block
        return
    with pa.OSFile(str(path)) as file, pa.CompressedInputStream(file, kind) as stream:
        while block := stream.read(MIB):
            yield block


def _zip_blocks(path: Path, member: str | None) -> Iterator[bytes]:
    with ExitStack() as stack:
        inner = stack.enter_context(_open_member(stack, path, member))
        while block := inner.read(MIB):
            yield block


def _open_member(stack: ExitStack, path: Path, member: str | None) -> IO[bytes]:
    archive = stack.enter_context(zipfile.ZipFile(path))
    files = [info for info in archive.infolist() if not info.is_dir() and not info.filename.startswith("__MACOSX/")]
    chosen = [info for info in files if member is None or info.filename == member]
    if len(chosen) != 1:
        names = ", ".join(info.filename for info in files[:4]) + (", …" if len(files) > 4 else "")
        what = f"holds {len(files)} files ({names})" if member is None else f"holds no file {member!r} ({names})"
        example = files[0].filename if files else "NAME"
        raise BadData(path, what, fix=f"name one of them: {path}/{example}")
    if chosen[0].flag_bits & 1:
        raise BadData(path, f"{chosen[0].filename} is encrypted", fix="unpack it first")
    return archive.open(chosen[0])


def read_whole(path: Path, options: Options) -> bytes:
    """All bytes of a small file, decompressed; refuses one beyond the limit of a cell."""
    found = bytearray()
    for block in blocks(path, options):
        found += block
        if len(found) > options.row_bytes:
            raise BadData(path, f"is larger than {options.row_bytes:,} bytes", fix="read it with a higher cell_bytes=")
    return bytes(found)
