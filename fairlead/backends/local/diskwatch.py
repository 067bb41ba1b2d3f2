"""Looks from time to time whether the jobs of a node fill more of the disk than they may, and ends those that do."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from fairlead import wire
from fairlead.backends.local import disk, processes
from fairlead.units import shown_size

_EVERY_S = 1.0
_MOST_IN_MEMORY = 10_000  # files: a file system in memory has only so many, for all
_REST = 20  # times as long as the look took: a job with many files costs a twentieth of a core, not more

log = logging.getLogger("fairlead.node")


class Suspect(Protocol):
    """A worker, as far as its disk is concerned."""

    job: str

    @property
    def spec(self) -> wire.WorkerSpec | None: ...
    def pids(self) -> set[int]: ...
    def overstep(self, cause: str, detail: str) -> None: ...


class DiskWatch:
    """One node's. Of several nodes on a machine that share a job, one looks at its folder: who has the lock."""

    def __init__(self, locks: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._locks = locks
        self._clock = clock
        self._held: dict[str, int] = {}  # job -> descriptor of its lock
        self._due_s: dict[str, float] = {}
        self._looking: asyncio.Task[None] | None = None

    def look(self, workers: Iterable[Suspect]) -> None:
        """Look at what is due, behind the back of the node manager, which has more urgent things to do."""
        if self._looking is not None and not self._looking.done():
            return
        by_job: dict[str, list[Suspect]] = {}
        for worker in workers:
            if worker.spec is not None:
                by_job.setdefault(worker.job, []).append(worker)
        self._forget(by_job)
        due = {job: found for job, found in by_job.items() if self._due_s.get(job, 0.0) <= self._clock()}
        if due:
            self._looking = asyncio.create_task(self._look_at(due))
            self._looking.add_done_callback(_log_failure)

    async def _look_at(self, due: Mapping[str, list[Suspect]]) -> None:
        for job, workers in due.items():
            spec = workers[0].spec
            if spec is None:
                continue
            begun_s = self._clock()
            whole = self._has_lock(job)
            held = await asyncio.to_thread(_measure, spec, [worker.pids() for worker in workers], whole=whole)
            self._due_s[job] = self._clock() + max(_EVERY_S, _REST * (self._clock() - begun_s))
            complaint = held.complaint(spec.disk_bytes, spec.tenant) or await asyncio.to_thread(_in_memory, spec)
            if complaint is not None:
                for worker in workers:
                    worker.overstep("disk-full", complaint)

    def _has_lock(self, job: str) -> bool:
        if job not in self._held:
            descriptor = processes.lock(self._locks / f"disk-{job}.lock")
            if descriptor is None:
                return False
            self._held[job] = descriptor
        return True

    def _forget(self, living: Mapping[str, object]) -> None:
        """Of jobs that have no worker here any more nothing is kept."""
        for job in self._held.keys() - living.keys():
            (self._locks / f"disk-{job}.lock").unlink(missing_ok=True)
            os.close(self._held.pop(job))
        for job in self._due_s.keys() - living.keys():
            del self._due_s[job]


def _measure(spec: wire.WorkerSpec, pids: Iterable[set[int]], *, whole: bool) -> disk.Held:
    """In a thread: the whole folder, or only what this node's own workers hold open of it after deleting it."""
    folder = Path(spec.folder)
    device = folder.stat().st_dev
    deleted = disk.deleted_bytes(set().union(*pids), device)
    if whole:
        return disk.measure(folder, deleted)
    return disk.Held({disk.DELETED: deleted})


def _in_memory(spec: wire.WorkerSpec) -> str | None:
    """Why what the job keeps in this node's memory is too much; it is all jobs', and only control groups count it."""
    folder = Path(spec.memory_folder)
    held = disk.measure(folder)
    if held.problem is not None or held.files > _MOST_IN_MEMORY:
        return held.problem or f"it keeps more than {_MOST_IN_MEMORY} files in memory; only snapshots belong there"
    allowed_bytes = None if spec.pool else spec.memory_bytes  # what others left there is not counted against it
    if allowed_bytes is None and held.files:
        allowed_bytes = shutil.disk_usage(folder).total // 2
    if allowed_bytes is None or held.total_bytes <= allowed_bytes:
        return None
    used, allowed = shown_size(held.total_bytes), shown_size(allowed_bytes)
    return f"its snapshots in memory hold {used}, and {allowed} are allowed; ask for more: resources.memory"


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("what jobs hold on the disk could not be measured: %s", error)
