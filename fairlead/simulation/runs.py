"""Runs policies on a trace: the entry point of the command line, the benchmarks and the tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from fairlead.cluster import Node
from fairlead.errors import InvalidSpec, Refused
from fairlead.scheduling.market.capacity_arrays import could_ever_run
from fairlead.scheduling.queues import path_to_top
from fairlead.scheduling.state import JobState, TenantState
from fairlead.simulation.clusters import FIX
from fairlead.simulation.engine import Progress, Settings, simulate
from fairlead.simulation.outcome import Outcome
from fairlead.simulation.policies import entry
from fairlead.simulation.trace import Trace, TraceJob


def run(
    trace: Trace,
    policy: str,
    nodes: Sequence[Node] = (),
    settings: Settings | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Outcome:
    """Run one policy on one trace; without nodes on the trace's own cluster."""
    nodes = nodes or trace.nodes
    if not nodes:
        raise InvalidSpec("the trace names no cluster", field="--cluster", fix=FIX)
    chosen = entry(policy)
    suited = trace if chosen.elastic else trace.rigid()
    _check(suited, nodes)
    _check_limits(suited, nodes, (settings.tenants if settings is not None else ()) or trace.tenants)
    return simulate(suited, nodes, chosen.make(suited, seed), settings, progress)


def compare(
    trace: Trace,
    policies: Iterable[str],
    nodes: Sequence[Node] = (),
    settings: Callable[[], Settings] = Settings,
    *,
    seed: int = 0,
    progress: Callable[[str], Progress | None] = lambda name: None,
) -> dict[str, Outcome]:
    """Run several policies on the same trace; each with its own settings, as failures keep state."""
    names = list(dict.fromkeys(policies))
    for name in names:
        entry(name)
    return {name: run(trace, name, nodes, settings(), seed=seed, progress=progress(name)) for name in names}


def spread_over_tenants(trace: Trace, tenants: Sequence[TenantState]) -> Trace:
    """The trace with its jobs assigned to these tenants in turn, if it has no tenants of its own."""
    names = [tenant.name for tenant in tenants]
    if not names or {job.tenant for job in trace.jobs} != {"all"}:
        return trace
    jobs = [replace(job, tenant=names[at % len(names)]) for at, job in enumerate(trace.jobs)]
    return replace(trace, jobs=jobs)


def _check(trace: Trace, nodes: Sequence[Node]) -> None:
    """Refuse jobs that the cluster can never run, as they would wait for ever."""
    devices: dict[str, int] = {}
    for node in nodes:
        devices[node.device_type] = devices.get(node.device_type, 0) + node.devices
    known: dict[tuple[int, int], bool] = {}
    for job in trace.jobs:
        curve = job.model.curve(0.0)
        key = (id(curve), job.min_workers)
        if key not in known:
            known[key] = _runs_somewhere(curve.speeds, devices, job.min_workers)
        if not known[key]:
            text = f"job {job.id} needs {job.min_workers} devices of one type that it runs on; there are {devices}"
            raise Refused(text, field="--cluster", fix="give it more devices, or of another type")
        if (job.only or job.demand) and not could_ever_run(_as_state(job), nodes):
            where = f" in {', '.join(sorted(job.only))}" if job.only else ""
            text = f"job {job.id} needs {job.min_workers} workers{where} that no nodes of one type could hold"
            raise Refused(text, field="--cluster", fix="add such nodes, or ask for less cpu, memory or elsewhere")


def _check_limits(trace: Trace, nodes: Sequence[Node], tenants: Sequence[TenantState]) -> None:
    """Refuse jobs that exceed the limits of their tenant, or of one above it."""
    known = {tenant.name: tenant for tenant in tenants}
    parents = {tenant.name: tenant.parent for tenant in tenants}
    there = sorted({node.device_type for node in nodes})
    for job in trace.jobs if any(tenant.quota is not None or tenant.most for tenant in tenants) else ():
        above = [known[name] for name in path_to_top(job.tenant, parents) if name in known]
        kinds = [kind for kind in there if kind in job.model.curve(0.0).speeds]
        for tenant in above:
            mosts = [tenant.most.get(kind, math.inf) for kind in kinds]
            most = min(max(mosts, default=math.inf), math.inf if tenant.quota is None else tenant.quota)
            if job.min_workers > most:
                text = f"job {job.id} needs {job.min_workers} devices, and tenant {tenant.name} may have {most:g}"
                raise Refused(text, field="--tenants", fix="raise its quota or most, or ask for fewer devices")


def _as_state(job: TraceJob) -> JobState:
    return JobState(job.id, job.tenant, job.arrival_s, job.min_workers, demand=job.demand, only=job.only)


def _runs_somewhere(speeds: Mapping[str, object], devices: Mapping[str, int], size: int) -> bool:
    return any(count >= size and name in speeds for name, count in devices.items())
