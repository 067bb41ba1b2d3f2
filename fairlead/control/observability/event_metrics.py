"""Follows the store's events and turns them into metrics, traces, log lines and the event ring."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection

from fairlead.control.observability import tracing
from fairlead.control.observability.event_ring import EventRing
from fairlead.control.observability.job_metrics import JobCounts
from fairlead.control.reconcile.loop import Controller
from fairlead.control.records import Generation, Job, LoggedEvent
from fairlead.control.store import events, generations, jobs
from fairlead.control.store.engine import Store
from fairlead.errors import LostLeadership, Unavailable

BATCH = 500
IDLE_S = 10.0  # longest wait for events while nothing is published
SPACING_S = 0.5  # shortest interval between two reads
FOLLOWED_S = 0.2  # ... while somebody follows events
ENDS = frozenset({"job-succeeded", "job-failed", "job-cancelled"})

log = structlog.get_logger("fairlead.events")


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that ended, with its generations if tracing is on."""

    job: Job
    generations: Sequence[Generation]


class EventFollower:
    """Passes every new event, once and in order, to metrics, log, traces and the event ring."""

    def __init__(self, store: Store, controller: Controller) -> None:
        self._store = store
        self._controller = controller
        self._seen: int | None = None
        self._turn = asyncio.Lock()
        self.counts = JobCounts()
        self.ring = EventRing()
        controller.worker_meter.tenants = self.counts.tenants

    async def run(self) -> None:
        """Follow events until cancelled; retries while the store is unavailable."""
        while True:
            seen = self._controller.publish_count
            try:
                await self.catch_up()
            except LostLeadership:
                raise
            except Unavailable as error:
                log.warning("events cannot be read at the moment", error=str(error))
            await asyncio.sleep(FOLLOWED_S if self.ring.has_followers else SPACING_S)
            await self._controller.wait_for_news(IDLE_S, seen)

    async def begin(self) -> None:
        """Start after the newest event: earlier events are not counted, active jobs are loaded."""

        def work(connection: Connection) -> tuple[int, dict[str, Job]]:
            return events.newest_id(connection), {job.id: job for job in jobs.active(connection)}

        newest, active = await self._store.read(work)
        self._seen = newest
        self.ring.begin(newest)
        self.counts.begin(active)

    async def catch_up(self) -> None:
        """Process all events that are in the store by now."""
        async with self._turn:
            if self._seen is None:
                await self.begin()
            while True:
                batch, ended = await self._store.read(self._next)
                for event in batch:
                    job = ended.get(event.job or "") if event.kind in ENDS else None
                    Context().run(self._take, event, job)  # without the trace context of the current request
                self.ring.extend(batch)
                if len(batch) < BATCH:
                    return

    def _next(self, connection: Connection) -> tuple[list[LoggedEvent], Mapping[str, EndedJob]]:
        batch = events.after(connection, self._seen or 0, BATCH)
        over = jobs.get_many(connection, {event.job for event in batch if event.kind in ENDS and event.job})
        traced = tracing.is_enabled()
        return batch, {
            name: EndedJob(job, generations.of_job(connection, name) if traced else ()) for name, job in over.items()
        }

    def _take(self, event: LoggedEvent, ended: EndedJob | None) -> None:
        self._seen = event.id
        self.counts.take(event, ended.job if ended else None)
        log.info(event.kind, text=event.text, **_facts(event))
        if ended is not None:
            tracing.export_job(event, ended.job, ended.generations)


def _facts(event: LoggedEvent) -> dict[str, object]:
    """Fields of the log line besides the text: job, tenant, generation, node, reason."""
    named = {"event_id": event.id, "tenant": event.tenant, "job": event.job, "node": event.node}
    facts = {key: value for key, value in event.facts.items() if key in ("generation", "reason", "workers", "outcome")}
    return {key: value for key, value in {**named, **facts}.items() if value is not None}
