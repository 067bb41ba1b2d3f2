"""Copies the files of a home into a backup, safely against links and pipes that tenants planted."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from fairlead.agent.node.disk_usage import DEEPEST
from fairlead.control.backup.archive import Writer
from fairlead.control.backup.sparse_files import extents
from fairlead.home import Home

SNAPSHOTS = ("snapshots",)
RESULTS = ("output", "logs")
"""Parts of a job's folder. The others are not needed: code comes from its bundle again; homes, temporary files and
rendezvous serve one run only."""

MAX_NAME_BYTES = 2048  # longest name in the archive: a longer one might not fit under another home
_GONE = (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ESTALE)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(slots=True)
class Sizes:
    """Number and size of files to copy."""

    files: int = 0
    size_bytes: int = 0
    left_out: int = 0  # names too long or folders too deep to be restored anywhere


def job_folders(home: Home, jobs: Collection[str] | None, parts: Collection[str]) -> Iterator[tuple[str, Path]]:
    """Archive name and path of these parts of these jobs' folders (None: of all jobs)."""
    names = sorted(os.listdir(home.jobs)) if home.jobs.is_dir() else []  # noqa: PTH208 (names are all that is needed)
    for job in names:
        if jobs is None or job in jobs:
            yield from ((f"jobs/{job}/{part}", home.jobs / job / part) for part in parts)


def measure(folder: Path) -> Sizes:
    """Size of a folder, an estimate for the progress bar."""
    found = Sizes()
    for _, names, folder_fd in _walk(folder, found):
        for name in names:
            try:
                seen = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            except OSError:
                continue
            found.files += 1
            found.size_bytes += min(seen.st_size, seen.st_blocks * 512) if stat.S_ISREG(seen.st_mode) else 0
    return found


def copy(writer: Writer, prefix: str, folder: Path) -> Sizes:
    """Copy a folder's regular files and links into the archive; files that vanish meanwhile are skipped."""
    done = Sizes()
    for within, names, folder_fd in _walk(folder, done):
        for name in names:
            if name.startswith(".") and name.endswith((".tmp", ".part")):  # a temporary name: still being written
                continue
            path = "/".join(part for part in (prefix, within, name) if part)
            if len(os.fsencode(path)) > MAX_NAME_BYTES:
                done.left_out += 1
                continue
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
    # Neither follows links nor blocks: the tenant may have put a link or a pipe there since.
    opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder_fd)
    with os.fdopen(opened, "rb") as file:
        held = os.fstat(opened)
        if not stat.S_ISREG(held.st_mode):
            return 0
        writer.copy(path, file, held.st_size, held.st_mode, held.st_mtime, extents(opened, held))
        return held.st_size


def _walk(
    folder: Path | str, sizes: Sizes, within: str = "", above: int | None = None
) -> Iterator[tuple[str, list[str], int]]:
    """Each folder's relative path, the names of its non-folders and its descriptor; follows no link.

    Tenants may change it meanwhile and nest it as deep as they like: folders too deep count as left out.
    """
    try:
        folder_fd = os.open(folder, _FOLDER, dir_fd=above)
    except OSError as error:
        if error.errno in _GONE:
            return
        raise
    try:
        with os.scandir(folder_fd) as entries:
            found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        yield within, [name for name, is_folder in found if not is_folder], folder_fd
        for name in (name for name, is_folder in found if is_folder):
            if within.count("/") + 2 < DEEPEST:
                yield from _walk(name, sizes, f"{within}/{name}".lstrip("/"), folder_fd)
            else:
                sizes.left_out += 1
    finally:
        os.close(folder_fd)
