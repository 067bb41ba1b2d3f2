"""Keeps a file that reserves disk space for the store, and frees it when the disk is full."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from sqlalchemy.exc import DBAPIError

from fairlead.units import shown_size

RESERVE_BYTES = 32 << 20
_RETRY_S = 10.0

log = structlog.get_logger()


def is_full(error: BaseException) -> bool:
    """True if SQLite reported a full disk."""
    cause = error.orig if isinstance(error, DBAPIError) else None
    return isinstance(cause, sqlite3.Error) and getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL


class Reserve:
    """The leader's reserve file, used by its writer thread only."""

    def __init__(
        self, path: Path, size_bytes: int = RESERVE_BYTES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path, self._size_bytes, self._clock = path, size_bytes, clock
        self._tried_s: float | None = None
        self.held = False

    def keep(self) -> None:
        """Create the file if it is missing and the disk has twice its size free; retries every ten seconds."""
        now_s = self._clock()
        if self.held or (self._tried_s is not None and now_s - self._tried_s < _RETRY_S):
            return
        self._tried_s = now_s
        try:
            self.held = self._take()
        except OSError as error:
            log.warning("cannot reserve disk space for the store", error=str(error))
            self._remove()

    def _take(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_blocks * 512 >= self._size_bytes:  # left by an earlier leader
                return True
        found = os.statvfs(self._path.parent)
        if found.f_bavail * found.f_frsize < 2 * self._size_bytes:
            return False
        descriptor = os.open(self._path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._size_bytes)
        finally:
            os.close(descriptor)
        return True

    def give_up(self) -> bool:
        """Free the reserved space for the store; False if it is used up already."""
        if not self.held:
            return False
        self._remove()
        log.error("the disk is full: the store uses its reserved space; free some space or lower the disk quotas",
                  reserve=shown_size(self._size_bytes), fix="fairlead tenant update NAME --disk SIZE")  # fmt: skip
        return True

    def drop(self) -> None:
        """Remove the file: this process does not lead any more."""
        if self.held:
            self._remove()

    def _remove(self) -> None:
        self.held, self._tried_s = False, self._clock()
        self._path.unlink(missing_ok=True)
