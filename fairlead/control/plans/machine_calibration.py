"""Has the machine measured, once, while nobody works on it: what plans are reckoned with, and whether to trust it."""

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
IDLE_S = 30.0  # nobody has worked for so long: nobody is in the way, and nobody disturbs
BUSY = 0.5  # load per core above which times say more about others than about the machine
PATIENCE_S = 300.0
AGAIN_S = 3600.0  # after a measurement that went wrong


class StoredCalibration:
    """The profile of this machine as ``fairlead profile`` keeps it under the home."""

    def __init__(self, home: Home, *, shared: bool) -> None:
        self._file = home.root / "profiles" / "node.json"
        self._doubted = home.root / "profiles" / "node.doubted"
        self._shared = shared
        self._read: tuple[int, Machine] = (-1, Machine(None, shared))

    def machine(self) -> Machine:
        """As it was measured last; read again only when that has changed."""
        try:
            stamp = self._file.stat().st_mtime_ns
        except OSError:
            return Machine(None, self._shared)
        if self._read[0] != stamp:
            self._read = stamp, Machine(_read_measurement(self._file), self._shared)
        return self._read[1]

    def doubt(self) -> None:
        """It seems to be another than it was: measure it again when there is time."""
        with contextlib.suppress(OSError):  # a full disk; the next doubt comes
            self._doubted.parent.mkdir(parents=True, exist_ok=True)
            self._doubted.touch()

    @property
    def needs_measuring(self) -> bool:
        """Whether there is something to measure."""
        return self._doubted.exists() or not self.machine().measured_here

    async def measure(self) -> bool:
        """Measure now, in a process of its own that gives way to everybody; whether it worked."""
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
                    os.killpg(process.pid, 9)  # with the two between which it measures
                await process.wait()
        if code != 0 or _read_measurement(part) is None:
            return False
        part.replace(self._file)
        self._doubted.unlink(missing_ok=True)
        return True


def _read_measurement(file: Path) -> Mapping[str, Any] | None:
    """What was measured, if it is all that the planner wants to know."""
    try:
        found: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        local_device(found, 1)
        link = found["links"]["gloo"]
        return found if float(link["latency_s"]) >= 0 and float(link["bytes_per_s"]) > 0 else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


class IdleCalibration:
    """Watches for a quiet time and uses it."""

    def __init__(
        self, store: Store, gauge: StoredCalibration, working: Callable[[], bool], clock: Callable[[], float],
        load: Callable[[], float] = lambda: os.getloadavg()[0],
    ) -> None:  # fmt: skip
        self._store, self._gauge, self._working, self._clock, self._load = store, gauge, working, clock, load
        self._quiet_since_s: float | None = None
        self._not_before_s = 0.0

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            if await self.due():
                await self._measure()

    async def due(self) -> bool:
        """Whether it is quiet, and somebody has trained a model for which it would matter."""
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
            return False  # the store is away; there will be other quiet times

    async def _measure(self) -> None:
        log.info("measuring this machine while it is quiet")
        done = await self._gauge.measure()
        self._not_before_s = 0.0 if done else self._clock() + AGAIN_S
        if not done:
            log.warning("this machine could not be measured; see fairlead profile")
