"""Measures cpu, memory and network of a node's workers, from their cgroups or their processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping

import psutil

from fairlead import wire
from fairlead.agent.node import network_usage
from fairlead.agent.node.sensors import Sensors
from fairlead.agent.node.worker import Worker


class Meter:
    """Reads usage; cpu fractions are since the previous reading."""

    def __init__(self, cpu: float, node: str = "") -> None:
        self._cpu = cpu
        self._read_s = time.monotonic()
        self._before: dict[str, float] = {}
        self._traffic: dict[str, network_usage.TrafficCounter] = {}
        self._sensors = Sensors.of(node)

    def read(self, workers: Iterable[Worker], *, warm: bool) -> wire.Telemetry:
        """The usage of these workers, and the fraction of the node's cores since the previous reading."""
        now_s = time.monotonic()
        alive = [worker for worker in workers if worker.pid and worker.phase != "gone"]
        bytes_by_inode = network_usage.tcp_bytes(worker.pid for worker in alive)
        usages = {worker.key: self._usage(worker, bytes_by_inode) for worker in alive}
        spent = {key: usage.cpu_s for key, usage in usages.items()}
        used_s = sum(max(0.0, cpu_s - self._before.get(key, 0.0)) for key, cpu_s in spent.items())
        fraction = used_s / max(1e-6, (now_s - self._read_s) * self._cpu)
        self._read_s, self._before = now_s, spent
        self._traffic = {key: count for key, count in self._traffic.items() if key in usages}
        total = sum(usage.memory_bytes for usage in usages.values())
        return wire.Telemetry(round(min(1.0, fraction), 4), total, list(usages.values()), warm, *self._sensors.read())

    def _usage(self, worker: Worker, bytes_by_inode: Mapping[int, int]) -> wire.WorkerUsage:
        pids = worker.group.pids() or _tree(worker.pid)
        if worker.group.folders:
            cpu_s, memory = worker.group.cpu_s(), worker.group.memory_bytes()
        else:
            cpu_s, memory = _of_processes(pids)
        count = self._traffic.setdefault(worker.key, network_usage.TrafficCounter())
        count.update(pids, bytes_by_inode)
        return wire.WorkerUsage(worker.job, worker.name, cpu_s, memory, count.total)


def _tree(pid: int) -> set[int]:
    with contextlib.suppress(psutil.Error):
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    return {pid}


def _of_processes(pids: Iterable[int]) -> tuple[float, int]:
    cpu_s, memory = 0.0, 0
    for pid in pids:
        with contextlib.suppress(psutil.Error):  # the process has ended
            process = psutil.Process(pid)
            times = process.cpu_times()
            cpu_s += times.user + times.system
            memory += process.memory_info().rss
    return cpu_s, memory
