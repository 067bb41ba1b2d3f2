"""Measures disk use by tenant, in a thread when somebody scrapes and rarely enough to cost next to nothing."""

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
PAUSE_FACTOR = 100.0  # pause after a measurement, times its duration: at most 1 % of a core
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
    """Caches the last measurement."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._last = DiskUsage()
        self._next_s = 0.0
        self._measuring: asyncio.Task[None] | None = None

    @property
    def due(self) -> bool:
        """True if the next read starts a measurement, which needs the tenant of each job."""
        return self._measuring is None and time.monotonic() >= self._next_s

    async def read(self, tenants: Mapping[str, str]) -> DiskUsage:
        """The newest measurement. Waits for the first one; later ones run in the background."""
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
    """Walk over the home. Skips files that disappear meanwhile and does not follow links."""
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
    except OSError:  # gone or unreadable: not counted
        return []


def _size(folder: Path) -> int:
    """Size of a folder, bounded in depth and number: a tenant may nest folders endlessly."""
    return disk_usage.measure(folder).total_bytes


def _file_size(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512  # allocated bytes, not the apparent size
    except OSError:
        return 0
