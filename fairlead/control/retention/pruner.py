"""Decides in the background what is pruned: folders of ended jobs; logs, outputs and rows past retention or quota."""

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
from fairlead.control.store import events, jobs, retained_outputs, row_deletion, tenants, vacuum
from fairlead.control.store.engine import Store
from fairlead.control.store.row_deletion import JobEnd
from fairlead.errors import LostLeadership, Unavailable
from fairlead.home import Home
from fairlead.safe_removal import Removal
from fairlead.specs import Policy, Retention
from fairlead.units import shown_duration

log = structlog.get_logger()

_ENDS = frozenset({"job-succeeded", "job-failed", "job-cancelled"})
_POLL_S = 1.0
_IDLE_S = 10.0  # ... while nothing is published
_PASS_S = 60.0  # between two passes over old data
_SLICE_S, _PAUSE_S = 0.05, 0.2  # large folders are removed in slices, to leave the disk to running jobs
_JOBS_AT_ONCE, _ROWS_AT_ONCE = 50, 500
_LINES_AT_ONCE, _SPANS_AT_ONCE = 2000, 288  # ledger lines; time spans of its sums
_STALE_UPLOAD_S = 3600.0  # an upload without progress for this long is abandoned


class PruningNotice(Protocol):
    """Announces that something was stored."""

    publish_count: int

    async def wait_for_news(self, timeout_s: float, seen: int | None = None) -> None: ...


class Pruner:
    """Runs on the leader; what it does not finish, the next leader does."""

    def __init__(
        self, store: Store, home: Home, clock: Callable[[], float] = time.time, news: PruningNotice | None = None,
        keep_audit_s: float = row_deletion.KEEP_AUDIT_S,
    ) -> None:  # fmt: skip
        self._store, self._home, self._clock, self._news = store, home, clock, news
        self._keep_audit_s = keep_audit_s
        self._event = 0  # the newest event processed
        self._done_up_to: dict[tuple[str, str], JobEnd] = {}  # (tenant, kind) -> the last end that was pruned
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
                if not 0.0 <= self._clock() - self._last_pass_s < _PASS_S:  # or the clock was set back
                    self._last_pass_s = self._clock()
                    await self.prune()
            except LostLeadership:
                raise
            except (Unavailable, OSError) as error:  # store or disk are unavailable: retry later
                log.warning("pruning failed; it will be retried", error=str(error))
            await asyncio.sleep(_POLL_S)
            if self._news is not None:
                await self._news.wait_for_news(_IDLE_S, seen)

    # ------------------------------------------------------------ working folders

    async def sweep(self) -> None:
        """Clean the folders of jobs that ended while no leader ran; once, skipping jobs that were measured."""
        if self._swept:
            return
        names = await asyncio.to_thread(_names, self._home.jobs)
        for begin in range(0, len(names), _ROWS_AT_ONCE):
            batch = names[begin : begin + _ROWS_AT_ONCE]
            known = await self._store.read(partial(retained_outputs.measured_among, ids=batch))
            await self._clean(await self._store.read(partial(jobs.ended_among, wanted=set(batch) - known)))
        while older := await self._store.read(partial(retained_outputs.list_unmeasured, limit=_ROWS_AT_ONCE)):
            for job in older:  # jobs without a folder
                await self._outputs.remeasure(job)
        self._swept = True

    async def clean_ended(self) -> None:
        """Clean the folders of jobs that ended since the last call."""

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

    # ------------------------------------------------------------ retention

    async def prune(self) -> None:
        """Remove what is past each tenant's retention and the platform's own."""
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
        """Delete ledger lines, audit entries and platform events past retention; their sums stay."""
        now_s = self._clock()
        await self._store.write(partial(row_deletion.advance_marks, now_s=now_s, keep_audit_s=self._keep_audit_s))
        await self._store.write(partial(row_deletion.drop_old_notes, now_s=now_s))
        await self._drop_in_batches(partial(row_deletion.drop_lines, limit=_LINES_AT_ONCE), _LINES_AT_ONCE)
        await self._drop_in_batches(partial(row_deletion.drop_spans, limit=_SPANS_AT_ONCE), 1)
        await self._drop_in_batches(partial(row_deletion.drop_audit, limit=_ROWS_AT_ONCE))
        before_s = now_s - self._keep_audit_s
        await self._drop_in_batches(lambda c: row_deletion.drop_events(c, None, before_s, _ROWS_AT_ONCE))

    def _drop_stale_uploads(self) -> None:
        """Delete partial uploads that a killed control plane left behind."""
        before_s = self._clock() - _STALE_UPLOAD_S
        for part in self._home.bundles.glob("*/*.part"):
            with contextlib.suppress(FileNotFoundError):  # it was completed just now
                if part.lstat().st_mtime < before_s:
                    part.unlink()
                    log.info("an abandoned upload was removed", file=part.name, tenant=part.parent.name)

    async def _prune_folders(self, tenant: Tenant, kind: str, folder: str, keep_s: float | None) -> None:
        count = 0
        async for job in self._due(tenant, kind, keep_s):
            count += await _remove(self._home.job(job) / folder)
            with contextlib.suppress(OSError):  # not empty: the rest is kept longer
                await asyncio.to_thread(self._home.job(job).rmdir)
            await self._outputs.remeasure(job)
        await self._log_event(tenant, kind, count, keep_s)

    async def _prune_metrics(self, tenant: Tenant, keep_s: float | None) -> None:
        count = 0
        async for job in self._due(tenant, "metrics", keep_s):
            rows = await self._drop_in_batches(partial(row_deletion.drop_metrics, job=job, limit=_ROWS_AT_ONCE))
            count += rows > 0
        await self._log_event(tenant, "metrics", count, keep_s)

    async def _prune_bundles(self, tenant: Tenant, keeps: Retention) -> None:
        """Delete code bundles together with the results of the jobs that used them, or with those jobs' rows."""
        rows_s = None if keeps.rows is None else max(keeps.rows, row_deletion.KEEP_JOBS_S)
        keep_s = min((kept_s for kept_s in (keeps.results, rows_s) if kept_s is not None), default=None)
        if keep_s is None:
            return
        before_s = self._clock() - keep_s

        def forget(connection: Connection, digest: str) -> None:
            if row_deletion.drop_bundle(connection, tenant.name, digest, before_s):
                self._home.bundle(tenant.name, digest).unlink(missing_ok=True)

        for digest in await self._store.read(lambda c: row_deletion.idle_bundles(c, tenant.name, before_s)):
            await self._store.write(partial(forget, digest=digest))

    async def _prune_jobs(self, tenant: Tenant, keep_s: float | None) -> None:
        """Delete rows of jobs, pipelines and events past retention; their usage stays in the sums."""
        if keep_s is None:
            return
        count, before_s = 0, self._clock() - max(keep_s, row_deletion.KEEP_JOBS_S)
        await self._drop_in_batches(lambda c: row_deletion.drop_events(c, tenant.name, before_s, _ROWS_AT_ONCE))
        await self._drop_in_batches(
            lambda c: row_deletion.drop_pipelines(c, tenant.name, before_s, _JOBS_AT_ONCE), _JOBS_AT_ONCE
        )
        due = partial(row_deletion.prunable_jobs, tenant=tenant.name, before_s=before_s, limit=_JOBS_AT_ONCE)
        while ids := await self._store.read(due):
            for job in ids:  # large parts first, a few rows at a time
                await _remove(self._home.job(job))
                await self._outputs.remeasure(job)
                await self._drop_in_batches(partial(row_deletion.drop_metrics, job=job, limit=_ROWS_AT_ONCE))
                await self._drop_in_batches(partial(row_deletion.drop_job_events, job=job, limit=_ROWS_AT_ONCE))
            await self._store.write(partial(row_deletion.drop_jobs, ids=ids))
            count += len(ids)
        await self._log_event(tenant, "rows", count, max(keep_s, row_deletion.KEEP_JOBS_S))

    async def _due(self, tenant: Tenant, kind: str, keep_s: float | None) -> AsyncIterator[str]:
        """The tenant's jobs past retention, each once."""
        while keep_s is not None:
            after, until_s = self._done_up_to.get((tenant.name, kind), row_deletion.FIRST), self._clock() - keep_s
            due = partial(
                row_deletion.ended_between, tenant=tenant.name, after=after, until_s=until_s, limit=_JOBS_AT_ONCE
            )
            ends = await self._store.read(due)
            for end in ends:
                yield end.job
                self._done_up_to[tenant.name, kind] = end
            if len(ends) < _JOBS_AT_ONCE:
                return

    async def _drop_in_batches(self, drop: Callable[[Connection], int], at_once: int = _ROWS_AT_ONCE) -> int:
        """Delete all rows with pauses in between for other writes; returns how many."""
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
    """Remove the working folders of ended jobs within one time slice; returns the paths that remain."""
    until_s, left = time.monotonic() + _SLICE_S, []
    for path in (folder / name for folder in folders for name in _names(folder) if name not in KEPT_FOLDERS):
        try:
            gone = Removal(path).continue_for(until_s - time.monotonic())
        except OSError:
            gone = False
        if not gone:
            left.append(path)
    return left


async def _remove(path: Path) -> bool:
    """Remove a path in slices; True if there was something. What cannot be removed is logged and stays."""
    if not await asyncio.to_thread(os.path.lexists, path):
        return False
    removal = Removal(path)
    try:
        while not await asyncio.to_thread(removal.continue_for, _SLICE_S):
            await asyncio.sleep(_PAUSE_S)
    except OSError as error:
        log.error("cannot remove a folder", folder=str(path), error=str(error))
        return False
    return True


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
