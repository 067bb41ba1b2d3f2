"""The files of a home that a backup holds, opened so that nothing a tenant planted leads anywhere else."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from fairlead.control.keeping.archive import Writer
from fairlead.home import Home

SNAPSHOTS = ("snapshots",)
RESULTS = ("output", "logs")
"""Of a job's folder. Code is unpacked again from its bundle; its home, its temporary files and its meeting points
are good for one run only."""

_GONE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ESTALE)


@dataclass(slots=True)
class Sizes:
    """What there is to copy."""

    files: int = 0
    size_bytes: int = 0


def job_folders(home: Home, jobs: Collection[str] | None, parts: Collection[str]) -> Iterator[tuple[str, Path]]:
    """Name in the archive and place on disk of these parts of these jobs' folders (None: of all)."""
    names = sorted(os.listdir(home.jobs)) if home.jobs.is_dir() else []  # noqa: PTH208 (names are all that is needed)
    for job in names:
        if jobs is None or job in jobs:
            yield from ((f"jobs/{job}/{part}", home.jobs / job / part) for part in parts)


def measure(folder: Path) -> Sizes:
    """How much lies in a folder; a guess for the progress bar, as it may change at any moment."""
    found = Sizes()
    for _, _, names, folder_fd in _walk(folder):
        for name in names:
            try:
                seen = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            except OSError:
                continue
            found.files += 1
            found.size_bytes += seen.st_size if stat.S_ISREG(seen.st_mode) else 0
    return found


def copy(writer: Writer, prefix: str, folder: Path) -> Sizes:
    """Put a folder into the archive: regular files and links. What vanishes meanwhile was not to be kept."""
    done = Sizes()
    for place, _, names, folder_fd in _walk(folder):
        within = place.removeprefix(str(folder)).strip("/")
        for name in sorted(names):
            if name.startswith(".") and name.endswith((".tmp", ".part")):  # being written: its name says so
                continue
            path = "/".join(part for part in (prefix, within, name) if part)
            try:
                done.size_bytes += _copy_one(writer, path, name, folder_fd)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
            else:
                done.files += 1
    return done


def _copy_one(writer: Writer, path: str, name: str, folder_fd: int) -> int:
    seen = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    if stat.S_ISLNK(seen.st_mode):
        writer.link(path, os.readlink(name, dir_fd=folder_fd))
        return 0
    if not stat.S_ISREG(seen.st_mode):  # sockets and pipes hold nothing
        return 0
    # Opened without following and without waiting: the tenant may have put a link or a pipe there since.
    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    with os.fdopen(opened, "rb") as file:
        held = os.fstat(opened)
        if not stat.S_ISREG(held.st_mode):
            return 0
        writer.copy(path, file, held.st_size, held.st_mode, held.st_mtime)
        return held.st_size


def _walk(folder: Path) -> Iterator[tuple[str, list[str], list[str], int]]:
    """Like ``os.fwalk``, with links among the files; nothing when the folder is gone or is a link itself."""
    try:
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _GONE:
            return
        raise
    try:
        for place, folders, names, folder_fd in os.fwalk(".", dir_fd=top, follow_symlinks=False):
            links = [name for name in folders if _is_link(name, folder_fd)]
            within = "" if place == "." else place.removeprefix("./")
            yield str(folder / within), folders, [*names, *links], folder_fd
    finally:
        os.close(top)


def _is_link(name: str, folder_fd: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder_fd, follow_symlinks=False).st_mode)
    except OSError:
        return False
