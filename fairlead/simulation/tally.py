"""Keeping count while a simulation runs: devices in use, what each tenant was served and was due, energy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fairlead.cluster import Node
from fairlead.scheduling.shares import entitlements
from fairlead.scheduling.state import TenantState
from fairlead.simulation.active import Active
from fairlead.simulation.energy import energy_kwh
from fairlead.simulation.outcome import Window

DAY_S = 86_400.0
TINY = 1e-9
HALF_LIFE_S = DAY_S
"""After this long, what a tenant was served counts half: yesterday's hog waits today, and is forgiven later."""


class Tally:
    """Sums over the steps of one simulation."""

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
        self.attained = dict.fromkeys(self.tenants, 0.0)
        self.served_by_type: dict[str, float] = {}
        self.windows: list[Window] = []
        self.busy: list[tuple[float, int]] = []
        self.shares: list[tuple[float, Mapping[str, int]]] = []
        self._draw = draw
        self._served: dict[str, float] = {}
        self._due: dict[str, float] = {}
        self._sure: dict[str, float] = {}
        self._window_s: float | None = None

    def arrive(self, job: Active) -> None:
        self._want(job, 1.0)

    def depart(self, job: Active) -> None:
        self._want(job, -1.0)

    def _want(self, job: Active, times: float) -> None:
        name, devices = job.job.tenant, job.job.max_workers * times
        self.demand[name] = self.demand.get(name, 0.0) + devices
        gangs, size = self.gangs.setdefault(name, {}), job.job.min_workers
        gangs[size] = gangs.get(size, 0.0) + devices

    def serve(self, job: Active, service_s: float) -> None:
        """This gang was served for so long."""
        device_s = service_s * len(job.seats)
        kind, tenant = job.device_type, job.job.tenant
        self.served_by_type[kind] = self.served_by_type.get(kind, 0.0) + device_s
        self._served[tenant] = self._served.get(tenant, 0.0) + device_s
        self.attained[tenant] = self.attained.get(tenant, 0.0) + device_s

    def step(
        self, now_s: float, until_s: float, running: Sequence[Active], ended: Sequence[tuple[Active, float]] = ()
    ) -> None:
        """Time goes on; what is due to tenants is their weighted share of the devices, as far as they want it.

        Whoever is done after so many seconds of this step wanted devices only for so long.
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
                small = self._within(name, amount) - sum(
                    less for size, less in spared.get(name, {}).items() if size <= amount + TINY
                )
                self._due[name] = self._due.get(name, 0.0) + amount * seconds
                self._sure[name] = self._sure.get(name, 0.0) + min(amount, max(small, 0.0)) * seconds
            fading = 0.5 ** (seconds / HALF_LIFE_S)
            self.attained = {name: amount * fading for name, amount in self.attained.items()}
        if self._draw:
            self._drawn(now_s, running)
        if until_s - self._window_s >= self._length_s:
            self.close_window(until_s)

    def _within(self, tenant: str, amount: float) -> float:
        """Devices that those of its gangs want which are no larger than this."""
        return sum(devices for size, devices in self.gangs.get(tenant, {}).items() if size <= amount + TINY)

    def states(self) -> list[TenantState]:
        """The tenants as a policy sees them."""
        return [
            replace(tenant, attained_device_s=self.attained[tenant.name])
            for tenant in self.tenants.values()
        ]

    def close_window(self, now_s: float) -> None:
        if self._window_s is not None and now_s > self._window_s:
            self.windows.append(Window(self._window_s, now_s, self._served, self._due, self._sure))
        self._served, self._due, self._sure, self._window_s = {}, {}, {}, now_s

    def energy_kwh(self, span_s: float) -> float:
        return energy_kwh(self.devices, self.served_by_type, span_s)

    def _drawn(self, now_s: float, running: Sequence[Active]) -> None:
        used: dict[str, int] = {}
        for job in running:
            used[job.job.tenant] = used.get(job.job.tenant, 0) + len(job.seats)
        self.busy.append((now_s, sum(used.values())))
        self.shares.append((now_s, used))
