"""How ranks that left a generation decide together: follow the next call, or resume the generation they left.

A control plane that dies between Leave and Join would leave the gang idle until it is back. So ranks that get no call
for a while resume their generation by themselves. The decision is one key in the generation's rendezvous store, written
once by compare-and-set: ``resume`` only after every rank has run out of patience, ``go`` by the first rank that follows
another call. The first write holds for all ranks, so a gang never splits between two generations. Ranks that the next
generation does not need take part in the decision, and exit after ``go``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

RESUME_AFTER_S = 2.0
"""How long a rank waits for the next call, which usually comes within 0.1 to 1 s."""

LONGEST_PATIENCE_S = 30.0
POLL_S = 0.05

_RESUME, _GO = "resume", "go"


class Store(Protocol):
    """The rendezvous store of the generation, as far as needed here; raises RuntimeError when it cannot be reached."""

    def set(self, key: str, value: str) -> None: ...
    def check(self, keys: list[str]) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...


def patience_s(resumed: int) -> float:
    """How long to wait for a call after a generation was resumed so often.

    It doubles each time, so that a control plane that is merely slow gets through in the end.
    """
    return float(min(LONGEST_PATIENCE_S, RESUME_AFTER_S * 2**resumed))


class Resumption:
    """One rank's view of the decision, from the moment at which it left the generation."""

    def __init__(
        self, store: Store | None, rank: int, size: int, wait_s: float, clock: Callable[[], float] = time.monotonic,
        *, ends: bool = False,
    ) -> None:  # fmt: skip
        """Without a store the rank is alone and decides by itself. A rank that ``ends`` waits only for the decision."""
        self._store, self._rank, self._size, self._clock, self._ends = store, rank, size, clock, ends
        self._patient_until_s = clock() + wait_s
        self._ready = False
        self._decided: str | None = None

    @property
    def pause_s(self) -> float:
        """How long the rank may wait for a message before it looks at the decision again."""
        return POLL_S if self._ends else max(POLL_S, self._patient_until_s - self._clock())

    @property
    def decided_to_leave(self) -> bool:
        """Whether the ranks have decided against resuming, so that only another call can follow."""
        return self._decided == _GO

    def should_resume(self) -> bool:
        """Whether the ranks have decided to resume. Once this rank's patience is over, it votes for that."""
        if self._decided is None and (self._ends or self._clock() >= self._patient_until_s):
            self._decided = self._poll_decision(ready=self._clock() >= self._patient_until_s)
        return self._decided == _RESUME

    def decide_to_leave(self) -> bool:
        """Decide to follow another call; False if the ranks have already decided to resume."""
        if self._decided is None:
            self._decided = self._write_decision(_GO)
        return self._decided == _GO

    def _poll_decision(self, *, ready: bool) -> str | None:
        if self._store is None:
            return _RESUME if ready else None
        try:
            if ready and not self._ready:
                self._store.set(f"ready-{self._rank}", "1")
                self._ready = True
            if self._store.check([f"ready-{rank}" for rank in range(self._size)]):
                return self._write_decision(_RESUME)
            # Only a followed call decides earlier, and then no rank can resume any more.
            return self._write_decision(_GO) if self._store.check(["decision"]) else None
        except RuntimeError:
            return _GO  # the rank that hosted the store is gone

    def _write_decision(self, wanted: str) -> str:
        """Write the decision if there is none yet; returns the one that holds."""
        if self._store is None:
            return wanted
        try:
            return self._store.compare_set("decision", "", wanted).decode()
        except RuntimeError:
            return _GO
