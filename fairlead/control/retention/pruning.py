"""Takes away what is over: working folders of ended jobs at once, the rest when its time is up or it is too much."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog
from sqlalchemy import Connection

from fairlead.control.records import Tenant
from fairlead.control.retention.output_retention import KEPT_FOLDERS, OutputRetention
from fairlead.control.store import events, jobs, pruning, retained_outputs, tenants, vacuum
from fairlead.control.store.engine import Store
from fairlead.control.store.pruning import JobEnd
from fairlead.errors import LostLeadership, Unavailable
from fairlead.home import Home
from fairlead.safe_removal import Removal
from fairlead.specs import Policy, Retention
from fairlead.units import shown_duration

log = structlog.get_logger()

_ENDS = frozenset({"job-succeeded", "job-failed", "job-cancelled"})
_POLL_S = 1.0
_IDLE_S = 10.0  # ... while nobody says that anything has happened
_PASS_S = 60.0  # between two looks at what is too old
_SLICE_S, _PAUSE_S = 0.05, 0.2  # a large folder goes in slices: the disk is for those who work
_JOBS_AT_ONCE, _ROWS_AT_ONCE = 50, 500
_LINES_AT_ONCE, _SPANS_AT_ONCE = 2000, 288  # rows of the ledger; times of its sums
_STALE_UPLOAD_S = 3600.0  # an upload to which nothing was added for so long has died with its control plane


class PruningNotice(Protocol):
    """Who tells that something may have happened."""

    publish_count: int

    async def wait_for_news(self, timeout_s: float, seen: int | None = None) -> None: ...


class Pruner:
    """The leader's; whatever it did not get to before it ended, the next one does."""

    def __init__(
        self, store: Store, home: Home, clock: Callable[[], float] = time.time, news: PruningNotice | None = None,
        keep_audit_s: float = pruning.KEEP_AUDIT_S,
    ) -> None:  # fmt: skip
        self._store, self._home, self._clock, self._news = store, home, clock, news
        self._keep_audit_s = keep_audit_s
        self._event = 0  # the newest seen
        self._done_up_to: dict[tuple[str, str], JobEnd] = {}  # (tenant, kind) -> up to here it is done
        self._last_pass_s = 0.0
        self._outputs = OutputRetention(store, home, clock, _remove)
        self._swept = False

    async def run(self) -> None:
        """Go on until cancelled."""
        self._event = await self._store.read(events.newest_id)
        while True:
            seen = 0 if self._news is None else self._news.publish_count
            try:
                await self.sweep()
                await self.clean_ended()
                if self._clock() - self._last_pass_s >= _PASS_S:
                    self._last_pass_s = self._clock()
                    await self.prune()
            except LostLeadership:
                raise
            except (Unavailable, OSError) as error:  # store or disk are away for a while; what is old gets no younger
                log.warning("nothing could be pruned", error=str(error))
            await asyncio.sleep(_POLL_S)
            if self._news is not None:
                await self._news.wait_for_news(_IDLE_S, seen)

    # ------------------------------------------------------------ working folders

    async def sweep(self) -> None:
        """Clean the folders of all jobs that ended while nobody looked; once, and no folder that was cleaned before."""
        if self._swept:
            return
        names = await asyncio.to_thread(_names, self._home.jobs)
        for begin in range(0, len(names), _ROWS_AT_ONCE):
            batch = names[begin : begin + _ROWS_AT_ONCE]
            known = await self._store.read(partial(retained_outputs.measured_among, ids=batch))
            await self._clean(await self._store.read(partial(jobs.ended_among, wanted=set(batch) - known)))
        while older := await self._store.read(partial(retained_outputs.list_unmeasured, limit=_ROWS_AT_ONCE)):
            for job in older:  # of which no folder is left
                await self._outputs.remeasure(job)
        self._swept = True

    async def clean_ended(self) -> None:
        """Clean the folders of the jobs that have ended since the last time."""

        def work(connection: Connection) -> tuple[set[str], int]:
            fresh = events.after(connection, self._event, _ROWS_AT_ONCE)
            names = {event.job for event in fresh if event.job is not None and event.kind in _ENDS}
            return jobs.ended_among(connection, names), fresh[-1].id if fresh else self._event

        found, self._event = await self._store.read(work)
        await self._clean(found)

    async def _clean(self, jobs: Collection[str]) -> None:
        if jobs:
            for path in await asyncio.to_thread(_remove_working_folders, [self._home.job(job) for job in jobs]):
                await _remove(path)
            await self._outputs.record_ended(jobs)

    # ------------------------------------------------------------ what is kept for a time

    async def prune(self) -> None:
        """Take away what every tenant's retention says is over, and what the platform itself keeps no longer."""
        await self.sweep()
        await asyncio.to_thread(self._drop_stale_uploads)
        present = await self._store.read(tenants.all_tenants)
        for tenant in present:
            keeps = Policy.model_validate(dict(tenant.policy)).retention
            await self._prune_folders(tenant, "logs", "logs", keeps.logs)
            await self._prune_folders(tenant, "results", "output", keeps.results)
            await self._prune_metrics(tenant, keeps.metrics)
            await self._prune_jobs(tenant, keeps.rows)
            await self._prune_bundles(tenant, keeps)
        await self._outputs.enforce_quota(present)
        await self._prune_ledger()
        while await self._store.write(vacuum.free_pages):
            await asyncio.sleep(_PAUSE_S)

    async def _prune_ledger(self) -> None:
        """Lines and entries that have been there for long enough; their sums stay."""
        now_s = self._clock()
        await self._store.write(partial(pruning.advance_marks, now_s=now_s, keep_audit_s=self._keep_audit_s))
        await self._store.write(partial(pruning.drop_old_notes, now_s=now_s))
        await self._drop_in_batches(partial(pruning.drop_lines, limit=_LINES_AT_ONCE), _LINES_AT_ONCE)
        await self._drop_in_batches(partial(pruning.drop_spans, limit=_SPANS_AT_ONCE), 1)
        await self._drop_in_batches(partial(pruning.drop_audit, limit=_ROWS_AT_ONCE))
        before_s = now_s - self._keep_audit_s
        await self._drop_in_batches(lambda c: pruning.drop_events(c, None, before_s, _ROWS_AT_ONCE))

    def _drop_stale_uploads(self) -> None:
        """Half an upload leaves nothing, unless the control plane was killed in the middle of it."""
        before_s = self._clock() - _STALE_UPLOAD_S
        for part in self._home.bundles.glob("*/*.part"):
            with contextlib.suppress(FileNotFoundError):  # it has just ended well
                if part.lstat().st_mtime < before_s:
                    part.unlink()
                    log.info("an upload that never ended was removed", file=part.name, tenant=part.parent.name)

    async def _prune_folders(self, tenant: Tenant, kind: str, folder: str, keep_s: float | None) -> None:
        count = 0
        async for job in self._due(tenant, kind, keep_s):
            count += await _remove(self._home.job(job) / folder)
            with contextlib.suppress(OSError):  # the rest is kept longer
                await asyncio.to_thread(self._home.job(job).rmdir)
            await self._outputs.remeasure(job)
        await self._log_event(tenant, kind, count, keep_s)

    async def _prune_metrics(self, tenant: Tenant, keep_s: float | None) -> None:
        count = 0
        async for job in self._due(tenant, "metrics", keep_s):
            rows = await self._drop_in_batches(partial(pruning.drop_metrics, job=job, limit=_ROWS_AT_ONCE))
            count += rows > 0
        await self._log_event(tenant, "metrics", count, keep_s)

    async def _prune_bundles(self, tenant: Tenant, keeps: Retention) -> None:
        """Code goes with the results of the jobs that ran it, and with those jobs at the latest."""
        rows_s = None if keeps.rows is None else max(keeps.rows, pruning.KEEP_JOBS_S)
        keep_s = min((kept_s for kept_s in (keeps.results, rows_s) if kept_s is not None), default=None)
        if keep_s is None:
            return
        before_s = self._clock() - keep_s

        def forget(connection: Connection, digest: str) -> None:
            if pruning.drop_bundle(connection, tenant.name, digest, before_s):
                self._home.bundle(tenant.name, digest).unlink(missing_ok=True)

        for digest in await self._store.read(lambda c: pruning.idle_bundles(c, tenant.name, before_s)):
            await self._store.write(partial(forget, digest=digest))

    async def _prune_jobs(self, tenant: Tenant, keep_s: float | None) -> None:
        """All that is known of jobs, pipelines and events when their time is up; what was used stays in the sums."""
        if keep_s is None:
            return
        count, before_s = 0, self._clock() - max(keep_s, pruning.KEEP_JOBS_S)
        await self._drop_in_batches(lambda c: pruning.drop_events(c, tenant.name, before_s, _ROWS_AT_ONCE))
        await self._drop_in_batches(
            lambda c: pruning.drop_pipelines(c, tenant.name, before_s, _JOBS_AT_ONCE), _JOBS_AT_ONCE
        )
        due = partial(pruning.prunable_jobs, tenant=tenant.name, before_s=before_s, limit=_JOBS_AT_ONCE)
        while ids := await self._store.read(due):
            for job in ids:  # first what may be large, a handful at a time
                await _remove(self._home.job(job))
                await self._outputs.remeasure(job)
                await self._drop_in_batches(partial(pruning.drop_metrics, job=job, limit=_ROWS_AT_ONCE))
                await self._drop_in_batches(partial(pruning.drop_job_events, job=job, limit=_ROWS_AT_ONCE))
            await self._store.write(partial(pruning.drop_jobs, ids=ids))
            count += len(ids)
        await self._log_event(tenant, "rows", count, max(keep_s, pruning.KEEP_JOBS_S))

    async def _due(self, tenant: Tenant, kind: str, keep_s: float | None) -> AsyncIterator[str]:
        """The tenant's jobs whose time is over, each once."""
        while keep_s is not None:
            after, until_s = self._done_up_to.get((tenant.name, kind), pruning.FIRST), self._clock() - keep_s
            due = partial(pruning.ended_between, tenant=tenant.name, after=after, until_s=until_s, limit=_JOBS_AT_ONCE)
            ends = await self._store.read(due)
            for end in ends:
                yield end.job
                self._done_up_to[tenant.name, kind] = end
            if len(ends) < _JOBS_AT_ONCE:
                return

    async def _drop_in_batches(self, drop: Callable[[Connection], int], at_once: int = _ROWS_AT_ONCE) -> int:
        """Drop all rows, with room for others between two handfuls; how many there were."""
        count = 0
        while dropped := await self._store.write(drop):
            count += dropped
            if dropped < at_once:
                break
            await asyncio.sleep(_PAUSE_S)
        return count

    async def _log_event(self, tenant: Tenant, kind: str, count: int, keep_s: float | None) -> None:
        if not count or keep_s is None:
            return
        now_s, jobs = self._clock(), f"{count} job{'s' if count > 1 else ''}"
        text = f"the {kind} of {jobs} of {tenant.name} were removed: they are kept for {shown_duration(keep_s)}"
        await self._store.write(
            lambda c: events.append(c, time_s=now_s, kind="pruned", text=text, tenant=tenant.name,
                                    facts={"what": kind, "jobs": count, "kept_s": keep_s})
        )  # fmt: skip


def _remove_working_folders(folders: Iterable[Path]) -> list[Path]:
    """Remove what ended jobs do not keep, as far as it goes in one slice; returns what is left of it."""
    until_s, left = time.monotonic() + _SLICE_S, []
    for path in (folder / name for folder in folders for name in _names(folder) if name not in KEPT_FOLDERS):
        try:
            gone = Removal(path).go_on(until_s - time.monotonic())
        except OSError:
            gone = False
        if not gone:
            left.append(path)
    return left


async def _remove(path: Path) -> bool:
    """Remove what is there, in slices; whether there was something. What cannot be removed is logged and stays."""
    if not await asyncio.to_thread(os.path.lexists, path):
        return False
    removal = Removal(path)
    try:
        while not await asyncio.to_thread(removal.go_on, _SLICE_S):
            await asyncio.sleep(_PAUSE_S)
    except OSError as error:
        log.error("a folder could not be removed", folder=str(path), error=str(error))
        return False
    return True


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
