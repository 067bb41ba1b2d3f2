"""Gathers what the next action for a gang depends on: stored rows, worker facts and node states."""

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
    """Builds the views of gangs for the leader."""

    def __init__(self, store: Store, known: GangRegistry, roster: NodeRegistry, clock: Callable[[], float]) -> None:
        self._store, self._known, self._roster, self._clock = store, known, roster, clock

    async def view_of(self, job_id: str) -> GangView | None:
        """The gang as it is now; None when nothing is left to do for it."""
        training = self._joined_generations(job_id)
        found = await self._store.read(lambda connection: _gang(connection, job_id, training))
        return None if found is None else self._make_views([found])[0]

    def rows_are_current(self, view: GangView) -> bool:
        """True if a new view would be made of the same stored rows."""
        rows = {generation.number for generation in (*view.generations, view.ended) if generation is not None}
        return self._joined_generations(view.job.id) <= rows

    def refreshed(self, view: GangView) -> GangView | None:
        """The same stored rows with the worker facts of now; None when nothing is left to do for it."""
        return self._make_views([(view.job, list(view.generations), view.ended)])[0]

    async def views_of(self, job_ids: Collection[str]) -> list[GangView]:
        """The views of many gangs, without those for which nothing is left to do."""
        training = {job: self._joined_generations(job) for job in job_ids}

        def work(connection: Connection) -> list[Found]:
            live = generations.live_by_job(connection, job_ids)
            found = jobs.get_many(connection, job_ids).values()
            return [_found(connection, job, live.get(job.id, []), training[job.id]) for job in found]

        found = await self._store.read(work) if job_ids else []
        return [view for view in self._make_views(found) if view is not None]

    def _joined_generations(self, job: str) -> set[int]:
        """The generations that living workers of the job have joined."""
        return {f.generation for f in self._known.workers.get(job, {}).values() if f.alive and f.phase == "joined"}

    def _make_views(self, found: Sequence[Found]) -> list[GangView | None]:
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
            known.commands_sent.pop(job.id, None)  # also when the answer to the last Conclude was lost
        told = frozenset(known.commands_sent.get(job.id, set()))
        workers = dict(known.workers.get(job.id, {}))
        return GangView(job, live, workers, told, self._clock(), reachable, asleep, ended)


Found = tuple[Job, list[Generation], Generation | None]
"""A job, its live generations, and an ended one in which workers still train."""


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


def has_member_on(view: GangView, nodes: frozenset[str]) -> bool:
    """True if any member of the gang is on one of these nodes."""
    return any(m.node in nodes for generation in view.generations for m in generation.members)
