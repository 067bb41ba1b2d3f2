"""Builders for these tests: the published traces, if they are on this machine, and small profiles."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

TRACES = Path(os.environ.get("FAIRLEAD_TRACES") or Path(__file__).parents[3] / "shared" / "traces")
needs_traces = pytest.mark.skipif(not TRACES.is_dir(), reason="set FAIRLEAD_TRACES to the folder of published traces")


def step_s(nodes: float, devices: float, local: float) -> float:
    """A made-up law that is linear, so that interpolation must be exact."""
    return 0.05 + 0.002 * local + 0.01 * nodes + 0.001 * devices


def profile(folder: Path, locals_: tuple[int, ...] = (8, 16, 32), batches: tuple[int, ...] = (16, 64, 256)) -> Path:
    """An application's folder as Pollux's study has them: 3 epochs of 100 units of progress each."""
    folder.mkdir(parents=True)
    spreads = ["1", "2", "3", "4", "11", "12", "22", "44", "444", "4444"]
    rows = ["placement,local_bsz,step_time,sync_time"]
    for spread in spreads:
        devices = sum(int(digit) for digit in spread)
        rows += [f"{spread},{local},{step_s(len(spread), devices, local)},0.01" for local in locals_]
    (folder / "placements.csv").write_text("\n".join(rows))
    rows = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    for nodes, devices in ((6, 6), (6, 24), (16, 16), (16, 64)):
        rows += [f"{nodes},{devices},{local},{step_s(nodes, devices, local)},0.01" for local in locals_]
    (folder / "scalability.csv").write_text("\n".join(rows))
    for batch in batches:
        rows = ["progress,iteration,metric,grad_sqr,grad_var"]
        rows += [f"{100.0 * epoch},{10 * epoch},0.5,1.0,{4.0 * epoch}" for epoch in (1, 2, 3)]
        (folder / f"validation-{batch}.csv").write_text("\n".join(rows))
    return folder
