"""Packs a job's code into an archive named by its hash; equal folders give equal hashes on every machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fairlead.errors import InvalidSpec, NotFound, TooLarge
from fairlead.home import default_home
from fairlead.sdk import ignore_files
from fairlead.sdk.ignore_files import IGNORE_FILE

LIMIT_BYTES = 50_000_000
IGNORED = (
    ".git/", ".hg/", ".svn/", ".venv/", "venv/", "node_modules/", ".fairlead/",
    "__pycache__/", "*.pyc", "*.pyo", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".hypothesis/",
    ".tox/", ".nox/", ".ipynb_checkpoints/", "*.egg-info/", ".DS_Store",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Bundle:
    """A packed folder. ``files`` are the packed names, in order."""

    digest: str  # sha256:...
    bytes: bytes
    files: tuple[str, ...]


def pack(
    folder: Path | None,
    extra: Mapping[str, bytes] | None = None,
    *,
    limit_bytes: int = LIMIT_BYTES,
    home: Path | None = None,
) -> Bundle:
    """Pack the folder (None: only ``extra``), without files ignored by .fairleadignore or by default.

    The limit applies to the size before compression, so that it does not depend on the content.
    """
    root = folder.absolute() if folder is not None else None
    paths = sorted(_walk(root, home or default_home())) if root is not None else []
    added = dict(extra or {})
    if root is not None:
        _check_size(root, paths, sum(map(len, added.values())), limit_bytes)
    archive = io.BytesIO()
    names: list[str] = []
    # No time and no name in the header: both would change the hash.
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=archive, compresslevel=6, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in paths:
            if root is not None and name not in added:
                _add(tar, root, name)
                names.append(name)
        for name in sorted(added):
            tar.addfile(_header(name, tarfile.REGTYPE, 0o644, len(added[name])), io.BytesIO(added[name]))
            names.append(name)
    data = archive.getvalue()
    return Bundle(f"sha256:{hashlib.sha256(data).hexdigest()}", data, tuple(names))


def _walk(root: Path, home: Path) -> Iterator[str]:
    if root.exists() and not root.is_dir():
        raise InvalidSpec(f"{root} is a file", field="folder", value=str(root), fix="name the folder that contains it")
    if not root.is_dir():
        raise NotFound(f"folder {root} does not exist", field="folder", fix="name the folder with the code")
    pending: list[tuple[PurePosixPath, ignore_files.Rules]] = [(PurePosixPath(), ())]
    while pending:
        inside, rules = pending.pop()
        rules += ignore_files.rules(root, inside, IGNORED if inside == PurePosixPath() else ())
        try:
            entries = list(os.scandir(root / inside))
        except OSError as error:
            raise _unreadable(str(inside), error) from None
        for entry in entries:
            name = inside / entry.name
            folder = entry.is_dir(follow_symlinks=False)
            if ignore_files.is_ignored(name, folder, rules) or (entry.is_dir() and _foreign(Path(entry.path), home)):
                continue
            yield name.as_posix()
            if folder:
                pending.append((name, rules))


def _foreign(folder: Path, home: Path) -> bool:
    """True for a virtual environment of any name and for the platform's home, also through a link."""
    return (folder / "pyvenv.cfg").exists() or folder.resolve() == home.resolve()


def _check_size(root: Path, names: list[str], added_bytes: int, limit_bytes: int) -> None:
    sizes: dict[str, int] = {}
    for name in names:
        status = (root / name).lstat()
        if stat.S_ISREG(status.st_mode):
            sizes[name] = status.st_size
    total = sum(sizes.values()) + added_bytes
    if total <= limit_bytes:
        return
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    listed = ", ".join(f"{name} ({_megabytes(sizes[name])})" for name in largest)
    raise TooLarge(
        f"{root.name}: {_megabytes(total)} in {len(sizes)} files exceeds the limit of {_megabytes(limit_bytes)} "
        f"for a bundle; largest: {listed}",
        field="folder",
        fix=f"exclude files that the job does not need in {IGNORE_FILE}, or choose a smaller folder with --folder",
    )


def _add(tar: tarfile.TarFile, root: Path, name: str) -> None:
    path = root / name
    status = path.lstat()
    try:
        if stat.S_ISLNK(status.st_mode):
            header = _header(name, tarfile.SYMTYPE, 0o777)
            header.linkname = _target(root, path, name)
            tar.addfile(header)
        elif stat.S_ISDIR(status.st_mode):
            tar.addfile(_header(name, tarfile.DIRTYPE, 0o755))
        elif stat.S_ISREG(status.st_mode):
            data = path.read_bytes()
            mode = 0o755 if status.st_mode & 0o111 else 0o644
            tar.addfile(_header(name, tarfile.REGTYPE, mode, len(data)), io.BytesIO(data))
        else:
            raise InvalidSpec("is neither a file nor a folder", field=name, fix=f"exclude it in {IGNORE_FILE}")
    except OSError as error:
        raise _unreadable(name, error) from None


def _header(name: str, kind: bytes, mode: int, size: int = 0) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)  # owner 0, time 0: independent of the packing machine
    header.type, header.mode, header.size = kind, mode, size
    return header


def _target(root: Path, link: Path, name: str) -> str:
    """The relative target of a link. Links out of the folder are refused: they would open other files."""
    inside = root.resolve()
    reached = link.resolve()
    if not reached.is_relative_to(inside):
        raise InvalidSpec(
            f"is a link to {link.readlink()}, outside of the folder",
            field=name,
            fix=f"copy its target into the folder, or exclude the link in {IGNORE_FILE}",
        )
    return os.path.relpath(reached, link.parent.resolve())


def _unreadable(name: str, error: OSError) -> InvalidSpec:
    return InvalidSpec(
        f"cannot be packed: {error.strerror or error}",
        field=name,
        fix=f"make it readable, or exclude it in {IGNORE_FILE}",
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
