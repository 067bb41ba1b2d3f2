"""Builds a split model on all ranks: each traces and cuts it at its own pace, and none gives up on a slow one.

A rank may take minutes on a busy machine. Collectives would time out by then, and the node manager would take the
worker for hung.
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
"""Interval of the signs of life."""

PATIENCE = 10.0
"""Times the silence that is allowed to a peer otherwise. After that the signs of life end, too."""


@contextmanager
def keep_alive_while_building(group: Group, line: ControlConnection, place: wire.Progress) -> Iterator[None]:
    """Around the building of one rank: all begin together, send signs of life, and end when all are done."""
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
