"""A new tree of files, built and given away by open folders alone: no name in it is ever followed anywhere else."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Self

from fairlead.control.backup.archive import damaged_backup

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_IN_THE_WAY = (errno.EEXIST, errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.ENAMETOOLONG)


class Tree:
    """A folder of our own that is being filled; places in it are relative, and made folder by folder."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, FOLDER)
        self._last: tuple[tuple[str, ...], int] | None = None  # members come folder by folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._forget()
        os.close(self._root)

    def file(self, place: PurePosixPath) -> int:
        """A new file, open for writing. What has its name already, or a link on the way, is damage."""
        with _damage_for(place):
            return os.open(place.name, _NEW_FILE, 0o600, dir_fd=self._folder(place.parts[:-1]))

    def link(self, place: PurePosixPath, target: str) -> None:
        """A new symbolic link, wherever it leads: nothing here ever goes there."""
        with _damage_for(place):
            os.symlink(target, place.name, dir_fd=self._folder(place.parts[:-1]))

    def _folder(self, parts: tuple[str, ...]) -> int:
        if self._last is not None and self._last[0] == parts:
            return self._last[1]
        self._forget()
        here = os.dup(self._root)
        try:
            for part in parts:
                below = _subfolder(here, part)
                os.close(here)
                here = below
        except BaseException:
            os.close(here)
            raise
        self._last = (parts, here)
        return here

    def _forget(self) -> None:
        if self._last is not None:
            os.close(self._last[1])
            self._last = None


def _subfolder(folder: int, name: str) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=folder)
    return os.open(name, FOLDER, dir_fd=folder)


@contextmanager
def _damage_for(place: PurePosixPath) -> Iterator[None]:
    """Names that are taken, lead elsewhere or can be none are the archive's fault."""
    try:
        yield
    except ValueError as error:  # a zero byte
        raise damaged_backup(f"{str(place)!r} is no name of a file") from error
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        raise damaged_backup(f"{str(place)!r} cannot be where something else is: {error.strerror}") from error


@contextmanager
def open_folder(name: str | Path, folder: int | None = None) -> Iterator[int]:
    """A folder, open; raises ``OSError`` when it is a link or no folder."""
    found = os.open(name, FOLDER, dir_fd=folder)
    try:
        yield found
    finally:
        os.close(found)


def names_in(folder: int) -> list[str]:
    """What an open folder holds."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def change_owner(folder: int, uid: int) -> None:
    """Give everything in an open folder, and the folder, to a user. Files with a second name are left as they are."""
    for _, folders, names, here in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
        for name in (*folders, *names):  # a link to a folder is among the folders, and not walked
            _change_owner_of(name, here, uid)
        os.fchown(here, uid, uid)


def _change_owner_of(name: str, folder: int, uid: int) -> None:
    try:
        held = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        os.chown(name, uid, uid, dir_fd=folder, follow_symlinks=False)
        return
    try:
        seen = os.fstat(held)
        if stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1:
            os.fchown(held, uid, uid)
    finally:
        os.close(held)
