"""A slow look at all gangs on their way, a few in each pass, so that none is forgotten whatever was missed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from fairlead.control.reconcile.gang_state_machine import next_action, next_change_s
from fairlead.control.reconcile.gang_timers import GangTimers
from fairlead.control.reconcile.gang_views import GangViews, touches
from fairlead.control.reconcile.internal_errors import must_propagate
from fairlead.control.reconcile.node_registry import NodeRegistry
from fairlead.control.store import jobs
from fairlead.control.store.engine import Store

SWEEP_S = 30.0
"""So long a whole sweep takes."""

MOST_AT_ONCE = 250
"""Gangs that are read and looked at in one go."""


class GangSweep:
    """The leader's. What happens to a gang asks for a look by itself; the sweep finds what did not."""

    def __init__(
        self, store: Store, views: GangViews, roster: NodeRegistry, timers: GangTimers, clock: Callable[[], float]
    ) -> None:  # fmt: skip
        self._store, self._views, self._roster, self._timers, self._clock = store, views, roster, timers, clock
        self.on_their_way: frozenset[str] = frozenset()
        """The jobs that held devices, or were about to, when the sweep began."""
        self._left: list[str] = []
        self._began_s: float | None = None
        self._looked_s = 0.0
        self._at_once = True

    def hurry(self) -> None:
        """Look at all of them in the next pass: something has changed for any of them."""
        self._at_once = True

    async def look(self, busy: Collection[str]) -> set[str]:
        """The gangs among the next few that have something to do; those that are ``busy`` are left alone."""
        now_s, at_once = self._clock(), self._at_once
        if at_once or self._began_s is None or not 0.0 <= now_s - self._began_s < SWEEP_S:
            await self._begin(now_s)
        count = len(self._left) if at_once else self._share(now_s)
        asked: set[str] = set()
        while count > 0 and self._left:
            some = [self._left.pop() for _ in range(min(count, MOST_AT_ONCE, len(self._left)))]
            count -= len(some)
            asked |= await self._asking([job for job in some if job not in busy])
        return asked

    async def _begin(self, now_s: float) -> None:
        """Begin a sweep; those that the last one did not get to come first."""
        found = await self._store.read(jobs.in_flight)
        late = set(self._left)
        self._left = [*(job for job in reversed(found) if job not in late), *(job for job in found if job in late)]
        self.on_their_way = frozenset(found)
        self._began_s = self._looked_s = now_s
        self._at_once = False

    def _share(self, now_s: float) -> int:
        """How many are due by now, so that all have had their turn when the sweep ends."""
        each_s = 0.9 * SWEEP_S / max(1, len(self.on_their_way))
        count = math.floor(max(0.0, now_s - self._looked_s) / each_s)
        self._looked_s += count * each_s
        return count

    async def _asking(self, some: Collection[str]) -> set[str]:
        asked = set()
        undecided = self._roster.undecided
        for view in await self._views.of_each(some):
            if touches(view, undecided):
                continue
            try:
                waits, at_s = next_action(view) is None, next_change_s(view)
            except Exception as error:
                if must_propagate(error):
                    raise
                waits, at_s = False, None  # its own task finds the same, and sets it aside
            if not waits:
                asked.add(view.job.id)
            elif at_s is not None:
                self._timers.arm(view.job.id, at_s, view.now_s)
        return asked
