"""Reads the job lists of Tiresias's simulator: recorded durations on fixed gangs; small, good for a smoke test."""

from __future__ import annotations

from pathlib import Path

from fairlead.cluster import DEVICE, Node
from fairlead.simulation.trace import Clock, Trace, TraceJob
from fairlead.simulation.trace_formats.cells import LATEST_S, LONGEST_S, Row, rows_of
from fairlead.simulation.trace_formats.recorded import RecordedJob

LOOK_S = 10.0
"""Its simulator acts when something happens; this is how long a job's queue may be out of date."""

SETTINGS = {"tiresias_thresholds": (3250.0, 7200.0), "tiresias_waiting_last": True}
"""Its own thresholds, in device seconds."""

COLUMNS = {"job_id", "num_gpu", "submit_time", "duration", "interval"}


def looks_like(path: Path, head: str) -> bool:
    return set(head.split("\n", 1)[0].strip().split(",")) >= COLUMNS


def read(path: Path, speeds: Path | None = None) -> Trace:
    """The jobs; four nodes with four devices unless another cluster is named."""
    _, rows = rows_of(path)
    jobs = [_job(row) for row in rows if row.whole("num_gpu") > 0]
    nodes = tuple(Node(f"n{at}", {DEVICE: 4.0}, "gpu") for at in range(4))
    return Trace(
        path.stem, "tiresias", tuple(jobs), LOOK_S, 0.0, nodes, clock=Clock.EVENTS, settings=SETTINGS,
        left_out=len(rows) - len(jobs),
    )  # fmt: skip


def _job(row: Row) -> TraceJob:
    gang, duration_s = row.whole("num_gpu"), row.number("duration", most=LONGEST_S)
    return TraceJob(
        id=row.text("job_id"),
        arrival_s=row.number("submit_time", most=LATEST_S),
        model=RecordedJob(duration_s, gang),
        min_workers=gang,
        max_workers=gang,
        exclusive_s=duration_s,
        facts={"application": row.text("model_name", "")},
    )
