"""Reads Microsoft's Philly trace: recorded jobs of fifteen virtual clusters, which are the tenants here."""

from __future__ import annotations

import csv
from datetime import UTC, datetime
from pathlib import Path

from fairlead.cluster import DEVICE, Node
from fairlead.scheduling.state import TenantState
from fairlead.simulation.formats.plain import chosen
from fairlead.simulation.formats.recorded import RecordedJob
from fairlead.simulation.trace import Trace, TraceJob

ROUND_S = 300.0
RESTART_S = 30.0
NODES, PER_NODE = 52, 8
TENANT = "cluster"
COLUMNS = {"timestamp", "duration", "num_gpus", TENANT}


def looks_like(path: Path, head: str) -> bool:
    return set(head.split("\n", 1)[0].strip().split(",")) >= COLUMNS


def read(path: Path, speeds: Path | None = None, *, tenant_column: str | None = None) -> Trace:
    """All jobs in the order they came, from the first one on; 416 devices in nodes of eight.

    Tenants' weights are the sizes of their virtual clusters, from the file that ``speeds`` names or from
    ``helios/philly_vc.csv`` beside the trace's own folder; without either they are equal.
    """
    with path.open(newline="") as file:
        lines = csv.DictReader(file)
        column = chosen(tenant_column, lines.fieldnames or ()) or TENANT
        rows = list(lines)
    came = [_seconds(row["timestamp"]) for row in rows]
    first_s = min(came, default=0.0)
    jobs = [_job(at, row, when_s - first_s, column) for at, (row, when_s) in enumerate(zip(rows, came, strict=True))]
    jobs.sort(key=lambda job: job.arrival_s)
    nodes = tuple(Node(f"n{at:02d}", {DEVICE: float(PER_NODE)}, "gpu") for at in range(NODES))
    weights = speeds or path.parent.parent.parent / "helios" / "philly_vc.csv"
    names = sorted({job.tenant for job in jobs})
    return Trace(path.stem, "philly", tuple(jobs), ROUND_S, RESTART_S, nodes, tenants=tenants(names, weights))


def tenants(names: list[str], sizes: Path) -> tuple[TenantState, ...]:
    """By name, weighted by the nodes of their virtual cluster; whoever is not listed gets the mean of the others."""
    listed: dict[str, float] = {}
    if sizes.is_file():
        with sizes.open(newline="") as file:
            listed = {row["vc"]: float(row["node num"]) for row in csv.DictReader(file)}
    mean = sum(listed.values()) / len(listed) if listed else 1.0
    return tuple(TenantState(name, listed.get(name, mean)) for name in names)


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).replace(tzinfo=UTC).timestamp()


def _job(at: int, row: dict[str, str], arrival_s: float, column: str) -> TraceJob:
    gang, duration_s = int(row["num_gpus"]), float(row["duration"])
    return TraceJob(
        id=f"j{at}",
        arrival_s=arrival_s,
        model=RecordedJob(duration_s, gang),
        min_workers=gang,
        max_workers=gang,
        tenant=row[column] or "all",
        exclusive_s=duration_s,
    )
