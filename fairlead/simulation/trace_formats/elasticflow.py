"""Reads ElasticFlow's jobs with deadlines (ASPLOS 23) and its speed tables: global batch size by number of devices."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.errors import InvalidSpec, NotFound
from fairlead.scheduling.curves import SpeedCurve
from fairlead.simulation.trace import Clock, Trace, TraceJob
from fairlead.simulation.trace_formats.cells import LATEST_S, Row, rows_of
from fairlead.simulation.trace_formats.pollux import cluster

SLOT_S = 60.0
PAUSE_S = 2.0
"""What its simulator takes from every running job whenever it decides."""

DEVICE_TYPES = {"throughputs_T4": "t4", "throughputs_A100": "a100"}

SETTINGS = {"tiresias_thresholds": (3250.0, 7200.0), "tiresias_waiting_last": True}
"""Of the policies in that study, as in Tiresias's own simulator, from which theirs descends."""

WIDEST = {"bert": 16, "ncf": 1}
"""Where ElasticFlow's own simulator stops growing before the speed table does."""


def restart_s(workers: int) -> float:
    """What its simulator charges for a gang on devices that it was not on before."""
    return 2.0 + 2.0 * (math.log2(workers) + 1.0)


@dataclass(frozen=True, slots=True)
class TableJob:
    """So many steps of a fixed global batch, as fast as the table says for its number of devices."""

    work: float
    table: SpeedCurve
    device_type: str

    def rate(self, done: float, device_type: str, spread: Sequence[int]) -> float:
        """Between two measured sizes the devices beyond the smaller one do nothing."""
        usable = [size for size in self.table.sizes if size <= sum(spread)]
        if device_type != self.device_type or not usable:
            return 0.0
        return max(self.table.speed(device_type, usable[-1], level) for level in (0, 1))

    def changes_at(self, done: float) -> float:
        return math.inf

    def curve(self, done: float) -> SpeedCurve:
        return self.table

    def declared_work_left(self, done: float) -> float:
        return max(self.work - done, 0.0)


def looks_like(path: Path, head: str) -> bool:
    return set(head.split("\n", 1)[0].strip().split(",")) >= {"submit_time", "iteration", "ddl", "batch_size"}


def read(path: Path, speeds: Path | None = None) -> Trace:
    """Jobs with their deadlines; the T4 tables beside the trace unless other ones are named."""
    folder = speeds or path.parent / "throughputs_T4"
    device_type = DEVICE_TYPES.get(folder.name, folder.name.removeprefix("throughputs_").lower())
    per_node = 4 if device_type == "t4" else 8
    tables: dict[tuple[str, str], SpeedCurve] = {}
    jobs = []
    for row in rows_of(path)[1]:
        shape = (row.text("model_name"), row.text("batch_size"))
        if shape not in tables:
            tables |= _tables(folder / f"{shape[0]}.csv", device_type, per_node)
        if shape not in tables:
            text = f"{shape[0]}.csv of the speeds has no row for batch size {shape[1]}"
            raise InvalidSpec(text, field=row.at("batch_size"), fix="name other tables with --speeds")
        jobs.append(_job(row, tables[shape], device_type))
    jobs.sort(key=lambda job: job.arrival_s)
    return Trace(
        path.stem,
        "elasticflow",
        tuple(jobs),
        SLOT_S,
        restart_s(1),
        nodes=cluster() if per_node == 4 else (),
        clock=Clock.SLOTS,
        pause_s=PAUSE_S,
        settings=SETTINGS,
    )


def _job(row: Row, table: SpeedCurve, device_type: str) -> TraceJob:
    asked, steps = row.whole("num_gpu", least=1), row.number("iteration")
    model = TableJob(steps, table, device_type)
    speed, name = model.rate(0.0, device_type, (asked,)), row.text("model_name")
    return TraceJob(
        id=row.text("job_id"),
        arrival_s=row.number("submit_time", most=LATEST_S),
        model=model,
        min_workers=1,
        max_workers=table.sizes[-1],
        deadline_s=row.number("ddl", most=LATEST_S),
        exclusive_s=steps / speed if speed > 0 else 0.0,
        restart_costs={size: restart_s(size) for size in table.sizes},
        facts={"application": name, "widest": min(WIDEST.get(name, 64), _fastest(table))},
        asked=asked,
    )


def _fastest(table: SpeedCurve) -> int:
    return max(table.sizes, key=lambda size: max(table.speed(kind, size, at) for kind in table.speeds for at in (0, 1)))


def _tables(path: Path, device_type: str, per_node: int) -> dict[tuple[str, str], SpeedCurve]:
    """By (model, global batch size); sizes that were not measured (nan) are left out."""
    if not path.is_file():
        raise NotFound(f"no speed table {path.name} in {path.parent}", field="--speeds")
    tables = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            batch = row.pop("global_batch_size")
            known = {int(size): float(speed) for size, speed in row.items() if speed and speed != "nan"}
            sizes = tuple(sorted(known))
            near = tuple(known[size] if size <= per_node else 0.0 for size in sizes)
            far = tuple(known[size] if size > 1 else 0.0 for size in sizes)
            tables[path.stem, batch] = SpeedCurve(sizes, {device_type: (near, far)})
    return tables
