"""Running policies on a trace side by side: what the command line, the benchmarks and the tests call."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fairlead.cluster import Node
from fairlead.errors import InvalidSpec, Refused
from fairlead.scheduling.market.ground import could_ever_run
from fairlead.scheduling.state import JobState, TenantState
from fairlead.simulation.engine import Progress, Settings, simulate
from fairlead.simulation.outcome import Outcome
from fairlead.simulation.policies import entry
from fairlead.simulation.trace import Trace, TraceJob
from fairlead.units import parse_counts


def run(
    trace: Trace,
    policy: str,
    nodes: Sequence[Node] = (),
    settings: Settings | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> Outcome:
    """One policy on one trace; without nodes, on the cluster that the trace was made for."""
    nodes = nodes or trace.nodes
    if not nodes:
        raise InvalidSpec("this trace does not say for which cluster it was made", field="--cluster")
    chosen = entry(policy)
    suited = trace if chosen.elastic else trace.rigid()
    _check(suited, nodes)
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
    """Several policies on the same trace; each gets settings of its own, as failures remember what has happened."""
    names = list(dict.fromkeys(policies))
    for name in names:
        entry(name)
    return {name: run(trace, name, nodes, settings(), seed=seed, progress=progress(name)) for name in names}


FIELDS = ("name", "weight", "quota", "parent", "guarantee", "most")
"""Of a file of tenants, in this order where its first line does not name them."""


def read_tenants(path: Path) -> list[TenantState]:
    """Tenants from a CSV: name, weight, quota, parent, and devices by type (``v100=4;k80=2``) guaranteed and most."""
    with path.open(newline="") as file:
        lines = [(number, row) for number, row in enumerate(csv.reader(file), start=1) if any(row)]
    names: Sequence[str] = [cell.strip().lower() for cell in lines[0][1]] if lines else ()
    if "name" in names:
        if unknown := sorted(set(names) - set(FIELDS)):
            raise InvalidSpec(f"there is no {unknown[0]!r} of a tenant", field=path.name, fix=f"of {', '.join(FIELDS)}")
        lines = lines[1:]
    else:
        names = FIELDS
    found: list[TenantState] = []
    for number, row in lines:
        told = {name: cell.strip() for name, cell in zip(names, row, strict=False)}
        if not told.get("name"):
            continue
        try:
            tenant = _tenant(told)
        except ValueError as error:
            if number == 1:  # a header in other words
                continue
            raise InvalidSpec(f"line {number} is not {','.join(names)}", field=path.name) from error
        if tenant is None:
            raise InvalidSpec(f"line {number}: a weight is more than 0", field=path.name)
        found.append(tenant)
    return found


def _tenant(told: Mapping[str, str]) -> TenantState | None:
    """What is not said is as usual; None for a weight that cannot be."""
    weight = float(told.get("weight") or 1.0)
    quota = int(told["quota"]) if told.get("quota") else None
    sure, most = (parse_counts(told[name]) if told.get(name) else {} for name in ("guarantee", "most"))
    if not weight > 0:
        return None
    return TenantState(
        told["name"], weight, quota, parent=told.get("parent") or None, guarantee=sure, most=most
    )  # fmt: skip


def spread_over_tenants(trace: Trace, tenants: Sequence[TenantState]) -> Trace:
    """The trace with its jobs dealt out to these tenants in turn, if it knows no tenants of its own."""
    names = [tenant.name for tenant in tenants]
    if not names or {job.tenant for job in trace.jobs} != {"all"}:
        return trace
    jobs = [replace(job, tenant=names[at % len(names)]) for at, job in enumerate(trace.jobs)]
    return replace(trace, jobs=jobs)


def _check(trace: Trace, nodes: Sequence[Node]) -> None:
    """A job that the cluster can never run would wait for ever: say so at once."""
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


def _as_state(job: TraceJob) -> JobState:
    return JobState(job.id, job.tenant, job.arrival_s, job.min_workers, demand=job.demand, only=job.only)


def _runs_somewhere(speeds: Mapping[str, object], devices: Mapping[str, int], size: int) -> bool:
    return any(count >= size and name in speeds for name, count in devices.items())
