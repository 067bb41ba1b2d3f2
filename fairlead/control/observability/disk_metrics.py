"""What lies on disk: measured in a thread when somebody scrapes, and not so often that it would cost anything."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.agent.node import disk_usage
from fairlead.home import Home

EVERY_S = 60.0
PAUSE_FACTOR = (
    100.0  # pause between two measurements, in lengths of one: walking over the files takes 1 % of a core at most
)
KINDS = ("logs", "output", "snapshots")


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes on disk at one moment."""

    by_tenant: Mapping[tuple[str, str], int] = field(default_factory=dict)  # tenant, kind
    store: int | None = None
    platform_logs: int = 0
    size: int = 0
    free: int = 0


class DiskGauge:
    """Remembers the last measurement for a while."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._last = DiskUsage()
        self._next_s = 0.0
        self._measuring: asyncio.Task[None] | None = None

    @property
    def due(self) -> bool:
        """Whether the next reading begins a measurement, which needs to know whose the jobs are."""
        return self._measuring is None and time.monotonic() >= self._next_s

    async def read(self, tenants: Mapping[str, str]) -> DiskUsage:
        """The newest measurement; the first one is waited for, later ones are made behind."""
        if self.due and (tenants or not self._last.size):
            self._measuring = asyncio.create_task(self._measure(tenants))
        if self._measuring is not None and not self._last.size:
            await asyncio.shield(self._measuring)
        return self._last

    async def _measure(self, tenants: Mapping[str, str]) -> None:
        began_s = time.monotonic()
        try:
            self._last = await asyncio.to_thread(measure, self._home, tenants)
        finally:
            took_s = time.monotonic() - began_s
            self._next_s = time.monotonic() + max(EVERY_S, PAUSE_FACTOR * took_s)
            self._measuring = None


def measure(home: Home, tenants: Mapping[str, str]) -> DiskUsage:
    """Walk over the home. Files that go away meanwhile are not counted, links are not followed."""
    by_tenant: Counter[tuple[str, str]] = Counter()
    for job in _folders(home.jobs):
        tenant = tenants.get(job.name, "unknown")
        for part in _folders(job):
            by_tenant[tenant, part.name if part.name in KINDS else "other"] += _size(part)
    for folder in _folders(home.bundles):
        by_tenant[folder.name, "bundles"] += _size(folder)
    files = [path for path in home.root.glob(f"{home.database.name}*") if path.is_file()]
    whole = shutil.disk_usage(home.root)
    store = sum(_file_size(path) for path in files) if files else None
    return DiskUsage(by_tenant, store, _size(home.logs), whole.total, whole.free)


def _folders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # gone, or not ours to read: then it is not ours to count
        return []


def _size(folder: Path) -> int:
    """As far as it can be measured: a tenant may have made it as deep and as wide as it likes."""
    return disk_usage.measure(folder).total_bytes


def _file_size(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512  # what it takes, not what it claims
    except OSError:
        return 0
