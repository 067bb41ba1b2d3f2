"""Reads Slurm's accounting: the output of ``sacct --parsable2 --allocations`` with times and resources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from fairlead.errors import InvalidSpec
from fairlead.simulation.trace import Clock, Trace, TraceJob
from fairlead.simulation.trace_formats.cells import text_of
from fairlead.simulation.trace_formats.plain import chosen
from fairlead.simulation.trace_formats.recorded import RecordedJob

ROUND_S = 60.0
RESTART_S = 30.0
GPUS = re.compile(r"gres/gpu(:[\w.-]+)?=(\d+)")
ELAPSED = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)(?:\.\d+)?")
FIX = "sacct --parsable2 --allocations --format=JobID,User,Account,Submit,ElapsedRaw,AllocTRES,State"


def looks_like(path: Path, head: str) -> bool:
    names = head.split("\n", 1)[0].strip().split("|")
    return "JobID" in names and "Submit" in names


def read(path: Path, speeds: Path | None = None, *, tenant_column: str | None = None) -> Trace:
    """Jobs that ran on devices, as they ran; steps of jobs, and jobs that never started, are left out."""
    lines = text_of(path).splitlines()
    header = lines[0].strip().split("|") if lines else []
    if missing := [name for name in ("JobID", "Submit") if name not in header]:
        raise InvalidSpec(f"the column {missing[0]} is missing", field=path.name, fix=FIX)
    column = chosen(tenant_column, header) or "Account"
    rows = [dict(zip(header, line.split("|"), strict=False)) for line in lines[1:] if line.strip()]
    jobs = [job for row in rows if (job := _job(row, column)) is not None]
    first_s = min((job.arrival_s for job in jobs), default=0.0)
    jobs = sorted((replace(job, arrival_s=job.arrival_s - first_s) for job in jobs), key=lambda job: job.arrival_s)
    left_out = len(rows) - len(jobs)
    return Trace(path.name, "sacct", jobs, ROUND_S, RESTART_S, clock=Clock.EVENTS, left_out=left_out)


def _job(row: Mapping[str, str], tenant_column: str) -> TraceJob | None:
    name = row["JobID"]
    seconds, devices = _seconds(row), _devices(row)
    if "." in name or seconds <= 0 or devices < 1:
        return None
    tenant = row.get(tenant_column) or row.get("User") or "all"
    model = RecordedJob(seconds, devices)
    return TraceJob(name, _submitted(row), model, devices, devices, tenant=tenant, exclusive_s=seconds)


def _submitted(row: Mapping[str, str]) -> float:
    text = row.get("Submit", "")
    try:
        when = datetime.fromisoformat(text)
        return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()
    except ValueError as error:
        raise InvalidSpec(f"{text!r} is not a time", field=f"job {row['JobID']}: Submit", fix=FIX) from error


def _seconds(row: Mapping[str, str]) -> float:
    raw = row.get("ElapsedRaw")
    if raw:
        if not raw.isdecimal():
            raise InvalidSpec(f"{raw!r} is no number of seconds", field=f"job {row['JobID']}: ElapsedRaw", fix=FIX)
        return float(raw)
    parsed = ELAPSED.fullmatch(row.get("Elapsed", ""))
    if parsed is None:
        raise InvalidSpec("how long it ran is not said", field=f"job {row['JobID']}: ElapsedRaw", fix=FIX)
    days, hours, minutes, seconds = (int(part or 0) for part in parsed.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _devices(row: Mapping[str, str]) -> int:
    """Devices of all its nodes; on clusters without any, its cores stand for them."""
    for column in ("AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES"):
        found = GPUS.findall(row.get(column, ""))
        if found:  # the total where it is told, or else all types together
            totals = [int(number) for kind, number in found if not kind]
            return max(totals) if totals else sum(int(number) for _, number in found)
    if any(column in row for column in ("AllocTRES", "ReqTRES")):
        return 0
    return int(row.get("AllocCPUS") or row.get("NCPUS") or 0)
