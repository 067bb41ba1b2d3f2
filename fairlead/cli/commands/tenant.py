"""The verbs tenant and tenants: create, change and list tenants with their weights and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairlead.cli import limit_options, output, tenant_table
from fairlead.cli.limit_options import (
    Budget,
    Disk,
    Files,
    Grant,
    Grid,
    GridEncrypted,
    Guarantee,
    Jobs,
    KeepJobs,
    KeepLogs,
    KeepMetrics,
    KeepResults,
    Kept,
    Log,
    Most,
    Network,
    Parent,
    Processes,
    Promise,
    Quota,
    Revoke,
    WarnAt,
    Weight,
)
from fairlead.cli.options import Json, TenantRef, client
from fairlead.errors import InvalidSpec
from fairlead.units import shown_counts

if TYPE_CHECKING:
    from fairlead.views.jobs import TenantView

app = typer.Typer(help="Create, list, show and change tenants.", rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The tenant's name.")]


@app.command("create")
def create(
    name: Name, weight: Weight = None, quota: Quota = None, parent: Parent = None, guarantee: Guarantee = None,
    most: Most = None, promise: Promise = None, budget: Budget = None,
    warn_at: WarnAt = None, network: Network = None, grant: Grant = None, disk: Disk = None, kept: Kept = None,
    log: Log = None, grid: Grid = None, grid_encrypted: GridEncrypted = None, files: Files = None,
    processes: Processes = None, jobs: Jobs = None, keep_logs: KeepLogs = None,
    keep_results: KeepResults = None, keep_metrics: KeepMetrics = None, keep_jobs: KeepJobs = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Create a tenant. Its first token is printed once and never again."""
    written = limit_options.changes(
        weight=weight, quota=quota, parent=parent, guarantee=guarantee, most=most, promise=promise,
        budget=budget, warn_at=warn_at, network=network, disk=disk, kept=kept, log=log, grid=grid,
        grid_encrypted=grid_encrypted, files=files,
        processes=processes, jobs=jobs, keep_logs=keep_logs, keep_metrics=keep_metrics, keep_results=keep_results,
        keep_jobs=keep_jobs,
        folders=limit_options.folders([], grant, None),
    )  # fmt: skip
    made = client().create_tenant({"name": name, **{key: value for key, value in written.items() if value is not None}})
    if as_json:
        output.print_json(made)
        return
    output.line(f"created tenant {made.tenant.name} with weight {made.tenant.weight:g}")
    output.line(f"  its first token, shown only once: {made.token.token}")
    output.line("  its members use it: export FAIRLEAD_TOKEN=...", style="dim")


@app.command("update")
def update(
    name: TenantRef, weight: Weight = None, quota: Quota = None, parent: Parent = None, guarantee: Guarantee = None,
    most: Most = None, promise: Promise = None, budget: Budget = None,
    warn_at: WarnAt = None, network: Network = None, grant: Grant = None, revoke: Revoke = None, disk: Disk = None,
    kept: Kept = None, log: Log = None, grid: Grid = None, grid_encrypted: GridEncrypted = None, files: Files = None,
    processes: Processes = None, jobs: Jobs = None,
    keep_logs: KeepLogs = None, keep_results: KeepResults = None, keep_metrics: KeepMetrics = None,
    keep_jobs: KeepJobs = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Change a tenant. Settings that are not named stay as they are."""
    platform = client()
    partial = grant or revoke or (warn_at is not None and budget is None)
    present = platform.tenant(name) if partial else None  # these options change a part of the present setting
    changed = limit_options.changes(
        weight=weight, quota=quota, parent=parent, guarantee=guarantee, most=most, promise=promise,
        budget=budget, warn_at=warn_at, network=network, disk=disk, kept=kept, log=log, grid=grid,
        grid_encrypted=grid_encrypted, files=files,
        processes=processes, jobs=jobs, keep_logs=keep_logs, keep_metrics=keep_metrics, keep_results=keep_results,
        keep_jobs=keep_jobs,
        present_budget=present.budget if present else None,
        folders=limit_options.folders(present.policy.get("folders", []) if present else [], grant, revoke),
    )  # fmt: skip
    if not changed:
        raise InvalidSpec("nothing to change", fix="give an option such as --weight, --quota or --budget")
    answer = platform.update_tenant(name, **changed)
    if as_json:
        output.print_json(answer)
    else:
        _describe(answer)


@app.command("show")
def describe(name: TenantRef, as_json: Json = False) -> None:
    """Show one tenant: shares, limits, budget, policy and present use."""
    answer = client().tenant(name)
    if as_json:
        output.print_json(answer)
    else:
        _describe(answer)


def _describe(tenant: TenantView) -> None:
    policy, retention = tenant.policy, tenant.policy.get("retention", {})
    promise = " ".join(f"{name} {value}" for name, value in tenant.sla.items() if value)
    facts = {
        "weight": output.number(tenant.weight),
        "quota": "none"
        if tenant.quota is None
        else f"{tenant.quota} device{'' if tenant.quota == 1 else 's'} at a time",
        "parent": tenant.parent or "none (top level)",
        "guarantee": shown_counts(tenant.guarantee) or "none",
        "maximum": shown_counts(tenant.most) or "no limit per device type",
        "default SLA": promise or "none",
        "budget": _budget(tenant),
        "entitled to": f"{output.number(tenant.entitlement)} devices now, "
        f"{output.number(tenant.share)} when every tenant is busy",
        "in use": _in_use(tenant),
        "used": f"{output.number(tenant.device_s / 3600)} device hours since {output.when(tenant.created_s)}",
        "network": f"{policy.get('network')} ({_REACH.get(str(policy.get('network')), '')})",
        "folders": ", ".join(policy.get("folders", [])) or "none",
        "disk": f"{output.size(policy.get('disk'))} per job, {output.size(policy.get('kept'))} for all ended jobs",
        "log": f"{output.size(policy.get('log'))} per worker",
        "grid": _grid(policy),
        "open files": f"{policy.get('files')} per process",
        "processes": f"{policy.get('processes')} per worker",
        "jobs": f"at most {policy.get('jobs')}, running and waiting",
        "retention": ", ".join(f"{kind} {_retention(retention.get(kind))}" for kind in ("logs", "metrics", "results"))
        + (f", whole jobs {_retention(retention['jobs'])}" if retention.get("jobs") is not None else ""),
    }
    output.line(f"tenant {tenant.name}")
    for name, fact in facts.items():
        output.line(f"  {name:<12} {fact}")
    for place, person in enumerate(tenant.people):
        who = person.user if person.user_label is None else f"{person.user} ({person.user_label})"
        use = f"{person.devices} devices in use, {person.running} jobs running, {person.queued} queued"
        output.line(f"  {'' if place else 'people':<12} {output.clean(who)}: {use}")


def _in_use(tenant: TenantView) -> str:
    below = f" and {tenant.devices_below} by its child tenants" if tenant.devices_below else ""
    lent = "" if tenant_table.lent(tenant) == "–" else f" ({tenant_table.lent(tenant)})"
    return f"{tenant.devices} devices{below}{lent}; {tenant.running} jobs running, {tenant.queued} queued"


_REACH = {"closed": "workers reach only their own gang", "open": "workers reach every address the machine reaches"}


def _grid(policy: dict[str, Any]) -> str:
    sealed = ", encrypted in memory" if policy.get("grid_encrypted") else ""
    return f"{output.size(policy.get('grid'))} of memory on each node{sealed}"


def _retention(seconds: float | None) -> str:
    return "forever" if seconds is None else f"for {output.duration(seconds)}"


def _budget(tenant: TenantView) -> str:
    spending = tenant.spending
    if spending is None:
        return "none"
    used = f"{output.number(spending.used_hours)} of {output.number(spending.device_hours)} device hours"
    ends = output.moment_utc(spending.until_s)
    state = f"used up; resets {ends}" if spending.used_up else f"resets {ends}"
    return f"{used} used this {spending.per}, {state}; warning at {output.percent(tenant.budget.get('warn_at'))}"


@app.command("list")
def list_tenants(as_json: Json = False) -> None:
    """List tenants with weight, entitlement and devices in use."""
    found = client().tenants()
    if as_json:
        output.print_json({"tenants": found})
    else:
        tenant_table.table(found)
