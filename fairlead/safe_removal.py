"""Removes folders with untrusted content: follows no links, at any depth, in slices of time."""

from __future__ import annotations

import contextlib
import os
import stat
import time
import uuid
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEPEST = 32  # open folders at a time; deeper ones are moved up first
_AT_ONCE = 4096


class Removal:
    """The removal of one folder; call :meth:`continue_for` until it returns True."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._steps = _remove(path)

    def continue_for(self, for_s: float) -> bool:
        """Remove for this long; True when done. Raises ``OSError`` when it cannot be removed."""
        until_s = time.monotonic() + for_s
        for _ in self._steps:
            if time.monotonic() > until_s:
                return False
        return not os.path.lexists(self._path)


def remove(path: Path) -> None:
    """Remove the path if it exists; raises ``OSError`` when it cannot be removed."""
    for _ in _remove(path):
        pass


def _remove(path: Path) -> Iterator[None]:
    try:
        parent = os.open(path.parent, _FLAGS)
    except FileNotFoundError:
        return
    try:
        waiting = [path.name]
        while waiting:
            yield from _entry(parent, waiting.pop(), _Top(parent, waiting), 0)
    finally:
        os.close(parent)


class _Top(NamedTuple):
    """Where folders that lie too deep are moved, to be removed later, so that neither recursion nor open descriptors
    exceed their limits."""

    folder: int
    waiting: list[str]

    def bring(self, folder: int, name: str) -> None:
        self.waiting.append(f".removing-{uuid.uuid4().hex}")
        os.rename(name, self.waiting[-1], src_dir_fd=folder, dst_dir_fd=self.folder)


def _entry(folder: int, name: str, top: _Top, depth: int) -> Iterator[None]:
    """Remove an entry of the open folder; yields after each file and folder."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=folder)
        elif depth >= _DEEPEST:
            top.bring(folder, name)
        else:
            inner = _open(folder, name)
            try:
                while names := _some_names(inner):
                    for entry in names:
                        yield from _entry(inner, entry, top, depth + 1)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=folder)
    yield


def _some_names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in islice(entries, _AT_ONCE)]


def _open(folder: int, name: str) -> int:
    """Open a folder, making it accessible first if its owner removed its own permissions (without root)."""
    try:
        return os.open(name, _FLAGS, dir_fd=folder)
    except PermissionError:
        place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            Path(f"/proc/self/fd/{place}").chmod(0o700)
        finally:
            os.close(place)
        return os.open(name, _FLAGS, dir_fd=folder)
