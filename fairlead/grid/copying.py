"""Copies large buffers with several threads: one core cannot saturate the memory bandwidth."""

from __future__ import annotations

import os
import threading

_LARGE = 1 << 20
_SHARED = 16 << 20  # from this size on several threads are faster
_MOST_THREADS = 4
_PAGE = 4096


def copy(to: memoryview, view: memoryview) -> None:
    """Copy a buffer into another of equal length; large ones without holding the GIL."""
    if len(view) < _LARGE:
        to[:] = view
        return
    import numpy as np

    target, source = np.frombuffer(to, np.uint8), np.frombuffer(view, np.uint8)
    threads = cores() if len(view) >= _SHARED else 1
    step = -(-len(view) // threads // _PAGE) * _PAGE
    pieces = [slice(begin, begin + step) for begin in range(0, len(view), step)]
    # No pool: its threads would not exist in a forked child.
    helpers = [threading.Thread(target=np.copyto, args=(target[at], source[at]), daemon=True) for at in pieces[1:]]
    for helper in helpers:
        helper.start()
    try:
        np.copyto(target[pieces[0]], source[pieces[0]])
    finally:  # an interrupted caller may free the target
        for helper in helpers:
            helper.join()


def cores() -> int:
    """Cores granted to this worker, at most 4."""
    granted = os.environ.get("OMP_NUM_THREADS", "")
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(int(granted) if granted.isdigit() else there, there, _MOST_THREADS))
