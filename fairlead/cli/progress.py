"""A progress bar on stderr that disappears when the work is done."""

from __future__ import annotations

import sys
import time

from fairlead.terminal import plain

WIDTH = 30
EVERY_S = 0.1


class Bar:
    """Finished jobs of all jobs, redrawn at most ten times a second."""

    def __init__(self, title: str) -> None:
        self._title = plain(title)
        self._next_s = 0.0

    def __call__(self, done: int, total: int, virtual_s: float) -> None:
        now_s = time.monotonic()
        if done >= total:
            sys.stderr.write("\r\x1b[K")
        elif now_s >= self._next_s:
            filled = WIDTH * done // max(1, total)
            sys.stderr.write(
                f"\r\x1b[K{self._title} [{'#' * filled}{'.' * (WIDTH - filled)}] {done}/{total} jobs, "
                f"day {virtual_s / 86400:.1f}"
            )
            self._next_s = now_s + EVERY_S
        sys.stderr.flush()
