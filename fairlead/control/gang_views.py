"""What the next action for a gang depends on, gathered from the store, the workers and the nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sqlalchemy import Connection

from fairlead.control.carry_out import Gangs
from fairlead.control.gangs import GangView
from fairlead.control.records import ENDED, Generation, Job, JobPhase
from fairlead.control.roster import Roster
from fairlead.control.store import generations, jobs
from fairlead.control.store.engine import Store


class GangViews:
    """The leader's."""

    def __init__(self, store: Store, known: Gangs, roster: Roster, clock: Callable[[], float]) -> None:
        self._store, self._known, self._roster, self._clock = store, known, roster, clock

    async def of(self, job_id: str) -> GangView | None:
        """The gang as it is now; None when there is nothing left to do for it."""
        job, live = await self._store.read(lambda connection: _gang(connection, job_id))
        return None if job is None else self._seen([(job, live)])[0]

    async def of_each(self, job_ids: Collection[str]) -> list[GangView]:
        """The same for many, without those for which there is nothing left to do."""

        def work(connection: Connection) -> list[tuple[Job, list[Generation]]]:
            live = generations.current(connection, job_ids)
            return [(job, live.get(job.id, [])) for job in jobs.several(connection, job_ids).values()]

        found = await self._store.read(work) if job_ids else []
        return [view for view in self._seen(found) if view is not None]

    def _seen(self, found: Sequence[tuple[Job, list[Generation]]]) -> list[GangView | None]:
        reachable, asleep = self._roster.reachable, self._roster.asleep
        return [self._view(job, live, reachable, asleep) for job, live in found]

    def _view(
        self, job: Job, live: list[Generation], reachable: frozenset[str], asleep: frozenset[str]
    ) -> GangView | None:  # fmt: skip
        known = self._known
        if job.phase in ENDED and not known.workers.get(job.id):
            known.forget(job.id)
            return None
        if job.phase is JobPhase.QUEUED and not known.workers.get(job.id):
            known.told.pop(job.id, None)  # also when the answer to its last conclusion was lost
        told = frozenset(known.told.get(job.id, set()))
        return GangView(job, live, dict(known.workers.get(job.id, {})), told, self._clock(), reachable, asleep)


def _gang(connection: Connection, job_id: str) -> tuple[Job | None, list[Generation]]:
    return jobs.get(connection, job_id), generations.current(connection, {job_id}).get(job_id, [])


def touches(view: GangView, nodes: frozenset[str]) -> bool:
    """Whether any member of it sits on one of these nodes."""
    return any(m.node in nodes for generation in view.generations for m in generation.members)
