"""Checks the disk and memory-folder usage of a node's jobs from time to time and ends jobs over their limit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fairlead.agent.node import disk_usage, processes
from fairlead.local_wire import PlacedSpec
from fairlead.units import shown_size

_EVERY_S = 1.0
_MOST_IN_MEMORY = 10_000  # files; inodes of the shared tmpfs are limited
_REST = 20  # pause as a multiple of the check's duration: a check costs at most 5 % of a core
_REST_GROWING = 2  # the same while the disk fills so fast that the job may be over its limit
_STALE_S = 60.0  # a usage file older than this is of a node that is gone

log = logging.getLogger("fairlead.node")


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Free space of a file system, or what a job may still use of it."""

    bytes: int
    files: int

    def less(self, other: DiskSpace) -> DiskSpace:
        return DiskSpace(self.bytes - other.bytes, self.files - other.files)


def free_space(folder: str) -> DiskSpace:
    """Free space of the folder's file system; one system call."""
    found = os.statvfs(folder)
    return DiskSpace(found.f_bfree * found.f_frsize, found.f_ffree)


class WatchedWorker(Protocol):
    """What the watch needs of a worker."""

    job: str

    @property
    def spec(self) -> PlacedSpec | None: ...
    def pids(self) -> set[int]: ...
    def kill_over_limit(self, cause: str, detail: str) -> None: ...


@dataclass(slots=True)
class _Schedule:
    """When a job is checked next, and what the last check found."""

    due_s: float = 0.0
    soon_s: float = 0.0  # earliest time if free space has shrunk by more than the job may still use
    free: DiskSpace | None = None  # of the file system at the begin of the last check
    left: DiskSpace = DiskSpace(0, 0)  # what the job could still use then
    running: asyncio.Task[None] | None = None


_Check = Callable[[_Schedule, PlacedSpec, Sequence[WatchedWorker]], Awaitable[str | None]]


class DiskWatch:
    """Checks the jobs of one node. Of several nodes on a machine that share a job, the one with the lock measures it.

    A check takes time per file, and the next one waits a multiple of that. What a job writes meanwhile shows as less
    free space: when that shrinks by more than the job may still use, the next check comes soon.
    """

    def __init__(
        self, locks: Path, clock: Callable[[], float] = time.monotonic, room: Callable[[str], DiskSpace] = free_space
    ) -> None:
        self._locks = locks
        self._clock, self._room = clock, room
        self._name = uuid.uuid4().hex[:8]  # among the nodes of the machine
        self._held: dict[str, int] = {}  # job -> descriptor of its lock
        self._schedules: dict[tuple[str, _Check], _Schedule] = {}  # by job and what is looked at

    def check(self, workers: Iterable[WatchedWorker]) -> None:
        """Start the checks that are due, each as a task of its own."""
        by_job: dict[str, list[WatchedWorker]] = {}
        for worker in workers:
            if worker.spec is not None:
                by_job.setdefault(worker.job, []).append(worker)
        self._forget(by_job)
        for job, found in by_job.items():
            spec = found[0].spec
            for check in (self._check_disk, _check_memory):
                schedule = self._schedules.setdefault((job, check), _Schedule())
                if spec is not None and schedule.running is None and self._is_due(schedule, spec):
                    schedule.running = asyncio.create_task(self._run_check(schedule, check, spec, found))
                    schedule.running.add_done_callback(_log_failure)

    def _is_due(self, schedule: _Schedule, spec: PlacedSpec) -> bool:
        now_s = self._clock()
        if schedule.due_s <= now_s:
            return True
        if schedule.free is None or now_s < schedule.soon_s:
            return False
        with contextlib.suppress(OSError):  # it is being removed
            grown = schedule.free.less(self._room(spec.folder))
            return grown.bytes > schedule.left.bytes or grown.files > schedule.left.files
        return False

    async def _run_check(
        self, schedule: _Schedule, check: _Check, spec: PlacedSpec, workers: Sequence[WatchedWorker]
    ) -> None:
        begun_s = self._clock()
        try:
            complaint = await check(schedule, spec, workers)
            now_s = self._clock()
            took_s = now_s - begun_s
            schedule.due_s, schedule.soon_s = (now_s + max(_EVERY_S, rest * took_s) for rest in (_REST, _REST_GROWING))
            if complaint is not None:
                for worker in workers:
                    worker.kill_over_limit("disk-full", complaint)
        finally:
            schedule.running = None

    async def _check_disk(self, schedule: _Schedule, spec: PlacedSpec, workers: Sequence[WatchedWorker]) -> str | None:
        """Why the job, summed over its nodes, is over its disk limit; None when it is not."""
        schedule.free = self._room(spec.folder)
        whole = self._has_lock(spec.job)
        held = await asyncio.to_thread(_measure, spec, [worker.pids() for worker in workers], whole=whole)
        if whole:
            held.add(disk_usage.DELETED, self._usage_of_other_nodes(spec.job))
        else:
            self._publish_usage(spec.job, held.total_bytes)
        schedule.left = DiskSpace(spec.disk_bytes, disk_usage.MOST_FILES).less(DiskSpace(held.total_bytes, held.files))
        return held.limit_problem(spec.disk_bytes, spec.tenant)

    # ------------------------------------------------------------ other nodes of the machine

    def _has_lock(self, job: str) -> bool:
        if job not in self._held:
            descriptor = processes.lock(self._locks / f"disk-{job}.lock")
            if descriptor is None:
                return False
            self._held[job] = descriptor
            self._usage_file(job).unlink(missing_ok=True)
        return True

    def _usage_file(self, job: str) -> Path:
        """File in which this node reports its workers' deleted open files to the node with the lock."""
        return self._locks / f"disk-{job}.{self._name}.lock"

    def _publish_usage(self, job: str, held_bytes: int) -> None:
        fresh = self._usage_file(job).with_suffix(".new.lock")
        try:
            fresh.write_text(str(held_bytes))
            fresh.replace(self._usage_file(job))
        except OSError as error:  # a full disk: the usage here then counts on this node only
            log.warning("%s: its usage on this node could not be reported to the other nodes: %s", job, error)

    def _usage_of_other_nodes(self, job: str) -> int:
        total_bytes = 0
        for path in self._locks.glob(f"disk-{job}.????????.lock"):
            with contextlib.suppress(OSError, ValueError):  # removed meanwhile
                if time.time() - path.stat().st_mtime < _STALE_S:
                    total_bytes += int(path.read_text())
        return total_bytes

    def _forget(self, living: Mapping[str, object]) -> None:
        """Drop locks, usage files and schedules of jobs without workers here."""
        for job in self._held.keys() - living.keys():
            (self._locks / f"disk-{job}.lock").unlink(missing_ok=True)
            os.close(self._held.pop(job))
        for job, check in [each for each in self._schedules if each[0] not in living]:
            self._usage_file(job).unlink(missing_ok=True)
            del self._schedules[job, check]


def _measure(spec: PlacedSpec, pids: Iterable[set[int]], *, whole: bool) -> disk_usage.DiskUsage:
    """Measure the whole folder, or only the deleted files that this node's workers have open. Runs in a thread."""
    folder = Path(spec.folder)
    device = folder.stat().st_dev
    deleted = disk_usage.deleted_bytes(set().union(*pids), device)
    if whole:
        return disk_usage.measure(folder, deleted)
    return disk_usage.DiskUsage({disk_usage.DELETED: deleted})


async def _check_memory(schedule: _Schedule, spec: PlacedSpec, workers: Sequence[WatchedWorker]) -> str | None:
    return await asyncio.to_thread(_in_memory, spec)


def _in_memory(spec: PlacedSpec) -> str | None:
    """Why the job's memory folder on this node is over its limit; None when it is not."""
    folder = Path(spec.memory_folder)
    held = disk_usage.measure(folder, most_files=_MOST_IN_MEMORY)
    if held.problem is not None or held.files > _MOST_IN_MEMORY:
        return held.problem or f"it has more than {_MOST_IN_MEMORY} files in memory; only snapshots belong there"
    allowed_bytes = None if spec.pool else spec.memory_bytes  # a pool's folder holds other jobs' files too
    if allowed_bytes is None and held.files:
        allowed_bytes = shutil.disk_usage(folder).total // 2
    if allowed_bytes is None or held.total_bytes <= allowed_bytes:
        return None
    used, allowed = shown_size(held.total_bytes), shown_size(allowed_bytes)
    return f"its snapshots in memory take {used} of {allowed} allowed; raise resources.memory"


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the disk usage of a job could not be measured: %s", error)
