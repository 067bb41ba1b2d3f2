"""What the next action for a gang depends on, gathered from the store, the workers and the nodes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from sqlalchemy import Connection

from fairlead.control.reconcile.gang_registry import GangRegistry
from fairlead.control.reconcile.gang_state_machine import GangView
from fairlead.control.reconcile.node_registry import NodeRegistry
from fairlead.control.records import ENDED, Generation, Job, JobPhase
from fairlead.control.store import generations, jobs
from fairlead.control.store.engine import Store


class GangViews:
    """The leader's."""

    def __init__(self, store: Store, known: GangRegistry, roster: NodeRegistry, clock: Callable[[], float]) -> None:
        self._store, self._known, self._roster, self._clock = store, known, roster, clock

    async def of(self, job_id: str) -> GangView | None:
        """The gang as it is now; None when there is nothing left to do for it."""
        training = self._training(job_id)
        found = await self._store.read(lambda connection: _gang(connection, job_id, training))
        return None if found is None else self._seen([found])[0]

    def suffices(self, view: GangView) -> bool:
        """Whether the same rows are what a view is made of now."""
        rows = {generation.number for generation in (*view.generations, view.ended) if generation is not None}
        return self._training(view.job.id) <= rows

    def again(self, view: GangView) -> GangView | None:
        """The same rows with what is known by now; None when there is nothing left to do for it."""
        return self._seen([(view.job, list(view.generations), view.ended)])[0]

    async def of_each(self, job_ids: Collection[str]) -> list[GangView]:
        """The same for many, without those for which there is nothing left to do."""
        training = {job: self._training(job) for job in job_ids}

        def work(connection: Connection) -> list[Found]:
            live = generations.live_by_job(connection, job_ids)
            found = jobs.get_many(connection, job_ids).values()
            return [_found(connection, job, live.get(job.id, []), training[job.id]) for job in found]

        found = await self._store.read(work) if job_ids else []
        return [view for view in self._seen(found) if view is not None]

    def _training(self, job: str) -> set[int]:
        """The generations in which living workers of a job take part."""
        return {f.generation for f in self._known.workers.get(job, {}).values() if f.alive and f.phase == "joined"}

    def _seen(self, found: Sequence[Found]) -> list[GangView | None]:
        reachable, asleep = self._roster.reachable, self._roster.asleep
        return [self._view(*each, reachable, asleep) for each in found]

    def _view(
        self, job: Job, live: list[Generation], ended: Generation | None, reachable: frozenset[str],
        asleep: frozenset[str],
    ) -> GangView | None:  # fmt: skip
        known = self._known
        if job.phase in ENDED and not known.workers.get(job.id):
            known.forget(job.id)
            return None
        if job.phase is JobPhase.QUEUED and not known.workers.get(job.id):
            known.commands_sent.pop(job.id, None)  # also when the answer to its last conclusion was lost
        told = frozenset(known.commands_sent.get(job.id, set()))
        workers = dict(known.workers.get(job.id, {}))
        return GangView(job, live, workers, told, self._clock(), reachable, asleep, ended)


Found = tuple[Job, list[Generation], Generation | None]
"""A job, its live generations, and one that has ended although workers train in it."""


def _gang(connection: Connection, job_id: str, training: set[int]) -> Found | None:
    job = jobs.get(connection, job_id)
    live = generations.live_by_job(connection, {job_id}).get(job_id, [])
    return None if job is None else _found(connection, job, live, training)


def _found(connection: Connection, job: Job, live: list[Generation], training: set[int]) -> Found:
    odd = training - {generation.number for generation in live}
    if not odd:
        return job, live, None
    earlier = (generations.get(connection, job.id, number) for number in sorted(odd, reverse=True))
    return job, live, next((generation for generation in earlier if generation is not None), None)


def touches(view: GangView, nodes: frozenset[str]) -> bool:
    """Whether any member of it sits on one of these nodes."""
    return any(m.node in nodes for generation in view.generations for m in generation.members)
