"""Meters running gangs periodically; a job that cannot be metered is quarantined."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from sqlalchemy import Connection

from fairlead.cluster import Node
from fairlead.control.accounting.ledger import generations_to_meter, meter_generations
from fairlead.control.reconcile.failpoints import failpoint
from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.internal_errors import must_propagate
from fairlead.control.reconcile.quarantine import Quarantine
from fairlead.control.store.engine import Store

METERING = "metering it"
EVERY_S = 15.0  # one ledger line per generation and node; after a crash the next one closes the gap
PAUSE_FACTOR = 200.0  # pause after metering, times its duration: at most half a percent of a core
MAX_EVERY_S = 60.0


class UsageMeter:
    """Runs on the leader."""

    def __init__(
        self, store: Store, known: GangRegistry, nodes: Callable[[], Mapping[str, Node]], clock: Callable[[], float],
        quarantine: Quarantine,
    ) -> None:  # fmt: skip
        self._store, self._known, self._nodes, self._clock, self._quarantine = store, known, nodes, clock, quarantine
        self._measured_s, self._every_s = 0.0, EVERY_S

    def begin(self) -> None:
        """Restart the interval: the next metering is due after it."""
        self._measured_s = self._clock()

    @property
    def due(self) -> bool:
        return not 0.0 <= self._clock() - self._measured_s < self._every_s

    async def measure(self, live: Collection[str]) -> None:
        """Write what these jobs have used so far to the ledger."""
        self.begin()
        begun_s = time.monotonic()
        await self._measure(live)
        self._every_s = min(MAX_EVERY_S, max(EVERY_S, PAUSE_FACTOR * (time.monotonic() - begun_s)))

    async def _measure(self, live: Collection[str]) -> None:
        now_s, nodes_now = self._clock(), dict(self._nodes())
        pairs = await self._store.read(partial(generations_to_meter, live=live)) if live else []
        if not pairs:
            return
        cpu_s = {job.id: self._known.cpu.take_usage(generation) for job, generation in pairs}

        def work(connection: Connection) -> dict[str, Exception]:
            now = [pair for pair in generations_to_meter(connection, live) if pair[0].id in cpu_s]
            together = partial(meter_generations, connection, nodes=nodes_now, now_s=now_s, cpu_s=cpu_s)
            if _try_in_savepoint(connection, partial(together, now)) is None:
                return {}
            tried = {pair[0].id: _try_in_savepoint(connection, partial(together, [pair])) for pair in now}
            return {job: error for job, error in tried.items() if error is not None}

        failed = await self._store.write(work)
        failpoint("metered")
        for job, _ in pairs:
            if job.id in failed:
                await self._quarantine.set_aside(job.id, METERING, failed[job.id])
            else:
                self._quarantine.record_success(job.id, METERING)


def _try_in_savepoint(connection: Connection, work: Callable[[], None]) -> Exception | None:
    """Run the work in a savepoint; returns the error that rolled it back, unless it is the store's."""
    savepoint = connection.begin_nested()
    try:
        work()
    except Exception as error:
        if must_propagate(error):
            raise
        savepoint.rollback()
        return error
    savepoint.commit()
    return None
