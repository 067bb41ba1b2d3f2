"""What jobs were seen to take, from the nodes' telemetry: memory, cores and network of one worker (M3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from fairlead import wire


@dataclass(slots=True)
class WorkerUsage:
    """One worker: when it was first looked at and what it had used by then, and what it has used by now."""

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
    """By job, the most memory that any of its workers had, and cores and bytes per second of one on average."""

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
        """As a policy reads them; empty before anything was seen."""
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
