"""Rotates a log file that is the stderr of several processes, including output that bypasses the logger."""

from __future__ import annotations

import fcntl
import logging
import os
import sys
from pathlib import Path

LIMIT_BYTES = 16 * 1024 * 1024
KEPT = 3  # older parts, as name.log.1 (the newest) to name.log.3


def roll_over(path: Path, limit_bytes: int, kept: int = KEPT) -> None:
    """Rotate the file behind standard error when it is large; follow when another process has rotated it.

    Redirects stdout and stderr to the new file. A process that may not rename it (in a sandbox) keeps writing.
    """
    try:
        mine = os.fstat(2)
        with path.open("rb") as lock:
            there = os.fstat(lock.fileno())
            moved = (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino)
            if not moved and mine.st_size < limit_bytes:
                return
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not moved and path.stat().st_ino == mine.st_ino:
                _put_aside(path, kept)
        _go_on_in(path)
    except OSError:
        return


def _put_aside(path: Path, kept: int) -> None:
    for number in range(kept - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    path.replace(path.with_name(f"{path.name}.1"))


def _go_on_in(path: Path) -> None:
    fresh = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for descriptor in (1, 2):
        os.dup2(fresh, descriptor)
    os.close(fresh)


class StandardError(logging.Handler):
    """Writes lines to the current standard error and rotates the file behind it."""

    def __init__(self, path: Path | None, limit_bytes: int = LIMIT_BYTES) -> None:
        super().__init__()
        self._path = path
        self._limit_bytes = limit_bytes
        self._process = os.getpid()  # a forked child has its own output and rotates nothing

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
            if self._path is not None and self._process == os.getpid():
                roll_over(self._path, self._limit_bytes)
            sys.stderr.write(line)
            sys.stderr.flush()
        except (OSError, ValueError):  # a full disk or closed pipe must not fail the caller
            return
