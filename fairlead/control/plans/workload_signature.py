"""Measures the memory, cores and network that one worker of a job uses, from the nodes' telemetry (M3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fairlead import wire


@dataclass(slots=True)
class WorkerUsage:
    """The use of one worker at its first and its latest observation."""

    first_s: float
    first_cpu_s: float
    first_bytes: int
    last_s: float
    cpu_s: float
    network_bytes: int

    @property
    def for_s(self) -> float:
        return self.last_s - self.first_s


class MeasuredUsage:
    """By job, the most memory of any of its workers, and average cores and bytes per second of one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._memory: dict[str, float] = {}
        self._workers: dict[str, dict[str, WorkerUsage]] = {}

    def observe(self, telemetry: wire.Telemetry) -> None:
        now_s = self._clock()
        for usage in telemetry.workers:
            self._memory[usage.job] = max(self._memory.get(usage.job, 0.0), float(usage.memory_bytes))
            workers = self._workers.setdefault(usage.job, {})
            seen = workers.get(usage.worker)
            if seen is None:
                workers[usage.worker] = WorkerUsage(
                    now_s, usage.cpu_s, usage.network_bytes, now_s, usage.cpu_s, usage.network_bytes
                )
            else:
                seen.last_s, seen.cpu_s, seen.network_bytes = now_s, usage.cpu_s, usage.network_bytes

    def facts(self, job: str) -> dict[str, float]:
        """The facts for a policy; empty before the first observation."""
        if job not in self._memory:
            return {}
        found = {"used_memory": self._memory[job]}
        workers = self._workers[job].values()
        seconds = sum(seen.for_s for seen in workers)
        if seconds > 0:
            found["used_cpu"] = sum(seen.cpu_s - seen.first_cpu_s for seen in workers) / seconds
            found["used_network"] = sum(seen.network_bytes - seen.first_bytes for seen in workers) / seconds
        return found

    def forget(self, job: str) -> None:
        self._memory.pop(job, None)
        self._workers.pop(job, None)
