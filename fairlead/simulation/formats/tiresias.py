"""Reads the job lists of Tiresias's simulator: recorded durations on fixed gangs; small, good for a smoke test."""

from __future__ import annotations

import csv
from pathlib import Path

from fairlead.cluster import DEVICE, Node
from fairlead.simulation.formats.recorded import RecordedJob
from fairlead.simulation.trace import Clock, Trace, TraceJob

LOOK_S = 10.0
"""Its simulator acts when something happens; this is how long a job's queue may be out of date."""

SETTINGS = {"tiresias_thresholds": (3250.0, 7200.0), "tiresias_waiting_last": True}
"""Its own thresholds, in device seconds."""

COLUMNS = {"job_id", "num_gpu", "submit_time", "duration", "interval"}


def looks_like(path: Path, head: str) -> bool:
    return set(head.split("\n", 1)[0].strip().split(",")) >= COLUMNS


def read(path: Path, speeds: Path | None = None) -> Trace:
    """The jobs; four nodes with four devices unless another cluster is named."""
    with path.open(newline="") as file:
        jobs = [_job(row) for row in csv.DictReader(file)]
    nodes = tuple(Node(f"n{at}", {DEVICE: 4.0}, "gpu") for at in range(4))
    return Trace(path.stem, "tiresias", tuple(jobs), LOOK_S, 0.0, nodes, clock=Clock.EVENTS, settings=SETTINGS)


def _job(row: dict[str, str]) -> TraceJob:
    gang, duration_s = int(row["num_gpu"]), float(row["duration"])
    return TraceJob(
        id=row["job_id"],
        arrival_s=float(row["submit_time"]),
        model=RecordedJob(duration_s, gang),
        min_workers=gang,
        max_workers=gang,
        exclusive_s=duration_s,
        facts={"application": row["model_name"]},
    )
