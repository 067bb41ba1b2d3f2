"""What the next action for a gang depends on, gathered from the store, the workers and the nodes."""

from __future__ import annotations

from collections.abc import Callable

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

        known = self._known
        training = {f.generation for f in known.workers.get(job_id, {}).values() if f.alive and f.phase == "joined"}

        def work(connection: Connection) -> tuple[Job | None, list[Generation], Generation | None]:
            live = generations.current(connection, {job_id}).get(job_id, [])
            return jobs.get(connection, job_id), live, _ended(connection, job_id, live, training)

        job, live, ended = await self._store.read(work)
        if job is None:
            return None
        if job.phase in ENDED and not known.workers.get(job_id):
            known.forget(job_id)
            return None
        if job.phase is JobPhase.QUEUED and not known.workers.get(job_id):
            known.told.pop(job_id, None)  # also when the answer to its last conclusion was lost
        told = frozenset(known.told.get(job_id, set()))
        reachable, asleep = self._roster.reachable, self._roster.asleep
        return GangView(job, live, dict(known.of(job_id)), told, self._clock(), reachable, asleep, ended)


def _ended(connection: Connection, job_id: str, live: list[Generation], training: set[int]) -> Generation | None:
    """The newest generation that has ended by what is stored, and in which workers train all the same."""
    odd = training - {generation.number for generation in live}
    if not odd:
        return None
    return next((g for g in reversed(generations.of_job(connection, job_id)) if g.number in odd), None)


def touches(view: GangView, nodes: frozenset[str]) -> bool:
    """Whether any member of it sits on one of these nodes."""
    return any(m.node in nodes for generation in view.generations for m in generation.members)
