"""Looks at every gang on its way once per sweep, a few in each pass, so that a missed event forgets no gang."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

from fairlead.control.reconcile.gang_state_machine import next_action, next_change_s
from fairlead.control.reconcile.gang_timers import GangTimers
from fairlead.control.reconcile.gang_views import GangViews, has_member_on
from fairlead.control.reconcile.internal_errors import must_propagate
from fairlead.control.reconcile.node_registry import NodeRegistry
from fairlead.control.store import jobs
from fairlead.control.store.engine import Store

SWEEP_S = 30.0
"""How long a whole sweep takes."""

MOST_AT_ONCE = 250
"""How many gangs are read from the store in one query."""


class GangSweep:
    """The leader's sweep over all gangs. Events request a look by themselves; the sweep finds what they missed."""

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

    def sweep_at_once(self) -> None:
        """Look at all gangs in the next pass: something changed that may concern any of them."""
        self._at_once = True

    async def jobs_with_work(self, busy: Collection[str]) -> set[str]:
        """The gangs among the next few whose next action is due; skips those that are ``busy``."""
        now_s, at_once = self._clock(), self._at_once
        if at_once or self._began_s is None or not 0.0 <= now_s - self._began_s < SWEEP_S:
            await self._begin(now_s)
        count = len(self._left) if at_once else self._due_count(now_s)
        asked: set[str] = set()
        while count > 0 and self._left:
            some = [self._left.pop() for _ in range(min(count, MOST_AT_ONCE, len(self._left)))]
            count -= len(some)
            asked |= await self._filter_jobs_with_work([job for job in some if job not in busy])
        return asked

    async def _begin(self, now_s: float) -> None:
        """Begin a sweep; the gangs that the last one did not reach come first."""
        found = await self._store.read(jobs.in_flight)
        late = set(self._left)
        self._left = [*(job for job in reversed(found) if job not in late), *(job for job in found if job in late)]
        self.on_their_way = frozenset(found)
        self._began_s = self._looked_s = now_s
        self._at_once = False

    def _due_count(self, now_s: float) -> int:
        """How many gangs are due by now, so that the sweep reaches all of them in time."""
        each_s = 0.9 * SWEEP_S / max(1, len(self.on_their_way))
        count = math.floor(max(0.0, now_s - self._looked_s) / each_s)
        self._looked_s += count * each_s
        return count

    async def _filter_jobs_with_work(self, some: Collection[str]) -> set[str]:
        asked = set()
        undecided = self._roster.uncertain
        for view in await self._views.views_of(some):
            if has_member_on(view, undecided):
                continue
            try:
                waits, at_s = next_action(view) is None, next_change_s(view)
            except Exception as error:
                if must_propagate(error):
                    raise
                waits, at_s = False, None  # its own task meets the same error and quarantines the job
            if not waits:
                asked.add(view.job.id)
            elif at_s is not None:
                self._timers.arm(view.job.id, at_s, view.now_s)
        return asked
