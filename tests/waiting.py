"""Waiting in tests: for a condition, never for a time, and without keeping busy whom one waits for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FIRST_S = 0.02
EVERY_S = 0.2
"""Asking costs the platform, this process and two cores that others share: what takes long is asked seldom."""


def until(condition: Callable[[], T], timeout_s: float = 60.0, what: str = "it", every_s: float = EVERY_S) -> T:
    """The first value of the condition that is true."""
    deadline, pause_s = time.monotonic() + timeout_s, min(FIRST_S, every_s)
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}")
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.3, every_s)
    return found
