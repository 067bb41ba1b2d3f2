"""Live values that are not events: job progress, node use, shares over time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from fairlead.control.accounting import budgets
from fairlead.control.accounting.fairness import fairness_view
from fairlead.control.accounting.report import Held
from fairlead.control.accounting.shares import DemandSpan, Window, shares_view
from fairlead.control.identity.access import scope
from fairlead.control.job_views import node_views
from fairlead.control.reconcile.loop import Controller
from fairlead.control.records import ENDED, Job, JobPhase, Token, Usage
from fairlead.control.service.core import Verbs
from fairlead.control.store import generations, jobs, tenants, usage_spans
from fairlead.views.jobs import NodeView
from fairlead.views.reports import SharesView

BEAT_S = 1.0
IN_FLIGHT = [phase for phase in JobPhase if phase not in ENDED and phase is not JobPhase.QUEUED]
MAX_JOBS = 1000  # jobs with devices in one beat
_OF_JOB = ("step", "total_steps", "epoch", "loss", "samples_per_s", "generation", "recoveries", "preemptions",
           "resizes")  # fmt: skip
_OF_NODE = {"state", "devices_used", "cpu_fraction", "memory_used_bytes", "isolation", "jobs", "slots", "warm",
            "temperature_c", "power_w"}  # fmt: skip

Beat = dict[str, Any]


class LiveVerbs(Verbs):
    """Values that the web page refreshes continuously."""

    _read_lock: asyncio.Lock
    _last_read: tuple[float, list[Job]] = (0.0, [])
    _beats: dict[str | None, tuple[float, Beat]]

    async def beat(self, who: Token) -> Beat:
        """Changing fields of all running jobs and nodes, and the time of the last round.

        Fields are named as in the views of jobs and nodes, so clients can merge them. All callers of one scope share
        the same value while it is fresh.
        """
        tenant, now_s = scope(who), self._core.clock()
        made_s, beat = self._beats.get(tenant, (0.0, {}))
        if abs(now_s - made_s) >= 0.8 * BEAT_S:
            beat = await self._beat(tenant)
            self._beats[tenant] = now_s, beat
        return beat

    async def _beat(self, tenant: str | None) -> Beat:
        found, controller = await self._in_flight(), self._core.controller
        own = [job for job in found if tenant in (None, job.tenant)]
        alive = {job.id: sum(f.alive for f in controller.gang_registry.workers.get(job.id, {}).values()) for job in own}
        views = visible_nodes(controller, {job.id: job.tenant for job in found}, tenant)
        return {
            "jobs": {job.id: _job(job, alive) for job in own},
            "nodes": {view.name: view.model_dump(include=_OF_NODE) for view in views},
            "decided_s": controller.last_round.decided_s,
        }

    async def _in_flight(self) -> Sequence[Job]:
        """Jobs with devices, read once for all callers."""
        async with self._read_lock:
            taken_s, found = self._last_read
            if abs(self._core.clock() - taken_s) >= 0.8 * BEAT_S:
                found = await self._read(jobs_in_flight)
                self._last_read = self._core.clock(), found
            return found

    async def shares(self, who: Token, window_s: float, points: int) -> SharesView:
        """Devices held and entitled over time; a tenant sees its own line."""
        now_s = self._core.clock()
        window = Window(now_s - window_s, now_s, points)
        devices = sum(node.devices for node in self._core.controller.nodes.values())

        def work(connection: Connection) -> SharesView:
            wishes = [
                DemandSpan(*row) for row in usage_spans.demand_periods(connection, window.since_s, now_s, window.step_s)
            ]
            metered: list[Held] = [*usage_spans.spans_by_tenant(connection, window.since_s, now_s, window.step_s)]
            lines = metered + list(unmetered_usage(connection, now_s))
            present = tenants.all_tenants(connection)
            spent = budgets.budget_stops(connection, present, window.since_s, now_s)
            return shares_view(present, wishes, lines, devices, window, spent)

        found = await self._read(work)
        own = [line for line in found.tenants if scope(who) in (None, line.tenant)]
        balance = fairness_view(self._core.controller.last_round.memory, scope(who))
        return found.model_copy(update={"tenants": own, "balance": balance})


def visible_nodes(controller: Controller, tenant_of: Mapping[str, str], tenant: str | None) -> list[NodeView]:
    """The nodes as this tenant may see them; None: unredacted."""
    known, facts = controller.gang_registry.workers, controller.backend.facts()
    return node_views(controller.nodes, known, controller.telemetry, facts, tenant_of, tenant)


def jobs_in_flight(connection: Connection) -> list[Job]:
    """The jobs that hold devices or are about to."""
    found, _, _ = jobs.page(connection, phases=IN_FLIGHT, limit=MAX_JOBS)
    return found


def unmetered_usage(connection: Connection, now_s: float) -> list[Usage]:
    """Usage of running gangs that is not in the ledger yet, as ledger lines."""
    owners = {job.id: job for job in jobs_in_flight(connection)}
    lines = []
    for job, live in generations.live_by_job(connection, owners.keys()).items():
        for generation in live:
            if generation.running_s is not None and generation.broken_s is None:
                from_s = max(generation.running_s, generation.metered_s or 0.0)
                lines.append(Usage(job, owners[job].tenant, "", generation.number, "", "", len(generation.members),
                                   1.0, from_s, max(from_s, now_s)))  # fmt: skip
    return lines


def _job(job: Job, alive: Mapping[str, int]) -> dict[str, Any]:
    told = {name: getattr(job, name) for name in _OF_JOB}
    return told | {"state": str(job.phase), "workers": alive[job.id]}
