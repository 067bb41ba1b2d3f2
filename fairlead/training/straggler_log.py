"""Measures how long a rank computes where ranks wait for each other within a pass; logs when it falls behind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from fairlead.training.channel import log
from fairlead.training.parallel.batch_balance import Balance, Window

_THREAD = Path("/proc/thread-self/schedstat")


def own_s() -> float:
    """Seconds in which this thread had a core or wanted one, without those in which it slept until others were ready.

    A core that is slow, shared or limited by a quota makes it larger; a late peer does not. Only differences count. On
    a GPU it covers the host's part only.
    """
    try:
        on_core_ns, queued_ns = _THREAD.read_text(encoding="ascii").split()[:2]
    except (OSError, ValueError):  # a kernel that does not count it
        return time.thread_time()
    return (int(on_core_ns) + int(queued_ns)) / 1e9


class StragglerWatch:
    """Records all ranks' compute times; logs once when this rank becomes a straggler."""

    def __init__(self, balance: Balance, rank: int) -> None:
        self._balance, self._rank, self._late = balance, rank, False

    def record_step(self, compute_s: Sequence[float]) -> Window | None:
        """Record a step with a full batch; returns the window of steps that it completes, if any."""
        window = self._balance.record_step(compute_s)
        if window is None:
            return None
        late = self._rank in window.stragglers
        if late and not self._late:
            others = [time_s for rank, time_s in enumerate(window.compute_s) if rank != self._rank and time_s > 0]
            own_ms, others_ms = window.compute_s[self._rank] * 1e3, median(others) * 1e3
            log(f"this worker is a straggler: {own_ms:.1f} ms per step (others {others_ms:.1f} ms)")
        self._late = late
        return window
