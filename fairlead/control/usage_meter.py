"""Writes now and then what running gangs have used; a job that cannot be metered is set aside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from sqlalchemy import Connection

from fairlead.cluster import Node
from fairlead.control.carry_out import Gangs
from fairlead.control.failpoints import failpoint
from fairlead.control.internal_errors import stays_what_it_is
from fairlead.control.ledger import meter, meterable
from fairlead.control.quarantine import Quarantine
from fairlead.control.store.engine import Store

METERING = "metering it"


class UsageMeter:
    """The leader's."""

    def __init__(
        self, store: Store, known: Gangs, nodes: Callable[[], Mapping[str, Node]], clock: Callable[[], float],
        quarantine: Quarantine,
    ) -> None:  # fmt: skip
        self._store, self._known, self._nodes, self._clock, self._quarantine = store, known, nodes, clock, quarantine

    async def measure(self, live: list[str]) -> None:
        """Write what these jobs have used so far into the ledger."""
        now_s, nodes_now = self._clock(), dict(self._nodes())
        pairs = await self._store.read(partial(meterable, live=set(live))) if live else []
        cpu_s = {job.id: self._known.cpu.take(generation) for job, generation in pairs}
        failed: dict[str, Exception] = {}

        def work(connection: Connection) -> None:
            failed.clear()
            for pair in meterable(connection, set(live)):
                if pair[0].id not in cpu_s:
                    continue
                savepoint = connection.begin_nested()
                try:
                    meter(connection, [pair], nodes_now, now_s, cpu_s)
                except Exception as error:
                    if stays_what_it_is(error):
                        raise
                    savepoint.rollback()
                    failed[pair[0].id] = error
                else:
                    savepoint.commit()

        if not pairs:
            return
        await self._store.write(work)
        failpoint("metered")
        for job, _ in pairs:
            if job.id in failed:
                await self._quarantine.set_aside(job.id, METERING, failed[job.id])
            else:
                self._quarantine.passed(job.id, METERING)
