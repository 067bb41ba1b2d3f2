"""Keeps one timer per job: when to look at a gang again although nothing happens to it."""

from __future__ import annotations


class GangTimers:
    """Times by job. A clock that was set back makes timers expire at once, never late."""

    def __init__(self) -> None:
        self._set: dict[str, tuple[float, float]] = {}  # when it was set, when it expires

    def __len__(self) -> int:
        return len(self._set)

    def arm(self, job: str, at_s: float, now_s: float) -> None:
        """Look at the job at this time, or at an earlier one that is set already."""
        known = self._set.get(job)
        if known is None or at_s < known[1]:
            self._set[job] = now_s, at_s

    def clear(self, job: str) -> None:
        self._set.pop(job, None)

    def due(self, now_s: float) -> set[str]:
        """The jobs whose timers have expired; removes those timers."""
        found = {job for job, (since_s, at_s) in self._set.items() if not since_s <= now_s < at_s}
        for job in found:
            del self._set[job]
        return found

    def next_s(self) -> float | None:
        """When the next timer expires; None: there is none."""
        return min((at_s for _, at_s in self._set.values()), default=None)
