"""Counts during a simulation: devices in use, and the service that each tenant had and was due."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fairlead.cluster import Node
from fairlead.scheduling.market.policy import DEFAULT_CONFIG
from fairlead.scheduling.shares import entitlements
from fairlead.scheduling.state import TenantState
from fairlead.simulation.active_job import ActiveJob
from fairlead.simulation.outcome import Window

DAY_S = 86_400.0
TINY = 1e-9
HALF_LIFE_S = DEFAULT_CONFIG.forget_s
"""After this time a tenant's service counts half, as on the platform."""


class UsageTally:
    """Sums over the steps of a simulation."""

    def __init__(
        self, tenants: Sequence[TenantState], nodes: Iterable[Node], *, draw: bool, window_s: float = DAY_S
    ) -> None:
        self._length_s = window_s
        self.tenants = {tenant.name: tenant for tenant in tenants}
        self.devices: dict[str, int] = {}
        for node in nodes:
            self.devices[node.device_type] = self.devices.get(node.device_type, 0) + node.devices
        self.capacity = sum(self.devices.values())
        self.demand: dict[str, float] = {}
        self.gangs: dict[str, dict[int, float]] = {}  # the same by the smallest size of the gangs
        self.attained = {tenant.name: tenant.attained_device_s for tenant in tenants}
        self.windows: list[Window] = []
        self.busy: list[tuple[float, int]] = []
        self.shares: list[tuple[float, Mapping[str, int]]] = []
        self._draw = draw
        self._served: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._sure: dict[str, float] = {}
        self._window_s: float | None = None

    def arrive(self, job: ActiveJob) -> None:
        self._count_demand(job, 1.0)

    def depart(self, job: ActiveJob) -> None:
        self._count_demand(job, -1.0)

    def _count_demand(self, job: ActiveJob, times: float) -> None:
        name, devices = job.job.tenant, job.job.max_workers * times
        self.demand[name] = self.demand.get(name, 0.0) + devices
        gangs, size = self.gangs.setdefault(name, {}), job.job.min_workers
        gangs[size] = gangs.get(size, 0.0) + devices

    def serve(self, job: ActiveJob, service_s: float) -> None:
        """Count service of a gang."""
        device_s, tenant = service_s * len(job.seats), job.job.tenant
        useful_s = device_s if len(self.devices) == 1 else device_s * self._worth(job)
        self._served[tenant] = self._served.get(tenant, 0.0) + useful_s
        self.attained[tenant] = self.attained.get(tenant, 0.0) + device_s

    def _worth(self, job: ActiveJob) -> float:
        """Worth of its devices relative to the best type of the cluster: useful work counts (M7)."""
        curve, size = job.course.curve(), len(job.seats)
        best = max(curve.speed(kind, size) for kind in self.devices)
        return min(1.0, curve.speed(job.device_type, size) / best) if best > 0 else 1.0

    def step(
        self, now_s: float, until_s: float, running: Sequence[ActiveJob], ended: Sequence[tuple[ActiveJob, float]] = ()
    ) -> None:
        """Advance time; tenants are due their weighted share of the devices, as far as they have demand.

        A job in ``ended`` had demand only for its seconds of this step.
        """
        if self._window_s is None:
            self._window_s = now_s
        seconds = until_s - now_s
        if len(self.tenants) > 1:
            demand, spared = dict(self.demand), dict[str, dict[int, float]]()
            for job, took_s in ended if seconds > 0 else ():
                name, size, less = job.job.tenant, job.job.min_workers, job.job.max_workers * (1.0 - took_s / seconds)
                demand[name] -= less
                of = spared.setdefault(name, {})
                of[size] = of.get(size, 0.0) + less
            for name, amount in entitlements(self.tenants.values(), demand, self.capacity).items():
                small = self._demand_of_gangs_up_to(name, amount) - sum(
                    less for size, less in spared.get(name, {}).items() if size <= amount + TINY
                )
                self._due[name] = self._due.get(name, 0.0) + amount * seconds
                self._sure[name] = self._sure.get(name, 0.0) + min(amount, max(small, 0.0)) * seconds
            fading = 0.5 ** (seconds / HALF_LIFE_S)
            self.attained = {name: amount * fading for name, amount in self.attained.items()}
        if self._draw:
            self._record_use(now_s, running)
        if until_s - self._window_s >= self._length_s:
            self.close_window(until_s)

    def _demand_of_gangs_up_to(self, tenant: str, amount: float) -> float:
        """Demand of the tenant's gangs up to this size."""
        return sum(devices for size, devices in self.gangs.get(tenant, {}).items() if size <= amount + TINY)

    def states(self, now_s: float) -> list[TenantState]:
        """The tenants' states for the policy; a spent budget is renewed once its next period begins."""
        return [
            replace(
                tenant, attained_device_s=self.attained[tenant.name],
                spent=tenant.spent if tenant.spent is not None and tenant.spent.again_s > now_s else None,
            )
            for tenant in self.tenants.values()
        ]  # fmt: skip

    def next_budget_s(self, now_s: float) -> float:
        """When the next spent budget is renewed; infinite without one."""
        again_s = (tenant.spent.again_s for tenant in self.tenants.values() if tenant.spent is not None)
        return min((when_s for when_s in again_s if when_s > now_s), default=math.inf)

    def close_window(self, now_s: float) -> None:
        if self._window_s is not None and now_s > self._window_s:
            self.windows.append(Window(self._window_s, now_s, self._served, self._due, self._sure))
        self._served, self._due, self._sure, self._window_s = {}, {}, {}, now_s

    def _record_use(self, now_s: float, running: Sequence[ActiveJob]) -> None:
        used: dict[str, int] = {}
        for job in running:
            used[job.job.tenant] = used.get(job.job.tenant, 0) + len(job.seats)
        self.busy.append((now_s, sum(used.values())))
        self.shares.append((now_s, used))
