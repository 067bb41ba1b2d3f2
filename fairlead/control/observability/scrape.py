"""Answers one scrape: values from the store, the controller and the disk, plus all live counters."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import Connection

from fairlead import __version__
from fairlead.cluster import NodeState
from fairlead.control.accounting.budgets import HOUR_S, Spending, spendings, spent_budgets
from fairlead.control.accounting.fairness import fairness_view
from fairlead.control.accounting.report import fairness
from fairlead.control.observability import live_metrics, worker_metrics
from fairlead.control.observability import metric_families as f
from fairlead.control.observability.disk_metrics import DiskGauge, DiskUsage
from fairlead.control.observability.event_metrics import EventFollower
from fairlead.control.reconcile.loop import Controller
from fairlead.control.records import JobPhase, Tenant
from fairlead.control.store import job_counts, ledger, tenants, usage_spans
from fairlead.control.store.engine import Store
from fairlead.control.tenant_tree import tenant_shares
from fairlead.home import Home

FAIRNESS_S = 3600.0
FAIRNESS_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """What a scrape reads from the store at one moment."""

    tenants: list[Tenant]
    counts: Mapping[str, Mapping[str, int]]
    oldest: Mapping[str, float]
    device_s: Mapping[str, float]
    spendings: Mapping[str, Spending]
    owners: Mapping[str, str]


class Samples(Collector):
    """Samples gathered for one exposition."""

    def __init__(self) -> None:
        self._found: dict[str, Metric] = {}

    def put(self, family: f.MetricFamily, value: float, *labels: str) -> None:
        """Add one sample; labels with too many values are merged into "other"."""
        metric = self._found.get(family.name)
        if metric is None:
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = self._found[family.name] = kind(family.name, family.help, labels=family.labels)
        assert isinstance(metric, CounterMetricFamily | GaugeMetricFamily)
        metric.add_metric(live_metrics.bounded_labels(family, labels) if labels else (), value)

    def collect(self) -> Iterable[Metric]:
        return self._found.values()


class Scraper:
    """Answers ``GET /metrics``."""

    def __init__(self, store: Store, controller: Controller, follower: EventFollower, home: Home) -> None:
        self._store = store
        self._controller = controller
        self._follower = follower
        self._disk = DiskGauge(home)
        self._fairness: tuple[float, float | None] = (0.0, None)

    async def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        await self._follower.catch_up()
        stored = await self._store.read(self._read)
        disk = await self._disk.read(stored.owners)
        found = Samples()
        self._jobs(found, stored)
        self._leadership(found)
        self._nodes(found)
        self._tenants(found, stored)
        _disk(found, disk)
        found.put(f.BUILD, 1.0, __version__, platform.python_version())
        registry = CollectorRegistry()
        registry.register(found)
        return generate_latest(live_metrics.REGISTRY) + generate_latest(registry)

    def _read(self, connection: Connection) -> StoreSnapshot:
        now_s = self._controller.clock()
        known = tenants.all_tenants(connection)
        if not 0.0 <= now_s - self._fairness[0] < FAIRNESS_EVERY_S:
            used = usage_spans.totals_by_tenant(connection, now_s - FAIRNESS_S, now_s)
            self._fairness = now_s, fairness(known, used)
        return StoreSnapshot(
            known,
            job_counts.counts_by_tenant(connection),
            job_counts.waiting_since(connection),
            ledger.totals(connection, 0.0, now_s),
            spendings(connection, known, now_s),
            job_counts.tenant_by_job(connection) if self._disk.due else {},
        )

    def _jobs(self, found: Samples, stored: StoreSnapshot) -> None:
        for tenant, phases in stored.counts.items():
            for phase in JobPhase:
                found.put(f.JOBS, phases.get(phase, 0), tenant, phase)
        now_s, owners = self._controller.clock(), self._follower.counts.tenants
        waiting = Counter(
            (owners[job], hold.reason.code) for job, hold in self._controller.last_round.holds.items() if job in owners
        )
        for (tenant, reason), number in waiting.items():
            found.put(f.PENDING, number, tenant, reason)
        for team in stored.tenants:
            since_s = stored.oldest.get(team.name)
            found.put(f.PENDING_AGE, 0.0 if since_s is None else max(0.0, now_s - since_s), team.name)

    def _leadership(self, found: Samples) -> None:
        found.put(f.LEADER, float(self._store.epoch is not None))
        found.put(f.EPOCH, float(self._store.epoch or 0))
        found.put(f.STORE_QUEUE, float(self._store.queued_writes))
        found.put(f.LAST_ROUND, self._controller.last_round.decided_s)

    def _nodes(self, found: Samples) -> None:
        controller, facts = self._controller, self._controller.backend.facts()
        states = Counter(node.state for node in controller.nodes.values())
        for state in NodeState:
            found.put(f.NODES, states[state], state)
        held = Counter(
            w.node for of_job in controller.gang_registry.workers.values() for w in of_job.values() if w.holds_device
        )
        for name, node in sorted(controller.nodes.items()):
            more = facts.get(name, {})
            found.put(f.NODE_UP, float(node.state is not NodeState.LOST), name)
            found.put(f.NODE_INFO, 1.0, name, node.device_type, str(more.get("isolation", "none")))
            for state in NodeState:
                found.put(f.NODE_STATUS, float(node.state is state), name, state)
            found.put(f.DEVICES, node.devices, name, node.device_type)
            found.put(f.DEVICES_USED, held[name], name, node.device_type)
            found.put(f.NODE_CORES, node.capacity.get("cpu", 0.0), name)
            found.put(f.NODE_MEMORY, node.capacity.get("memory", 0.0), name)
            found.put(f.NODE_ASLEEP, float(node.asleep), name)
            found.put(f.NODE_WARM, float(bool(more.get("warm", False))), name)
        self._telemetry(found)

    def _telemetry(self, found: Samples) -> None:
        for name, body in self._controller.telemetry.items():
            found.put(f.NODE_CPU, body.cpu_fraction, name)
            found.put(f.NODE_MEMORY_USED, body.memory_bytes, name)
            for family, told in ((f.NODE_TEMPERATURE, body.temperature_c), (f.NODE_POWER, body.power_w)):
                if told is not None:
                    found.put(family, told, name)
        alive, used = worker_metrics.worker_memory(self._controller.telemetry.items(), self._follower.counts.tenants)
        for key, number in alive.items():
            found.put(f.WORKERS, number, *key)
        for key, amount in used.items():
            found.put(f.WORKER_MEMORY, amount, *key)

    def _tenants(self, found: Samples, stored: StoreSnapshot) -> None:
        controller, owners = self._controller, self._follower.counts.tenants
        held: Counter[str] = Counter()
        for job, of_job in controller.gang_registry.workers.items():
            held[owners.get(job, "unknown")] += sum(fact.holds_device for fact in of_job.values())
        devices = sum(node.devices for node in controller.nodes.values())
        barred = spent_budgets(stored.tenants, stored.spendings).keys()
        claims = tenant_shares(stored.tenants, controller.last_round.entitlements, held, devices, barred)
        for team in stored.tenants:
            name = team.name
            found.put(f.TENANT_WEIGHT, team.weight, name)
            if team.quota is not None:
                found.put(f.TENANT_QUOTA, team.quota, name)
            for family, by_type in ((f.TENANT_SURE, team.guarantee), (f.TENANT_MOST, team.most)):
                for kind, number in by_type.items():
                    found.put(family, number, name, kind)
            found.put(f.TENANT_ENTITLED, claims[name].entitlement, name)
            found.put(f.TENANT_BORROWED, claims[name].borrowed, name)
            found.put(f.TENANT_DEVICES, held[name], name)
            found.put(f.TENANT_SHARE, held[name] / devices if devices else 0.0, name)
            found.put(f.DEVICE_TIME, stored.device_s.get(name, 0.0), name)
            if (spending := stored.spendings.get(name)) is not None:
                found.put(f.TENANT_BUDGET, spending.device_hours * HOUR_S, name)
                found.put(f.TENANT_SPENT, spending.used_hours * HOUR_S, name)
        if self._fairness[1] is not None:
            found.put(f.FAIRNESS, self._fairness[1])
        if (balance := fairness_view(controller.last_round.memory, None)) is not None:
            found.put(f.BALANCE, balance.index)
            found.put(f.CORRECTS, float(balance.corrects))


def _disk(found: Samples, disk: DiskUsage) -> None:
    for (tenant, kind), size in disk.by_tenant.items():
        found.put(f.TENANT_DISK, size, tenant, kind)
    if disk.store is not None:
        found.put(f.STORE_SIZE, disk.store)
    found.put(f.PLATFORM_LOGS, disk.platform_logs)
    found.put(f.DISK_SIZE, disk.size)
    found.put(f.DISK_FREE, disk.free)
