"""The backup file: a tar whose first member describes it and whose last member holds all checksums.

It is written under a temporary name, synced and renamed: a file with the final name is complete.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import hashlib
import io
import json
import os
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from fairlead.control.backup import sparse_files
from fairlead.errors import Conflict, InvalidSpec, NotFound, Refused

FORMAT = 1
HEADER, CHECKSUMS = "fairlead-backup.json", "checksums.json"
PIECE_BYTES = 1 << 20
_HEADER_TYPES: dict[str, Any] = {"schema": str, "version": str, "taken_s": int | float, "bytes": int}  # of a header
_KINDS = {".tar": "", ".tar.gz": "gz", ".tgz": "gz", ".tar.zst": "zst"}

OnBytes = Callable[[int], None]
"""Called with the number of bytes just processed."""


def compression_of(path: Path) -> str:
    """The compression that the file name asks for."""
    for ending, kind in _KINDS.items():
        if path.name.endswith(ending) and path.name != ending:
            return kind
    raise InvalidSpec(f"{path.name!r} does not end in a known format", field="FILE", value=str(path),
                      fix="end it in .tar.zst, .tar.gz or .tar")  # fmt: skip


class Writer:
    """Adds members to a new archive, one after the other."""

    def __init__(self, out: IO[bytes], moved: OnBytes) -> None:
        self._tar = tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115 (closed by finish)
        self._moved = moved
        self._checksums: dict[str, str] = {}

    def add(self, name: str, data: bytes, mode: int = 0o600) -> None:
        """Add a small member."""
        self.copy(name, io.BytesIO(data), len(data), mode)

    def copy(
        self, name: str, source: IO[bytes], size: int, mode: int = 0o600, time_s: float | None = None,
        parts: sparse_files.Extents | None = None,
    ) -> None:  # fmt: skip
        """Add a member of exactly ``size`` bytes: a file that grows meanwhile is cut, one that shrinks is zero-filled.

        Of a sparse file only the parts that hold data are stored.
        """
        member = tarfile.TarInfo(name)
        if parts is not None:
            member.pax_headers = {sparse_files.HEADER: sparse_files.format_extents(parts, size)}
            source, size = cast(IO[bytes], sparse_files.ExtentReader(source, parts)), sum(length for _, length in parts)
        member.size, member.mode, member.mtime = size, mode & 0o777, time.time() if time_s is None else time_s
        passing = _CountingReader(source, size, self._moved, _digest(member))
        self._tar.addfile(member, cast(IO[bytes], passing))
        self._checksums[name] = passing.digest.hexdigest()

    def link(self, name: str, target: str) -> None:
        """Add a symbolic link as it is."""
        member = tarfile.TarInfo(name)
        member.type, member.linkname = tarfile.SYMTYPE, target
        self._tar.addfile(member)
        self._checksums[name] = hashlib.sha256(os.fsencode(target)).hexdigest()

    def finish(self) -> None:
        """Write the checksums and close the archive."""
        data = json.dumps(self._checksums, indent=0).encode()
        member = tarfile.TarInfo(CHECKSUMS)
        member.size, member.mode, member.mtime = len(data), 0o600, time.time()
        self._tar.addfile(member, io.BytesIO(data))
        self._tar.close()


class _CountingReader:
    """A source on its way into the archive: counted, checksummed, and cut or filled to the announced size."""

    def __init__(self, source: IO[bytes], size: int, moved: OnBytes, digest: hashlib._Hash) -> None:
        self._source, self._left, self._moved = source, size, moved
        self.digest = digest

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._source.read(wanted)
        data += bytes(wanted - len(data))
        self._left -= wanted
        self.digest.update(data)
        self._moved(wanted)
        return data


@contextlib.contextmanager
def create(path: Path, *, force: bool, moved: OnBytes) -> Iterator[Writer]:
    """A new archive; the file appears only if the block succeeds."""
    kind = compression_of(path)
    if path.exists() and not force:
        raise Conflict(f"{path} is there already", field="FILE", value=str(path),
                       fix="choose another name, or replace it with --force")  # fmt: skip
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            with _compressed(file, kind) as out:
                writer = Writer(out, moved)
                yield writer
                writer.finish()
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        own = error.filename in (None, str(beside), str(path))
        what, fix = ("written", "make room, or choose another place") if own else ("made", "see to that, and try again")
        raise Refused(f"{path} cannot be {what}: {error if not own else error.strerror or error}", field="FILE",
                      value=str(path), fix=fix) from error  # fmt: skip
    finally:
        beside.unlink(missing_ok=True)


@contextlib.contextmanager
def _compressed(file: IO[bytes], kind: str) -> Iterator[IO[bytes]]:
    if kind == "gz":
        with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=5) as out:
            yield cast(IO[bytes], out)
    elif kind == "zst":
        import zstandard

        with zstandard.ZstdCompressor(level=3, write_checksum=True).stream_writer(file, closefd=False) as out:
            yield cast(IO[bytes], out)
    else:
        yield file


class Reader:
    """Reads the members in order and verifies all checksums at the end."""

    def __init__(self, tar: tarfile.TarFile, moved: OnBytes) -> None:
        self._tar, self._moved = tar, moved
        self._seen: dict[str, str] = {}
        self.header: dict[str, Any] = self._header()

    def _header(self) -> dict[str, Any]:
        member = self._tar.next()
        data = self._tar.extractfile(member) if member is not None and member.name == HEADER else None
        if data is None or member is None or member.size > PIECE_BYTES:
            raise damaged_backup("it is not a Fairlead backup")
        text = data.read()
        self._seen[HEADER] = hashlib.sha256(text).hexdigest()
        header = load_json(text, "its header")
        found = header.get("format") if isinstance(header, dict) else None
        if found != FORMAT:
            why = f"the backup has format {found}, and this Fairlead reads {FORMAT}"
            raise Refused(why, field="FILE", value=found, fix="restore it with a newer Fairlead")
        if not all(isinstance(header.get(name), kind) for name, kind in _HEADER_TYPES.items()) or not _plausible(
            header
        ):
            raise damaged_backup("its header is invalid")
        return cast(dict[str, Any], header)

    def members(self) -> Iterator[tuple[tarfile.TarInfo, Callable[[Callable[[bytes], object]], None]]]:
        """Each member with a function that writes its bytes to a sink.

        Raises after the last one if a checksum is wrong.
        """
        promised: dict[str, str] | None = None
        while (member := self._tar.next()) is not None:
            _check_name(member)
            if member.name == CHECKSUMS:
                pieces: list[bytes] = []
                self._pour(member, pieces.append)
                promised = load_json(b"".join(pieces), "its checksums")
                if not isinstance(promised, dict):
                    raise damaged_backup("its checksums are invalid")
                del self._seen[CHECKSUMS]
                continue
            if member.issym():
                self._seen[member.name] = hashlib.sha256(os.fsencode(member.linkname)).hexdigest()
            yield member, lambda sink, member=member: self._pour(member, sink)  # type: ignore[misc]
        if promised is None:
            raise damaged_backup("it is cut off")
        wrong = sorted({name for name in {*promised, *self._seen} if promised.get(name) != self._seen.get(name)})
        if wrong:
            raise damaged_backup(
                f"the checksum of {wrong[0]} is wrong" + (f", and {len(wrong) - 1} more" * (len(wrong) > 1))
            )

    def _pour(self, member: tarfile.TarInfo, sink: Callable[[bytes], object]) -> None:
        data = self._tar.extractfile(member)
        digest = _digest(member)
        while data is not None and (piece := data.read(PIECE_BYTES)):
            digest.update(piece)
            sink(piece)
            self._moved(len(piece))
        self._seen[member.name] = digest.hexdigest()


@contextlib.contextmanager
def read(path: Path, moved: OnBytes) -> Iterator[Reader]:
    """Open an archive for reading. Any fault of the file becomes a one-line error."""
    kind = compression_of(path)
    try:
        with path.open("rb") as file, _decompressed(file, kind) as data, tarfile.open(fileobj=data, mode="r|") as tar:
            yield Reader(tar, moved)
    except FileNotFoundError as error:
        if error.filename not in (str(path), path):
            raise
        raise NotFound(f"there is no file {path}", field="FILE", value=str(path), fix="name a backup") from None
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, UnicodeError) as error:
        raise damaged_backup(str(error) or type(error).__name__) from error


@contextlib.contextmanager
def _decompressed(file: IO[bytes], kind: str) -> Iterator[IO[bytes]]:
    if kind == "gz":
        with gzip.GzipFile(fileobj=file, mode="rb") as data:
            yield cast(IO[bytes], data)
    elif kind == "zst":
        import zstandard

        try:
            with zstandard.ZstdDecompressor().stream_reader(file, closefd=False) as stream:
                yield cast(IO[bytes], io.BufferedReader(cast(Any, stream), PIECE_BYTES))
        except zstandard.ZstdError as error:
            raise damaged_backup(str(error)) from error
    else:
        yield file


def _digest(member: tarfile.TarInfo) -> hashlib._Hash:
    """The start of a member's checksum: it covers the extents of a sparse file."""
    return hashlib.sha256(member.pax_headers.get(sparse_files.HEADER, "").encode())


def _check_name(member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)  # normalises: a name that this changes would be a second name of another member
    plain = member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) and not member.issparse()
    whole = str(path) == member.name and path.parts and not path.is_absolute() and ".." not in path.parts
    if not whole or not (plain or member.issym()):
        raise damaged_backup(f"{member.name!r} does not belong in a backup")


def _plausible(header: dict[str, Any]) -> bool:
    """True if the header's time and size are in range."""
    return bool(0 <= header["taken_s"] < 1e11 and 0 <= header["bytes"] < 1 << 62)


def load_json(text: bytes, what: str) -> Any:
    """Parse JSON from a backup, which is untrusted: unreadable or too deeply nested text counts as damage."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged_backup(f"{what} cannot be read: {error}") from None


def damaged_backup(why: str) -> Refused:
    fix = "use another backup; this one was damaged after it was written, or never finished"
    return Refused(f"the backup cannot be used: {why}", field="FILE", fix=fix)


def sync_folder(folder: Path) -> None:
    """Make the names in this folder survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_disk(folder: Path) -> None:
    """Make everything written below this folder survive a power failure, with one call for all files."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise OSError(ctypes.get_errno(), "cannot be synced", str(folder))
    finally:
        os.close(descriptor)
