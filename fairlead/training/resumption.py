"""The decision that all ranks take after they left a generation: go to the next one, or resume the one they left.

A control plane that dies between Leave and Join would leave the gang idle until it is back. So ranks that hear nothing
for a while resume their generation by themselves. The decision is one key in the store in which the generation met,
written once by compare-and-set: ``resume`` only after every rank has said that its patience is over, ``go`` by the
first rank that follows another call. Whichever comes first holds for all ranks, so a gang never splits between two
generations. Ranks that the next generation does not need take part in the decision, and end after ``go``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

RESUME_AFTER_S = 2.0
"""How long a rank waits for the next call. Usually it comes within 0.1 to 1 s."""

LONGEST_PATIENCE_S = 30.0
POLL_S = 0.05

_RESUME, _GO = "resume", "go"


class Store(Protocol):
    """What is needed of the store in which a generation met; it raises RuntimeError when it cannot be reached."""

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
        """Without a store the rank is alone and decides for itself; one that ``ends`` waits only to be let go."""
        self._store, self._rank, self._size, self._clock, self._ends = store, rank, size, clock, ends
        self._patient_until_s = clock() + wait_s
        self._ready = False
        self._decided: str | None = None

    @property
    def pause_s(self) -> float:
        """How long the rank may wait for a message before it asks again whether to resume."""
        return POLL_S if self._ends else max(POLL_S, self._patient_until_s - self._clock())

    @property
    def over(self) -> bool:
        """Whether the ranks have decided to go, so that only a call can follow."""
        return self._decided == _GO

    def resumes(self) -> bool:
        """Whether the ranks have decided to resume; says that this rank is ready once its patience is over."""
        if self._decided is None and (self._ends or self._clock() >= self._patient_until_s):
            self._decided = self._ask(ready=self._clock() >= self._patient_until_s)
        return self._decided == _RESUME

    def goes(self) -> bool:
        """Decide to follow another call; false if the ranks had already decided to resume."""
        if self._decided is None:
            self._decided = self._settle(_GO)
        return self._decided == _GO

    def _ask(self, *, ready: bool) -> str | None:
        if self._store is None:
            return _RESUME if ready else None
        try:
            if ready and not self._ready:
                self._store.set(f"ready-{self._rank}", "1")
                self._ready = True
            if self._store.check([f"ready-{rank}" for rank in range(self._size)]):
                return self._settle(_RESUME)
            # Only a Join settles it earlier, and then no rank can resume any more.
            return self._settle(_GO) if self._store.check(["decision"]) else None
        except RuntimeError:
            return _GO  # the rank that kept the store is gone

    def _settle(self, wanted: str) -> str:
        """The first decision that any rank wrote; this one if there was none."""
        if self._store is None:
            return wanted
        try:
            return self._store.compare_set("decision", "", wanted).decode()
        except RuntimeError:
            return _GO
