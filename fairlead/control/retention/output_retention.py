"""Limits the disk space that a tenant's ended jobs keep together by removing the oldest outputs.

Logs and output of an ended job do not change, so each is measured once at its end and the size is stored. A job without
files keeps no folder. Running jobs are not touched: their node enforces their limits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from fairlead.agent.node import disk_usage
from fairlead.control.records import Tenant
from fairlead.control.store import audit, events, retained_outputs, row_deletion
from fairlead.control.store.engine import Store
from fairlead.control.store.retained_outputs import RetainedOutput
from fairlead.control.store.row_deletion import JobEnd
from fairlead.home import Home
from fairlead.specs import Policy
from fairlead.units import shown_size

KEPT_FOLDERS = frozenset({"logs", "output"})  # kept of an ended job's folder; the rest was needed only while it ran
_JOBS_AT_ONCE = 50


def outputs_to_remove(ends: Sequence[tuple[JobEnd, int]], held: int, allowed_bytes: int) -> list[tuple[JobEnd, int]]:
    """The oldest outputs to remove until the total is within ``allowed_bytes``."""
    found = []
    for end, size in sorted(ends):
        if held <= allowed_bytes:
            break
        held -= size
        if size:
            found.append((end, size))
    return found


class OutputRetention:
    """Tracks what all tenants' ended jobs keep; runs on the leader."""

    def __init__(
        self, store: Store, home: Home, clock: Callable[[], float], remove: Callable[[Path], Awaitable[bool]]
    ) -> None:
        self._store, self._home, self._clock, self._remove = store, home, clock, remove
        self._held: dict[str, int] | None = None  # bytes by tenant, loaded on first use

    async def record_ended(self, ended: Iterable[str]) -> None:
        """Measure what these ended jobs left and store it; empty folders are removed."""
        ids = list(ended)
        ends = await self._store.read(partial(row_deletion.ends_of, ids=ids))
        settled = await asyncio.to_thread(lambda: [self._clean_and_measure(end.job) for _, end in ends])
        found = [(owner, end, what) for (owner, end), what in zip(ends, settled, strict=True)]
        left = [
            RetainedOutput(end.job, owner, end.finished_s, parts, size) for owner, end, (parts, size) in found if parts
        ]

        def work(connection: Connection) -> dict[str, int]:
            retained_outputs.record_outputs(connection, left)
            return retained_outputs.bytes_by_tenant(connection) if self._held is None else {}

        if left:
            known = await self._store.read(partial(retained_outputs.measured_among, ids=[one.job for one in left]))
            first = await self._store.write(work)
            if self._held is None:
                self._held = first
            else:
                for one in left:
                    if one.job not in known:
                        self._held[one.tenant] = self._held.get(one.tenant, 0) + one.size_bytes

    def _clean_and_measure(self, job: str) -> tuple[tuple[str, ...], int]:
        """The job's remaining folders and their size, after removing empty ones."""
        folder = self._home.job(job)
        _drop_empty_files(folder / "logs")
        for part in KEPT_FOLDERS:
            _drop_empty(folder / part)
        _drop_empty(folder)
        parts = tuple(part for part in sorted(KEPT_FOLDERS) if (folder / part).is_dir())
        return parts, self._measure(job) if parts else 0

    def _measure(self, job: str) -> int:
        held = disk_usage.measure(self._home.job(job))
        return sum(held.bytes_by_part.get(part, 0) for part in KEPT_FOLDERS)

    async def remeasure(self, job: str) -> None:
        """Measure a job again after something was removed."""
        size = await asyncio.to_thread(self._measure, job)
        changed = await self._store.write(partial(retained_outputs.resize, job=job, size_bytes=size))
        if changed is not None and self._held is not None:
            tenant, less = changed
            self._held[tenant] = self._held.get(tenant, 0) - less

    async def enforce_quota(self, tenants: Sequence[Tenant]) -> None:
        """Remove the oldest outputs of every tenant that keeps too much."""
        if self._held is None:
            self._held = await self._store.read(retained_outputs.bytes_by_tenant)
        for tenant in tenants:
            allowed_bytes = Policy.model_validate(dict(tenant.policy)).kept
            while self._held.get(tenant.name, 0) > allowed_bytes:
                oldest = await self._store.read(
                    partial(retained_outputs.oldest_outputs, tenant=tenant.name, limit=_JOBS_AT_ONCE)
                )
                for end, size in outputs_to_remove(oldest, self._held[tenant.name], allowed_bytes):
                    await self._remove_output(tenant, end, size, allowed_bytes)
                if not oldest:
                    break

    async def _remove_output(self, tenant: Tenant, end: JobEnd, freed: int, allowed_bytes: int) -> None:
        """Log the removal, then remove: after a crash it is repeated, and never silent."""
        now_s = self._clock()
        text = (
            f"logs and results of {end.job} ({shown_size(freed)}) were removed, as the oldest: the ended jobs of "
            f"{tenant.name} held more than the {shown_size(allowed_bytes)} that they may keep together"
        )
        facts = {"what": "logs and results", "reason": "disk", "freed_bytes": freed, "allowed_bytes": allowed_bytes}
        await self._store.write(
            lambda c: events.append(c, time_s=now_s, kind="pruned", text=text, tenant=tenant.name, job=end.job,
                                    facts=facts)
        )  # fmt: skip
        await self._store.write(
            lambda c: audit.append(c, time_s=now_s, actor="platform", action="job.prune", target=end.job, detail=facts,
                                   tenant=tenant.name)
        )  # fmt: skip
        await self._remove(self._home.job(end.job))
        await self._store.write(partial(retained_outputs.resize, job=end.job, size_bytes=0))
        if self._held is not None:
            self._held[tenant.name] -= freed


def _drop_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not empty, or not a folder
        folder.rmdir()


def _drop_empty_files(folder: Path) -> None:
    """Remove the empty logs of workers that wrote nothing."""
    with contextlib.suppress(OSError):
        here = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            with os.scandir(here) as entries:
                files = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
            for file in files:
                if file.stat(follow_symlinks=False).st_size == 0:
                    os.unlink(file.name, dir_fd=here)
        finally:
            os.close(here)
