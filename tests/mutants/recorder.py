"""Writes down which functions of a room each process calls. Copied into a tree's package, with LOG, TURN and COUNT set.

Every function of the room begins with `_hit(its number)`. The first hit of a function in a process and test appends
one line to a file that all processes share: `turn <blank> number`. TURN is a file that holds the number of the test
that runs now; all processes have it mapped.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable

LOG, TURN, COUNT = "", "", 0


def _nothing(number: int) -> None:
    """Where the files cannot be opened: inside a sandbox."""


def _hitting() -> Callable[[int], None]:
    try:
        opened, turns = os.open(LOG, os.O_WRONLY | os.O_APPEND), os.open(TURN, os.O_RDONLY)
    except OSError:
        return _nothing
    log = os.dup2(opened, 979, inheritable=False)
    turn = memoryview(mmap.mmap(turns, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ)).cast("I")
    os.close(opened)
    os.close(turns)
    seen = [0] * COUNT

    def note(number: int) -> None:
        now = turn[0]
        if seen[number] != now:
            seen[number] = now
            try:
                os.write(log, b"%d %d\n" % (now, number))
            except OSError:  # this process has closed it
                seen[:] = [-1] * COUNT

    return note


hit = _hitting()
