"""The verb tenant: who uses the platform, with which weight, within which limits."""

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
    """Create a tenant; its first token is printed this one time."""
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
    output.line(f"  its token, shown only now: {made.token.token}")
    output.line("  its people set FAIRLEAD_TOKEN to it", style="dim")


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
    """Change a tenant; what is not named stays as it is."""
    platform = client()
    asks = grant or revoke or (warn_at is not None and budget is None)
    present = platform.tenant(name) if asks else None  # these change a part of what there is
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
        raise InvalidSpec("nothing to change", fix="name what to change, such as --weight, --quota or --budget")
    answer = platform.update_tenant(name, **changed)
    if as_json:
        output.print_json(answer)
    else:
        _describe(answer)


@app.command("show")
def describe(name: TenantRef, as_json: Json = False) -> None:
    """Everything about one tenant."""
    answer = client().tenant(name)
    if as_json:
        output.print_json(answer)
    else:
        _describe(answer)


def _describe(tenant: TenantView) -> None:
    policy, keeps = tenant.policy, tenant.policy.get("retention", {})
    promise = " ".join(f"{name} {value}" for name, value in tenant.sla.items() if value)
    facts = {
        "weight": output.number(tenant.weight),
        "quota": "none" if tenant.quota is None else f"{tenant.quota} devices at once",
        "below": tenant.parent or "nobody: it has a part of the whole",
        "guaranteed": shown_counts(tenant.guarantee) or "nothing",
        "at most": shown_counts(tenant.most) or "no limit by type",
        "default SLA": promise or "none",
        "budget": _budget(tenant),
        "entitled to": f"{output.number(tenant.entitlement)} devices now, "
        f"{output.number(tenant.share)} if all wanted all",
        "holds": _holds(tenant),
        "used": f"{output.number(tenant.device_s / 3600)} device hours since {output.when(tenant.created_s)}",
        "network": f"{policy.get('network')} ({_REACH.get(str(policy.get('network')), '')})",
        "folders": ", ".join(policy.get("folders", [])) or "none granted",
        "disk": f"{output.size(policy.get('disk'))} of one job, {output.size(policy.get('kept'))} of all that ended",
        "log": f"{output.size(policy.get('log'))} of one worker",
        "grid": _grid(policy),
        "open files": f"{policy.get('files')} in one process",
        "processes": f"{policy.get('processes')} of one worker",
        "jobs": f"{policy.get('jobs')} at once, running and waiting",
        "keeps": ", ".join(f"{kind} {_kept(keeps.get(kind))}" for kind in ("logs", "metrics", "results"))
        + (f", and all of a job {_kept(keeps['jobs'])}" if keeps.get("jobs") is not None else ""),
    }
    output.line(f"tenant {tenant.name}")
    for name, fact in facts.items():
        output.line(f"  {name:<12} {fact}")
    for place, person in enumerate(tenant.people):
        who = person.user if person.user_label is None else f"{person.user} ({person.user_label})"
        has = f"{person.devices} devices; {person.running} jobs run, {person.queued} wait"
        output.line(f"  {'' if place else 'people':<12} {output.clean(who)}: {has}")


def _holds(tenant: TenantView) -> str:
    below = f", and {tenant.devices_below} by those below it" if tenant.devices_below else ""
    lent = "" if tenant_table.lent(tenant) == "–" else f" ({tenant_table.lent(tenant)})"
    return f"{tenant.devices} devices{below}{lent}; {tenant.running} jobs run, {tenant.queued} wait"


_REACH = {"closed": "a gang reaches itself only", "open": "jobs reach what the machine reaches"}


def _grid(policy: dict[str, Any]) -> str:
    sealed = ", encrypted in memory too" if policy.get("grid_encrypted") else ""
    return f"{output.size(policy.get('grid'))} in the memory of each node{sealed}"


def _kept(seconds: float | None) -> str:
    return "for ever" if seconds is None else f"for {output.duration(seconds)}"


def _budget(tenant: TenantView) -> str:
    spending = tenant.spending
    if spending is None:
        return "none"
    used = f"{output.number(spending.used_hours)} of {output.number(spending.device_hours)} device hours"
    ends = output.moment_utc(spending.until_s)
    state = f"used up until {ends}" if spending.used_up else f"the next begins {ends}"
    return f"{used} this {spending.per} used, {state}; warns at {output.percent(tenant.budget.get('warn_at'))}"


@app.command("list")
def list_tenants(as_json: Json = False) -> None:
    """Tenants with their weight, what they may claim and what they hold."""
    found = client().tenants()
    if as_json:
        output.print_json({"tenants": found})
    else:
        tenant_table.table(found)
