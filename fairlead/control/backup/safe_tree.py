"""Builds a new file tree through open folder descriptors only, so that no link in it is ever followed."""

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
    """A folder of ours that is being filled by relative paths."""

    def __init__(self, root: Path) -> None:
        self._root = os.open(root, FOLDER)
        self._last: tuple[tuple[str, ...], int] | None = None  # the last folder: members come in order

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._forget()
        os.close(self._root)

    def file(self, place: PurePosixPath) -> int:
        """A new file, open for writing. A taken name, or a link on the way, counts as damage."""
        with _damage_for(place):
            return os.open(place.name, _NEW_FILE, 0o600, dir_fd=self._folder(place.parts[:-1]))

    def link(self, place: PurePosixPath, target: str) -> None:
        """A new symbolic link; its target does not matter, as nothing here follows it."""
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
    """Turn errors of taken, escaping or invalid names into damage of the archive."""
    try:
        yield
    except ValueError as error:  # a zero byte
        raise damaged_backup(f"{str(place)!r} is not a valid file name") from error
    except OSError as error:
        if error.errno not in _IN_THE_WAY:
            raise
        raise damaged_backup(f"{str(place)!r} collides with another member: {error.strerror}") from error


@contextmanager
def open_folder(name: str | Path, folder: int | None = None) -> Iterator[int]:
    """A folder's descriptor; raises ``OSError`` when it is a link or not a folder."""
    found = os.open(name, FOLDER, dir_fd=folder)
    try:
        yield found
    finally:
        os.close(found)


def names_in(folder: int) -> list[str]:
    """The names in an open folder."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def change_owner(folder: int, uid: int) -> None:
    """Give an open folder and everything in it to a user, except files with several hard links."""
    for _, folders, names, here in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
        for name in (*folders, *names):  # links to folders are listed among the folders, and not walked
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
