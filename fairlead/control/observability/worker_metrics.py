"""Sums workers' use by tenant and node: one series per worker would grow without bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from fairlead import wire
from fairlead.control.observability import live_metrics, metric_families


class WorkerMeter:
    """Turns the nodes' telemetry into counters that never go back while workers come and go."""

    def __init__(self) -> None:
        self.tenants: Mapping[str, str] = {}  # tenant by running job
        self._counted: dict[tuple[str, str, str], tuple[float, int]] = {}  # node, job, worker -> cpu_s, network_bytes

    def take(self, node: str, telemetry: wire.Telemetry) -> None:
        """Count what these workers used since the last call; workers whose tenant is unknown yet are skipped."""
        present = set()
        for usage in telemetry.workers:
            tenant = self.tenants.get(usage.job)
            if tenant is None:
                continue
            key = (node, usage.job, usage.worker)
            present.add(key)
            cpu_s, network_bytes = self._counted.get(key, (0.0, 0))
            self._counted[key] = max(cpu_s, usage.cpu_s), max(network_bytes, usage.network_bytes)
            live_metrics.count(metric_families.WORKER_CPU, tenant, node, by=max(0.0, usage.cpu_s - cpu_s))
            live_metrics.count(
                metric_families.WORKER_NETWORK, tenant, node, by=max(0, usage.network_bytes - network_bytes)
            )
        for key in [key for key in self._counted if key[0] == node and key not in present]:
            del self._counted[key]


Sums = dict[tuple[str, str], float]


def worker_memory(nodes: Iterable[tuple[str, wire.Telemetry]], tenants: Mapping[str, str]) -> tuple[Sums, Sums]:
    """Number of workers and their memory, by tenant and node."""
    workers: Sums = defaultdict(float)
    used: Sums = defaultdict(float)
    for node, telemetry in nodes:
        for usage in telemetry.workers:
            key = tenants.get(usage.job, "unknown"), node
            workers[key] += 1
            used[key] += usage.memory_bytes
    return workers, used
