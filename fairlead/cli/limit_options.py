"""The limits of a tenant as options: weight, quota, budget and policy, and how their texts become values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlead.cli.options import sla, unfit
from fairlead.errors import InvalidSpec
from fairlead.units import parse_counts, parse_duration, parse_size

_BUDGET = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*h?\s*/\s*(day|week|month)\s*$")

Weight = Annotated[float | None, typer.Option("--weight", help="Its weight in the shares.")]
Quota = Annotated[str | None, typer.Option("--quota", help="Devices it may hold at once; none: no limit.")]
Parent = Annotated[str | None, typer.Option("--parent", help="The tenant whose share it divides; none: nobody's.")]
Guarantee = Annotated[
    str | None, typer.Option("--guarantee", help="Devices it gets whenever it wants them: v100=4,cpu=2; none.")
]
Most = Annotated[str | None, typer.Option("--most", help="Devices of a type it never exceeds: v100=8; none.")]
Promise = Annotated[
    str | None, typer.Option("--sla", help="Its jobs' default: gold, silver, bronze, done within 30m, or none.")
]
Budget = Annotated[str | None, typer.Option("--budget", help="Device hours per day, week or month: 500h/month; none.")]
WarnAt = Annotated[
    float | None, typer.Option("--warn-at", min=0.0, max=1.0, help="Part of the budget at which to warn; default 0.8.")
]
Network = Annotated[str | None, typer.Option("--network", help="open, or closed: a gang reaches itself only.")]
Grant = Annotated[list[str] | None, typer.Option("--grant", help="A folder its jobs may read; can be repeated.")]
Revoke = Annotated[list[str] | None, typer.Option("--revoke", help="A folder they may read no more; can be repeated.")]
Disk = Annotated[str | None, typer.Option("--disk", help="What one job may fill, such as 20GB.")]
Kept = Annotated[str | None, typer.Option("--kept", help="What all its ended jobs may keep together, such as 100GB.")]
Log = Annotated[str | None, typer.Option("--log", help="What is kept of each worker's log, such as 64MB.")]
Grid = Annotated[str | None, typer.Option("--grid", help="Its part of each node's data grid in memory, such as 4GB.")]
GridEncrypted = Annotated[
    bool | None, typer.Option("--grid-encrypted/--grid-plain", help="Its blocks are encrypted in memory, too.")
]
Files = Annotated[int | None, typer.Option("--files", help="Files that a process may have open.")]
Processes = Annotated[int | None, typer.Option("--processes", help="Processes and threads of one worker.")]
Jobs = Annotated[int | None, typer.Option("--jobs", help="Jobs that it may have at once, running and waiting.")]
KeepLogs = Annotated[str | None, typer.Option("--keep-logs", help="For how long after a job, such as 30d; none: ever.")]
KeepAudit = Annotated[
    str | None, typer.Option("--keep-audit", help="For how long the audit log, such as 400d; none: ever.")
]
KeepMetrics = Annotated[str | None, typer.Option("--keep-metrics", help="The same for a job's history per step.")]
KeepResults = Annotated[str | None, typer.Option("--keep-results", help="The same for the files it left.")]
KeepJobs = Annotated[str | None, typer.Option("--keep-jobs", help="The same for all of it, its place in lists too.")]


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
    """The fields of a tenant that were given, as the API takes them; None takes a limit away."""
    found: dict[str, Any] = {} if weight is None else {"weight": weight}
    if quota is not None:
        found["quota"] = _quota(quota)
    if parent is not None:
        found["parent"] = None if parent == "none" else parent
    by_type = {"guarantee": guarantee, "most": most}
    found |= {name: _counts(f"--{name}", text) for name, text in by_type.items() if text is not None}
    if promise is not None:
        found["sla"] = sla(promise)
    if budget is not None or warn_at is not None:
        found["budget"] = _budget(budget, warn_at, present_budget)
    keeps = {"logs": keep_logs, "metrics": keep_metrics, "results": keep_results, "jobs": keep_jobs}
    retention = {kind: kept_s(f"--keep-{kind}", text) for kind, text in keeps.items() if text is not None}
    sizes = {"disk": _size("--disk", disk), "kept": _size("--kept", kept), "log": _size("--log", log)}
    sizes["grid"] = _size("--grid", grid)
    rules = {name: value for name, value in {**sizes, **policy}.items() if value is not None}
    rules |= {"retention": retention} if retention else {}
    return found | ({"policy": rules} if rules else {})


def folders(present: Sequence[str], grant: Sequence[str] | None, revoke: Sequence[str] | None) -> list[str] | None:
    """The folders that a tenant may read from now on; None: as before."""
    if not grant and not revoke:
        return None
    gone = {_whole(folder) for folder in revoke or []}
    unknown = sorted(gone - set(present))
    if unknown:
        granted = f"granted are {', '.join(present)}" if present else "no folder is granted"
        raise InvalidSpec(f"{unknown[0]} is not granted", field="--revoke", value=unknown[0], fix=granted)
    kept = [folder for folder in present if folder not in gone]
    return list(dict.fromkeys([*kept, *(_whole(folder) for folder in grant or [])]))


def written(budget: Mapping[str, Any]) -> str:
    """A budget as one writes it: ``500h/month``."""
    return f"{budget['device_hours']:g}h/{budget['per']}"


def _whole(folder: str) -> str:
    """The folder's whole path; whether it exists is for the platform's machine to say, not for this one."""
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
        raise unfit(option, text, error, "write it like v100=4,cpu=2, or none") from None


def _budget(text: str | None, warn_at: float | None, present: Mapping[str, Any] | None) -> dict[str, Any] | None:
    warning = {} if warn_at is None else {"warn_at": warn_at}
    if text is None:
        if not present:
            raise InvalidSpec("there is no budget to warn of", field="--warn-at", fix="give --budget 500h/month, too")
        return {**present, **warning}
    if text == "none":
        return None
    match = _BUDGET.match(text)
    if match is None:
        raise InvalidSpec(f"{text!r} is not a budget", field="--budget", value=text,
                          fix="write device hours per day, week or month, such as 500h/month, or none")  # fmt: skip
    return {"device_hours": float(match[1]), "per": match[2], **warning}


def kept_s(option: str, text: str) -> float | None:
    try:
        return None if text == "none" else float(parse_duration(text))
    except ValueError as error:
        raise unfit(option, text, error, "write it like 30d, or none") from None


def _size(option: str, text: str | None) -> int | None:
    try:
        return None if text is None else int(parse_size(text))
    except ValueError as error:
        raise unfit(option, text or "", error, "write it like 512MB or 20GB") from None
