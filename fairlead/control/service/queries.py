"""Reads jobs, metrics, logs, results and events."""

from __future__ import annotations

import os
import stat
from collections.abc import Awaitable, Callable, Collection, Mapping
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import Connection

from fairlead.agent.protocol import LogChunk, LogCursor
from fairlead.cluster import Node
from fairlead.control.accounting import report
from fairlead.control.identity.access import acting_for, scope
from fairlead.control.job_views import event_view, generation_views, job_fields, job_view, plan_view
from fairlead.control.observability.event_ring import EventRing, Filter, RenderedEvent, render
from fairlead.control.observability.log_tails import LogReader, LogTails
from fairlead.control.records import ENDED, Job, JobPhase, Token
from fairlead.control.service.core import Verbs, tenant_named
from fairlead.control.service.start_forecasts import with_expected_start
from fairlead.control.store import events, generations, jobs, ledger, metrics, retained_outputs, tenants, usage_spans
from fairlead.errors import InvalidSpec, NotFound, StillRunning
from fairlead.views.jobs import EventView, JobDetail, MetricsView, Page, ResultView

MAX_ARTIFACTS = 10_000  # listed per result; a job may leave a million
_PART_NAMES = {"logs": "logs", "output": "results"}
FEED_BATCH = 100  # events per batch for a follower

Read = Callable[[Callable[[Connection], list[RenderedEvent]]], Awaitable[list[RenderedEvent]]]


class QueryVerbs(Verbs):
    """Read operations on jobs."""

    _log_tails: LogTails | None = None

    async def jobs(
        self,
        who: Token,
        state: str | None,
        tenant: str | None,
        name: str | None,
        limit: int,
        cursor: str | None,
        order: str = "newest",
        ids: list[str] | None = None,
    ) -> Page:
        """One page of the jobs that this token may see."""
        wanted = scope(who) if tenant is None else acting_for(who, tenant)
        phases = _phases(state)
        controller, now_s, starts = self._core.controller, self._core.clock(), await self._expected_starts()

        def work(connection: Connection) -> Page:
            if tenant is not None and wanted is not None:
                tenant_named(connection, wanted)
            found, following, total = jobs.page(
                connection, tenant=wanted, phases=phases, name=name, limit=limit, before=cursor, order=order, ids=ids
            )
            shown = [job.id for job in found]
            labels, live = jobs.labels_of(connection, shown), generations.live_by_job(connection, set(shown))
            holds = controller.last_round.holds
            told = {j.id: with_expected_start(holds.get(j.id), starts.get(j.id)) for j in found}
            own = scope(who)
            views = [job_view(j, labels.get(j.id, {}), live.get(j.id, []), told[j.id], now_s, own) for j in found]
            return Page(items=views, next=following, total=total)

        return await self._read(work)

    async def job(self, who: Token, ref: str) -> JobDetail:
        """One job with its spec and all its generations."""
        now_s, holds, starts = self._core.clock(), self._core.controller.last_round.holds, await self._expected_starts()

        def work(connection: Connection) -> JobDetail:
            job = jobs.find(connection, ref, scope(who))
            every = generations.of_job(connection, job.id)
            live = [generation for generation in every if generation.ended_s is None]
            labels = jobs.labels_of(connection, [job.id]).get(job.id, {})
            return JobDetail(
                **job_fields(
                    job, labels, live, with_expected_start(holds.get(job.id), starts.get(job.id)), now_s, scope(who)
                ),
                spec=jobs.stored_spec(connection, job.id),
                generations=generation_views(every, scope(who)),
            )

        return await self._read(work)

    async def metrics(self, who: Token, ref: str, points: int | None = None) -> MetricsView:
        """The metric history by step, or downsampled to about ``points``."""
        job, _ = await self._find(who, ref)
        steps = await self._read(lambda connection: metrics.history(connection, job.id, points))
        if not steps and job.step and job.phase in ENDED:
            raise removed_error(job, "metrics")
        return MetricsView(job=job.id, steps=steps, batch_size=job.batch_size)

    async def result(self, who: Token, ref: str) -> ResultView:
        """The job's metrics, artefacts and figures."""
        job, _ = await self._find(who, ref)
        if job.phase not in ENDED:
            raise StillRunning(f"{job.id} is {job.phase}", fix=f"fairlead logs -f {job.id}, or wait")
        now_s, nodes = self._core.clock(), self._core.controller.nodes

        def work(connection: Connection) -> ResultView:
            usage = ledger.hours_of_job(connection, job.id)
            during = usage_spans.totals_by_tenant(connection, job.started_s or job.submitted_s, job.finished_s or now_s)
            index = report.fairness(tenants.all_tenants(connection), during)
            core_s = sum(line.device_s * _cores(line.node, nodes) for line in usage)
            planned = [each for each in generations.of_job(connection, job.id) if each.running_s is not None]
            return ResultView(
                job=job.id,
                state=str(job.phase),
                metrics=dict(job.result.get("metrics", {})),
                artifacts=self._artifacts(job),
                figures=report.job_figures(job, usage, index, core_s, now_s),
                spec=jobs.stored_spec(connection, job.id),
                message=job.message or (self._removed_message(connection, job, "output")),
                plan=plan_view(planned[-1] if planned else None),
            )

        return await self._read(work)

    def _is_missing(self, job: Job, part: str) -> bool:
        """True if the ended job has no such folder: it was removed, or there never was one."""
        return job.phase in ENDED and not (self._core.home.job(job.id) / part).is_dir()

    def _removed_message(self, connection: Connection, job: Job, part: str) -> str | None:
        """The message to show if the job left this folder and it was removed since."""
        gone = self._is_missing(job, part) and retained_outputs.job_left(connection, job.id, part)
        return removed_error(job, _PART_NAMES[part]).message if gone else None

    async def _refuse_removed(self, job: Job, part: str) -> None:
        if self._is_missing(job, part) and await self._read(
            lambda connection: retained_outputs.job_left(connection, job.id, part)
        ):
            raise removed_error(job, _PART_NAMES[part])

    def _artifacts(self, job: Job) -> list[str]:
        folder = self._core.home.job(job.id) / "output"
        try:
            with os.scandir(folder) as entries:
                names = (entry.name for entry in entries if entry.is_file(follow_symlinks=False))
                return sorted(name for name in islice(names, MAX_ARTIFACTS) if _is_text(name))
        except (FileNotFoundError, NotADirectoryError):
            return []

    async def artifact(self, who: Token, ref: str, name: str) -> tuple[BinaryIO, int]:
        """An output file, opened so that a link planted by the job cannot lead elsewhere."""
        job, _ = await self._find(who, ref)
        if "/" in name or name in ("", ".", ".."):
            raise InvalidSpec(
                f"{name!r} is not the name of an artefact", field="name", value=name, fix="see fairlead result"
            )
        await self._refuse_removed(job, "output")
        missing = NotFound(f"{name!r}: {job.id} left no such artefact", field="name", value=name,
                           fix=f"fairlead result {job.id} lists them")  # fmt: skip
        try:
            return open_inside(self._core.home.job(job.id) / "output", name)
        except OSError:
            raise missing from None

    async def log(self, who: Token, ref: str, after: dict[str, int], worker: str | None, lines: int) -> LogReader:
        """A reader of the log after the cursor, limited to the last ``lines`` lines, and of what follows.

        Only the offsets of lines are looked up here: the reader holds one piece at a time.
        """
        job, _ = await self._find(who, ref)
        await self._refuse_removed(job, "logs")
        whole = job.phase not in ENDED
        begins, ends = await self._core.controller.backend.last_lines(job.id, lines, after, worker, whole=whole)
        return LogReader(self._tails(), self._read_log, job.id, begins, ends, worker)

    def _tails(self) -> LogTails:
        """The log tails, shared by all followers."""
        if self._log_tails is None:
            self._log_tails = LogTails(
                self._read_log, self._log_ends, self._ended_jobs, lambda: self._core.controller.publish_count
            )
        return self._log_tails

    async def _read_log(self, job: str, after: LogCursor, limit_bytes: int, worker: str | None) -> list[LogChunk]:
        return await self._core.controller.backend.logs(job, after, limit_bytes, worker)

    async def _log_ends(self, job: str) -> LogCursor:
        _, ends = await self._core.controller.backend.last_lines(job, 0, {}, whole=True)
        return ends

    async def _ended_jobs(self, wanted: Collection[str]) -> set[str]:
        return await self._read(lambda connection: jobs.ended_or_missing(connection, wanted))

    async def events(self, who: Token, after: int, limit: int, job: str | None) -> list[EventView]:
        """Events after this id, oldest first; negative: that many of the newest that the caller may see."""

        def work(connection: Connection) -> list[EventView]:
            tenant, found = scope(who), jobs.find(connection, job, scope(who)).id if job else None
            start = events.before_newest(connection, -after, tenant, found) if after < 0 else after
            return [event_view(e, tenant) for e in events.after(connection, start, limit, tenant=tenant, job=found)]

        return await self._read(work)

    async def follow_events(self, who: Token, after: int, job: str | None) -> EventFeed:
        """A live feed of events after this id; negative: from that many of the newest on."""
        tenant = scope(who)

        def work(connection: Connection) -> tuple[int, str | None]:
            found = jobs.find(connection, job, tenant).id if job else None
            return events.before_newest(connection, -after, tenant, found) if after < 0 else after, found

        start, found = await self._read(work)
        return EventFeed(self._core.ring, self._read, start, (tenant, found))


class EventFeed:
    """One follower of events: reads the ring, or the store while it lags further behind than the ring reaches."""

    def __init__(self, ring: EventRing, read: Read, after: int, wanted: Filter) -> None:
        self._ring, self._read, self._after, self._wanted = ring, read, after, wanted

    async def next(self, timeout_s: float | None) -> list[RenderedEvent]:
        """The next events, oldest first; empty after the timeout."""
        found = self._ring.after(self._after, self._wanted, FEED_BATCH)
        while found is None:
            since = self._ring.since  # everything up to here was stored before this read
            stored = await self._read(self._stored)
            if not stored:
                self._after = max(self._after, since)
            found = stored or self._ring.after(self._after, self._wanted, FEED_BATCH)
        if not found:
            await self._ring.wait(self._wanted, timeout_s)
            found = self._ring.after(self._after, self._wanted, FEED_BATCH) or []
        if found:
            self._after = found[-1].id
        return found

    def _stored(self, connection: Connection) -> list[RenderedEvent]:
        tenant, job = self._wanted
        return [render(e, tenant) for e in events.after(connection, self._after, FEED_BATCH, tenant=tenant, job=job)]


def _is_text(name: str) -> bool:
    """True if the name is valid text: a job may name a file with any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def removed_error(job: Job, what: str) -> NotFound:
    """The error for logs, metrics or results that were removed after the tenant's retention or quota."""
    fix = f"to keep future ones longer: fairlead tenant update {job.tenant} --keep-{what} 90d --kept 200GB"
    why = "their retention time was over, or the tenant's ended jobs held too much (an event says which)"
    return NotFound(f"the {what} of {job.id} were removed: {why}", field=what, value=job.id, fix=fix)


def open_inside(folder: Path, name: str) -> tuple[BinaryIO, int]:
    """Open a regular file in a folder that tenants write to, following no link. Raises OSError otherwise."""
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    finally:
        os.close(directory)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise FileNotFoundError(name)
    return os.fdopen(descriptor, "rb"), status.st_size


def _cores(node: str, nodes: Mapping[str, Node]) -> float:
    """CPU cores per device of a node."""
    found = nodes.get(node)
    return found.capacity.get("cpu", 0.0) / found.devices if found and found.devices else 1.0


def _phases(state: str | None) -> list[JobPhase] | None:
    if state is None:
        return None
    if state == "active":
        return [phase for phase in JobPhase if phase not in ENDED]
    if state == "ended":
        return sorted(ENDED)
    try:
        return [JobPhase(part.strip()) for part in state.split(",")]
    except ValueError:
        choices = ", ".join([*JobPhase, "active", "ended"])
        raise InvalidSpec(f"{state!r} is not a state", field="state", value=state, fix=f"use {choices}") from None
