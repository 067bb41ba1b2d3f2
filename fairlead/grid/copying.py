"""Copies between buffers with all cores of a worker: one alone does not use up the bandwidth of the memory."""

from __future__ import annotations

import os
import threading

_LARGE = 1 << 20
_SHARED = 16 << 20  # from here on a thread more is worth its start
_MOST_THREADS = 4
_PAGE = 4096


def copy(to: memoryview, view: memoryview) -> None:
    """One buffer into another of its length; what is large without holding up the other threads of this process."""
    if len(view) < _LARGE:
        to[:] = view
        return
    import numpy as np

    target, source = np.frombuffer(to, np.uint8), np.frombuffer(view, np.uint8)
    threads = cores() if len(view) >= _SHARED else 1
    step = -(-len(view) // threads // _PAGE) * _PAGE
    pieces = [slice(begin, begin + step) for begin in range(0, len(view), step)]
    # Threads of a pool would not be there in a forked child.
    helpers = [threading.Thread(target=np.copyto, args=(target[at], source[at]), daemon=True) for at in pieces[1:]]
    for helper in helpers:
        helper.start()
    try:
        np.copyto(target[pieces[0]], source[pieces[0]])
    finally:  # whoever is interrupted may give the room away
        for helper in helpers:
            helper.join()


def cores() -> int:
    """As many as this worker was granted: threads beyond that would wait for each other."""
    granted = os.environ.get("OMP_NUM_THREADS", "")
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(int(granted) if granted.isdigit() else there, there, _MOST_THREADS))
