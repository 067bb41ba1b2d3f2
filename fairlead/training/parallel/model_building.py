"""The time before the first step of a spread model: ranks trace and cut it, each at its own pace, and nobody gives up.

A rank may take minutes over that on a busy machine. Collectives would have lost their patience with it by then, and the
node manager would think that it hangs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from fairlead import wire
from fairlead.training.control_messages import ControlConnection
from fairlead.training.group import Group

EVERY_S = 2.0
"""Between two signs of life."""

PATIENCE = 10.0
"""Times what a silent peer is waited for otherwise. After that no sign of life is given either."""


@contextmanager
def building(group: Group, line: ControlConnection, place: wire.Progress) -> Iterator[None]:
    """Around what each rank does for itself: begun together, with signs of life, and done when all are done."""
    longest_s = PATIENCE * group.silence_s
    group.wait_for_all("before", longest_s)
    done = threading.Event()
    telling = threading.Thread(target=_tell, args=(done, line, place, longest_s), name="fairlead-building", daemon=True)
    telling.start()
    try:
        yield
        group.wait_for_all("built", longest_s)
    finally:
        done.set()
        telling.join()


def _tell(done: threading.Event, line: ControlConnection, sign: msgspec.Struct, longest_s: float) -> None:
    until_s = time.monotonic() + longest_s
    while not done.wait(EVERY_S) and time.monotonic() < until_s:
        line.send(sign)
