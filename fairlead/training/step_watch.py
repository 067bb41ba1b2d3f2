"""How long a rank itself computes where ranks wait for each other within a pass, and a word when it falls behind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from fairlead.training.channel import log
from fairlead.training.parallel.batch_balance import Balance, Window

_THREAD = Path("/proc/thread-self/schedstat")


def own_s() -> float:
    """Seconds in which this thread had a core or wanted one: not those in which it slept until others were ready.

    A core that is slow, shared or below a quota makes it more; a peer that is late does not. Only differences count.
    On a GPU it is what the host does for it, which says little of the GPU itself.
    """
    try:
        on_core_ns, queued_ns = _THREAD.read_text(encoding="ascii").split()[:2]
    except (OSError, ValueError):  # a kernel that does not count it
        return time.thread_time()
    return (int(on_core_ns) + int(queued_ns)) / 1e9


class StragglerWatch:
    """Takes down what all ranks computed for; when this one falls behind, its log says so, once."""

    def __init__(self, balance: Balance, rank: int) -> None:
        self._balance, self._rank, self._late = balance, rank, False

    def note(self, compute_s: Sequence[float]) -> Window | None:
        """One step with a full batch is done; the window that it completes, if it does."""
        window = self._balance.note(compute_s)
        if window is None:
            return None
        late = self._rank in window.stragglers
        if late and not self._late:
            log(f"this worker is late: {window.compute_s[self._rank]:.3g} s a step, far more than the others")
        self._late = late
        return window
