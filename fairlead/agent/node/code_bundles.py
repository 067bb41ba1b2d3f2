"""Unpacks a job's code bundle, as the tenant's user: once per job, never outside the job's folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import tarfile
from pathlib import Path
from typing import BinaryIO

from fairlead.agent.node import disk_usage

MOST_BYTES = 4 << 30
MOST_FILES = 100_000
_DONE = ".fairlead-unpacked"


class BadBundle(Exception):
    """The bundle is damaged, too large, or reaches outside its folder; a retry cannot help."""


def unpack(bundle: BinaryIO, folder: Path, most_bytes: int = MOST_BYTES) -> None:
    """Unpack the bundle into the folder, unless another worker of the job has; concurrent workers wait."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / _DONE).exists():
            return
        _clear(folder)  # left incomplete by a killed worker
        _extract(bundle, folder, most_bytes)
        (folder / _DONE).touch()
    finally:
        os.close(lock)


def _clear(folder: Path) -> None:
    for entry in list(folder.iterdir()):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _extract(bundle: BinaryIO, folder: Path, most_bytes: int) -> None:
    size = files = 0
    try:
        with tarfile.open(fileobj=bundle, mode="r:*") as archive:
            for member in archive:
                size, files = size + member.size, files + 1
                if size > most_bytes or files > MOST_FILES:
                    raise BadBundle(f"the code bundle unpacks to more than {most_bytes} bytes or {MOST_FILES} files")
                if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
                    raise BadBundle(f"the code bundle contains {member.name!r}, which is neither file, folder nor link")
                archive.extract(member, folder, filter="data")
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and disk_usage.is_full(error):
            raise
        raise BadBundle(f"the code bundle cannot be unpacked: {error}") from None
