"""Reads Microsoft's Philly trace: recorded jobs of fifteen virtual clusters, which are the tenants here."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from fairlead.cluster import DEVICE, Node
from fairlead.errors import InvalidSpec
from fairlead.scheduling.state import TenantState
from fairlead.simulation.trace import Trace, TraceJob
from fairlead.simulation.trace_formats.cells import LONGEST_S, Row, rows_of
from fairlead.simulation.trace_formats.plain import chosen
from fairlead.simulation.trace_formats.recorded import RecordedJob

ROUND_S = 300.0
RESTART_S = 30.0
NODES, PER_NODE = 52, 8
TENANT = "cluster"
COLUMNS = {"timestamp", "duration", "num_gpus", TENANT}


def looks_like(path: Path, head: str) -> bool:
    return set(head.split("\n", 1)[0].strip().split(",")) >= COLUMNS


def read(path: Path, speeds: Path | None = None, *, tenant_column: str | None = None) -> Trace:
    """All jobs with devices in the order they came, from the first one on; 416 devices in nodes of eight.

    Tenants' weights are the sizes of their virtual clusters, from the file that ``speeds`` names or from
    ``helios/philly_vc.csv`` beside the trace's own folder; without either they are equal.
    """
    header, every = rows_of(path)
    column = chosen(tenant_column, header) or TENANT
    rows = [row for row in every if row.whole("num_gpus") > 0]
    came = [_seconds(row) for row in rows]
    first_s = min(came, default=0.0)
    jobs = [_job(at, row, when_s - first_s, column) for at, (row, when_s) in enumerate(zip(rows, came, strict=True))]
    jobs.sort(key=lambda job: job.arrival_s)
    nodes = tuple(Node(f"n{at:02d}", {DEVICE: float(PER_NODE)}, "gpu") for at in range(NODES))
    weights = speeds or path.parent.parent.parent / "helios" / "philly_vc.csv"
    names = sorted({job.tenant for job in jobs})
    return Trace(
        path.stem, "philly", tuple(jobs), ROUND_S, RESTART_S, nodes, tenants=tenants(names, weights),
        left_out=len(every) - len(rows),
    )  # fmt: skip


def tenants(names: list[str], sizes: Path) -> tuple[TenantState, ...]:
    """By name, weighted by the nodes of their virtual cluster; whoever is not listed gets the mean of the others."""
    listed: dict[str, float] = {}
    if sizes.is_file():
        listed = {row.text("vc"): row.number("node num", above=0.0) for row in rows_of(sizes)[1]}
    mean = sum(listed.values()) / len(listed) if listed else 1.0
    return tuple(TenantState(name, listed.get(name, mean)) for name in names)


def _seconds(row: Row) -> float:
    text = row.text("timestamp")
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        fix = "write it like 2017-10-03 00:00:00"
        raise InvalidSpec(f"{text!r} is not a time", field=row.at("timestamp"), fix=fix) from error


def _job(at: int, row: Row, arrival_s: float, column: str) -> TraceJob:
    gang, duration_s = row.whole("num_gpus"), row.number("duration", most=LONGEST_S)
    return TraceJob(
        id=f"j{at}",
        arrival_s=arrival_s,
        model=RecordedJob(duration_s, gang),
        min_workers=gang,
        max_workers=gang,
        tenant=row.text(column, "all"),
        exclusive_s=duration_s,
    )
