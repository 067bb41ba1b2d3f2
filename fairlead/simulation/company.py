"""Gangs that share nodes: how much they slow each other down, and what telemetry would have learned of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.scheduling.market.colocation import Observation, Table, learned, slowdown
from fairlead.simulation.active import Active


class Company:
    """The truth, which no policy sees, and what was learned of it so far, which it does."""

    def __init__(self, truth: Table) -> None:
        self._truth = truth
        self.learned: Table = {}

    def meet(self, running: Iterable[Active]) -> None:
        """Set how much slower each gang is than alone: as slow as where it has the worst neighbours."""
        gangs = list(running)
        on: dict[str, list[Active]] = {}
        for gang in gangs:
            for name in set(gang.seats):
                on.setdefault(name, []).append(gang)
        for gang in gangs:
            gang.slowed = max(
                slowdown(self._truth, gang.workload, (other.workload for other in on[name] if other is not gang))
                for name in set(gang.seats)
            )
        self.learned = learned(self.learned, self._seen(gangs, on))

    def _seen(self, gangs: Iterable[Active], on: Mapping[str, list[Active]]) -> list[Observation]:
        found = []
        for gang in gangs:
            beside = {other.workload for name in set(gang.seats) for other in on[name] if other is not gang}
            if beside and gang.slowed < 1.0:
                found.append(Observation(gang.workload, tuple(sorted(beside)), 1.0 - gang.slowed, 1.0))
        return found
