"""Nodes, the report, health, metrics, and shutting the platform down."""

from __future__ import annotations

from typing import Any, Literal

from sqlalchemy import Connection

from fairlead import __version__
from fairlead.cluster import NodeState, total
from fairlead.control.accounting.energy import energy_report
from fairlead.control.accounting.fairness import fairness_view
from fairlead.control.accounting.report import platform_report
from fairlead.control.identity.access import require, scope
from fairlead.control.records import Role, Token
from fairlead.control.service.core import Verbs
from fairlead.control.service.live import jobs_in_flight, visible_nodes
from fairlead.control.store import events, interference, jobs, node_sleep, nodes, tenants, usage_spans
from fairlead.errors import NotFound
from fairlead.views.jobs import NodeView
from fairlead.views.reports import Report

REPORT_JOBS = 1000  # the newest jobs; older usage is in the ledger
REPORT_S = 24 * 3600.0  # the report covers the last day

NodeAction = Literal["cordon", "uncordon", "drain"]
_STATES: dict[NodeAction, NodeState] = {
    "cordon": NodeState.CORDONED,
    "uncordon": NodeState.READY,
    "drain": NodeState.DRAINING,
}


class ClusterVerbs(Verbs):
    """Operations on the whole cluster."""

    async def nodes(self, who: Token) -> list[NodeView]:
        """All nodes; a tenant sees its own jobs on them."""
        found = await self._read(jobs_in_flight)
        return visible_nodes(self._core.controller, {job.id: job.tenant for job in found}, scope(who))

    async def node_action(self, who: Token, name: str, action: NodeAction) -> NodeView:
        """Cordon: start nothing new here; drain: move running jobs away; uncordon: use the node again."""
        require(who, Role.ADMIN, f"{action} nodes")
        if name not in self._core.controller.nodes:
            raise NotFound(f"{name!r}: no such node", field="node", value=name, fix="see fairlead nodes")
        now_s, state = self._core.clock(), _STATES[action]

        def work(connection: Connection) -> None:
            nodes.set_state(connection, name, state)
            self._audit(connection, who, f"node.{action}", name)
            events.append(connection, time_s=now_s, kind=f"node-{state}", text=f"{name} is {state} now", node=name)

        await self._write(work)
        await self._core.controller.refresh()
        self._core.controller.nudge()
        return next(view for view in await self.nodes(who) if view.name == name)

    async def report(self, who: Token) -> Report:
        """The figures of REQUIREMENTS for the last day; a tenant sees only its own."""
        now_s = self._core.clock()
        there = list(self._core.controller.nodes.values())
        capacity = total(node.capacity for node in there)
        tenant = scope(who)
        balance = fairness_view(self._core.controller.last_round.memory, tenant)

        def work(connection: Connection) -> Report:
            newest, _, _ = jobs.page(connection, tenant=tenant, phases=None, name=None, limit=REPORT_JOBS, before=None)
            begin_s = now_s - REPORT_S
            lines = usage_spans.spans_by_tenant(connection, begin_s, now_s)
            found = platform_report(
                tenants.all_tenants(connection), newest[::-1], lines, capacity, self._core.started_s, now_s
            )
            found = found.model_copy(update={"balance": balance})
            if tenant is None:
                since_s = max(begin_s, min(self._core.started_s, found.since_s))
                by_node = usage_spans.totals_by_node(connection, begin_s, now_s)
                drawn = energy_report(there, by_node, node_sleep.between(connection, since_s, now_s), since_s, now_s)
                pairs = [pair.as_json() for pair in interference.all_pairs(connection)]
                return found.model_copy(update={"neighbours": pairs, "energy": drawn})
            own = [line for line in found.tenants if line.tenant == tenant]
            return found.model_copy(update={"tenants": own, "shares": []})

        return await self._read(work)

    async def health(self) -> dict[str, Any]:
        """Health status; while the store is unavailable, running jobs go on and new ones are refused."""
        store = self._core.store
        state = {"status": "ok", "leader": store.epoch is not None, "version": __version__}
        return (
            state
            if store.unavailable_reason is None
            else state | {"status": "store-unreachable", "detail": store.unavailable_reason}
        )

    async def prometheus(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return await self._core.scraper.exposition()

    async def shutdown(self, who: Token) -> None:
        """Stop the platform and everything on it; active jobs go on after the next start."""
        require(who, Role.ADMIN, "end the platform")
        await self._write(lambda connection: self._audit(connection, who, "platform.shutdown", "platform"))
        self._core.stop()
