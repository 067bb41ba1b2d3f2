"""Measures the machine once while it is idle; the planner's estimates rest on these figures."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from fairlead.control.plans.gang_hardware import Machine
from fairlead.control.store import known_models
from fairlead.control.store.engine import Store
from fairlead.errors import LostLeadership, Unavailable
from fairlead.home import Home
from fairlead.profiling.profile_cache import local_device

log = structlog.get_logger()

LOOK_S = 5.0
IDLE_S = 30.0  # how long no worker may have run before a measurement
BUSY = 0.5  # load per core above which other processes would distort the times
PATIENCE_S = 300.0
AGAIN_S = 3600.0  # pause after a failed measurement


class StoredCalibration:
    """The machine's profile as ``fairlead profile`` stores it under the home."""

    def __init__(self, home: Home, *, shared: bool) -> None:
        self._file = home.root / "profiles" / "node.json"
        self._doubted = home.root / "profiles" / "node.doubted"
        self._shared = shared
        self._read: tuple[int, Machine] = (-1, Machine(None, shared))

    def machine(self) -> Machine:
        """The last measurement; read again only when the file has changed."""
        try:
            stamp = self._file.stat().st_mtime_ns
        except OSError:
            return Machine(None, self._shared)
        if self._read[0] != stamp:
            self._read = stamp, Machine(_read_measurement(self._file), self._shared)
        return self._read[1]

    def doubt(self) -> None:
        """The machine seems to have changed: measure it again when there is time."""
        with contextlib.suppress(OSError):  # a full disk; it will be noticed again
            self._doubted.parent.mkdir(parents=True, exist_ok=True)
            self._doubted.touch()

    @property
    def needs_measuring(self) -> bool:
        """True if there is something to measure."""
        return self._doubted.exists() or not self.machine().measured_here

    async def measure(self) -> bool:
        """Measure now, in a process of low priority; returns whether it worked."""
        part = self._file.with_suffix(".part")
        part.parent.mkdir(parents=True, exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            "nice", "-n", "10", sys.executable, "-m", "fairlead.profiling.node_profile", str(part),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(PATIENCE_S):
                code = await process.wait()
        except TimeoutError:
            code = None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)  # with its two helpers
                await process.wait()
        if code != 0 or _read_measurement(part) is None:
            return False
        part.replace(self._file)
        self._doubted.unlink(missing_ok=True)
        return True


def _read_measurement(file: Path) -> Mapping[str, Any] | None:
    """The measurement, if it has all that the planner needs."""
    try:
        found: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        local_device(found, 1)
        link = found["links"]["gloo"]
        return found if float(link["latency_s"]) >= 0 and float(link["bytes_per_s"]) > 0 else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


class IdleCalibration:
    """Waits until the machine is idle and then measures it."""

    def __init__(
        self, store: Store, gauge: StoredCalibration, working: Callable[[], bool], clock: Callable[[], float],
        load: Callable[[], float] = lambda: os.getloadavg()[0],
    ) -> None:  # fmt: skip
        self._store, self._gauge, self._working, self._clock, self._load = store, gauge, working, clock, load
        self._quiet_since_s: float | None = None
        self._not_before_s = 0.0

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if await self.due():
                await self._measure()

    async def due(self) -> bool:
        """True if the machine is idle, and a model is known for which a measurement would matter."""
        now_s = self._clock()
        if self._working() or self._load() > BUSY * (os.cpu_count() or 1):
            self._quiet_since_s = None
            return False
        if self._quiet_since_s is None:
            self._quiet_since_s = now_s
        if now_s - self._quiet_since_s < IDLE_S or now_s < self._not_before_s or not self._gauge.needs_measuring:
            return False
        try:
            return bool(await self._store.read(known_models.keys))
        except LostLeadership:
            raise
        except Unavailable:
            return False  # the store is away; there will be other idle times

    async def _measure(self) -> None:
        log.info("measuring this machine while it is idle")
        done = await self._gauge.measure()
        self._not_before_s = 0.0 if done else self._clock() + AGAIN_S
        if not done:
            log.warning("this machine could not be measured; see fairlead profile")
