"""Options for a tenant's weight, quota, budget and policy, and the parsers of their values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.options import invalid_value, parse_sla
from fairlead.errors import InvalidSpec
from fairlead.units import parse_counts, parse_duration, parse_size

_BUDGET = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*h?\s*/\s*(day|week|month)\s*$")

Weight = Annotated[float | None, typer.Option("--weight", help="Weight of its share; default 1.")]
Quota = Annotated[str | None, typer.Option("--quota", help="Maximum devices in use; none: no limit.")]
Parent = Annotated[str | None, typer.Option("--parent", help="Parent tenant whose share it divides; none: top level.")]
Guarantee = Annotated[str | None, typer.Option("--guarantee", help="Guaranteed devices by type: v100=4,cpu=2; none.")]
Most = Annotated[str | None, typer.Option("--most", help="Maximum devices by type: v100=8; none.")]
Promise = Annotated[
    str | None, typer.Option("--sla", help="Default SLA of its jobs: gold, silver, bronze, a deadline (30m), none.")
]
Budget = Annotated[str | None, typer.Option("--budget", help="Device hours per day, week or month: 500h/month; none.")]
WarnAt = Annotated[
    float | None,
    typer.Option("--warn-at", min=0.0, max=1.0, help="Fraction of the budget at which to warn; default 0.8."),
]
Network = Annotated[str | None, typer.Option("--network", help="closed (workers reach only their gang) or open.")]
Grant = Annotated[list[str] | None, typer.Option("--grant", help="Folder that its jobs may read. Repeatable.")]
Revoke = Annotated[
    list[str] | None, typer.Option("--revoke", help="Folder that its jobs may no longer read. Repeatable.")
]
Disk = Annotated[str | None, typer.Option("--disk", help="Disk limit per job, such as 20GB.")]
Kept = Annotated[str | None, typer.Option("--kept", help="Disk limit of all its ended jobs together, such as 100GB.")]
Log = Annotated[str | None, typer.Option("--log", help="Log size kept per worker, such as 64MB.")]
Grid = Annotated[str | None, typer.Option("--grid", help="Memory of the data grid per node, such as 4GB.")]
GridEncrypted = Annotated[
    bool | None, typer.Option("--grid-encrypted/--grid-plain", help="Encrypt its data grid blocks in memory.")
]
Files = Annotated[int | None, typer.Option("--files", help="Maximum open files per process.")]
Processes = Annotated[int | None, typer.Option("--processes", help="Maximum processes and threads per worker.")]
Jobs = Annotated[int | None, typer.Option("--jobs", help="Maximum jobs, running and waiting.")]
KeepLogs = Annotated[
    str | None, typer.Option("--keep-logs", help="How long logs are kept after a job, such as 30d; none: forever.")
]
KeepAudit = Annotated[
    str | None, typer.Option("--keep-audit", help="How long the audit log is kept, such as 400d; none: forever.")
]
KeepMetrics = Annotated[str | None, typer.Option("--keep-metrics", help="The same for metrics per step.")]
KeepResults = Annotated[str | None, typer.Option("--keep-results", help="The same for result files.")]
KeepJobs = Annotated[
    str | None, typer.Option("--keep-jobs", help="The same for whole jobs, including their list entries.")
]


def changes(
    *,
    weight: float | None,
    quota: str | None,
    parent: str | None,
    guarantee: str | None,
    most: str | None,
    promise: str | None,
    budget: str | None,
    warn_at: float | None,
    present_budget: Mapping[str, Any] | None = None,
    keep_logs: str | None,
    keep_metrics: str | None,
    keep_results: str | None,
    keep_jobs: str | None,
    disk: str | None,
    kept: str | None,
    log: str | None,
    grid: str | None,
    **policy: Any,
) -> dict[str, Any]:
    """The given fields of a tenant as the API takes them; a value of None removes a limit."""
    found: dict[str, Any] = {} if weight is None else {"weight": weight}
    if quota is not None:
        found["quota"] = _quota(quota)
    if parent is not None:
        found["parent"] = None if parent == "none" else parent
    by_type = {"guarantee": guarantee, "most": most}
    found |= {name: _counts(f"--{name}", text) for name, text in by_type.items() if text is not None}
    if promise is not None:
        found["sla"] = parse_sla(promise)
    if budget is not None or warn_at is not None:
        found["budget"] = _budget(budget, warn_at, present_budget)
    keeps = {"logs": keep_logs, "metrics": keep_metrics, "results": keep_results, "jobs": keep_jobs}
    retention = {kind: parse_retention(f"--keep-{kind}", text) for kind, text in keeps.items() if text is not None}
    sizes = {"disk": _size("--disk", disk), "kept": _size("--kept", kept), "log": _size("--log", log)}
    sizes["grid"] = _size("--grid", grid)
    rules = {name: value for name, value in {**sizes, **policy}.items() if value is not None}
    rules |= {"retention": retention} if retention else {}
    return found | ({"policy": rules} if rules else {})


def folders(present: Sequence[str], grant: Sequence[str] | None, revoke: Sequence[str] | None) -> list[str] | None:
    """The new list of readable folders; None if neither option was given."""
    if not grant and not revoke:
        return None
    gone = {_absolute(folder) for folder in revoke or []}
    unknown = sorted(gone - set(present))
    if unknown:
        granted = f"granted are {', '.join(present)}" if present else "no folder is granted"
        raise InvalidSpec(
            f"{unknown[0]} is not granted to this tenant", field="--revoke", value=unknown[0], fix=granted
        )
    kept = [folder for folder in present if folder not in gone]
    return list(dict.fromkeys([*kept, *(_absolute(folder) for folder in grant or [])]))


def format_budget(budget: Mapping[str, Any]) -> str:
    """A budget in the notation of --budget: ``500h/month``."""
    return f"{budget['device_hours']:g}h/{budget['per']}"


def _absolute(folder: str) -> str:
    """The folder's absolute path. It may exist only on the platform's machine, so it is not checked here."""
    path = Path(folder).expanduser()
    return str(path if path.is_absolute() else path.absolute())


def _quota(text: str) -> int | None:
    if text == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise InvalidSpec(f"{text!r} is not a number of devices", field="--quota", fix="write 4, or none") from None


def _counts(option: str, text: str) -> dict[str, int]:
    try:
        return {} if text == "none" else parse_counts(text)
    except ValueError as error:
        raise invalid_value(option, text, error, "write it like v100=4,cpu=2, or none") from None


def _budget(text: str | None, warn_at: float | None, present: Mapping[str, Any] | None) -> dict[str, Any] | None:
    warning = {} if warn_at is None else {"warn_at": warn_at}
    if text is None:
        if not present:
            raise InvalidSpec("this tenant has no budget", field="--warn-at", fix="add --budget 500h/month")
        return {**present, **warning}
    if text == "none":
        return None
    match = _BUDGET.match(text)
    if match is None:
        raise InvalidSpec(f"{text!r} is not a budget", field="--budget", value=text,
                          fix="write device hours per day, week or month, such as 500h/month, or none")  # fmt: skip
    return {"device_hours": float(match[1]), "per": match[2], **warning}


def parse_retention(option: str, text: str) -> float | None:
    try:
        return None if text == "none" else float(parse_duration(text))
    except ValueError as error:
        raise invalid_value(option, text, error, "write it like 30d, or none") from None


def _size(option: str, text: str | None) -> int | None:
    try:
        return None if text is None else int(parse_size(text))
    except ValueError as error:
        raise invalid_value(option, text or "", error, "write it like 512MB or 20GB") from None
