"""Reads the workloads of Pollux's study (OSDI 21): 160 jobs of six applications on 16 nodes with four T4 each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairlead.cluster import DEVICE, Node
from fairlead.errors import NotFound
from fairlead.scheduling.curves import SpeedCurve
from fairlead.simulation.trace import Trace, TraceJob
from fairlead.simulation.trace_formats.cells import LATEST_S, Row, rows_of
from fairlead.simulation.trace_formats.epochs import WholeSeconds
from fairlead.simulation.trace_formats.goodput import DEVICE_TYPE, Application
from fairlead.simulation.trace_formats.step_times import NODE

ROUND_S = 60.0
RESTART_S = 30.0
"""Checkpoint, new workers, restore: that study charges it for every change of a placement, the first start included."""

SETTINGS = {"tiresias_thresholds": (57_600.0,)}
"""Of the policies in that study: device seconds after which Tiresias lets a job sink."""

LARGEST_LOCAL = {"yolov3": 8}
"""Batch per device that the study allows, where it is less than what was measured."""

SINGLE = {"ncf": 32768}
"""Applications that stay on one device with one batch size, whatever the policy."""


@dataclass(frozen=True, slots=True)
class PolluxJob:
    """Learns at its goodput: steps per second times what each is worth, which changes from epoch to epoch."""

    application: Application
    sizes: tuple[int, ...]
    batch: int | None = None  # None: it adapts its batch size to its gang

    def begin(self) -> WholeSeconds:
        return WholeSeconds(self)

    @property
    def work(self) -> float:
        return float(self.application.bounds[-1])

    def rate(self, done: float, device_type: str, spread: Sequence[int]) -> float:
        if device_type != DEVICE_TYPE or not sum(spread):
            return 0.0
        return self.application.rate(self.application.epoch(done), spread, self.batch)

    def changes_at(self, done: float) -> float:
        return float(self.application.bounds[self.application.epoch(done) + 1])

    def curve(self, done: float) -> SpeedCurve:
        return self.application.curve(self.application.epoch(done), self.sizes, self.batch)

    def declared_work_left(self, done: float) -> float:
        return max(self.work - done, 0.0)


def looks_like(path: Path, head: str) -> bool:
    return set(head.split("\n", 1)[0].strip().split(",")) >= {"name", "time", "application", "num_replicas"}


def read(path: Path, speeds: Path | None = None) -> Trace:
    """The jobs of one workload file; profiles are looked for in ``traces`` beside the workloads' folder."""
    folder = speeds or path.parent.parent / "traces"
    applications: dict[str, Application] = {}
    jobs = []
    for row in rows_of(path)[1]:
        name = row.text("application")
        if name not in applications:
            applications[name] = _application(folder / name)
        jobs.append(_job(row, applications[name]))
    jobs.sort(key=lambda job: job.arrival_s)
    return Trace(path.stem, "pollux", tuple(jobs), ROUND_S, RESTART_S, cluster(), grid_s=0.0, settings=SETTINGS)


def cluster(nodes: int = 16) -> tuple[Node, ...]:
    """Of the study: nodes with four T4."""
    return tuple(Node(f"n{at:02d}", {DEVICE: float(NODE)}, DEVICE_TYPE) for at in range(nodes))


def _application(folder: Path) -> Application:
    if not (folder / "placements.csv").is_file():
        raise NotFound(
            f"no profile of {folder.name} in {folder.parent}",
            field="--speeds",
            fix="name the folder that holds one folder per application, each with placements.csv",
        )
    return Application(folder, largest_local=LARGEST_LOCAL.get(folder.name))


def _job(row: Row, application: Application) -> TraceJob:
    asked, batch = row.whole("num_replicas", least=1), row.whole("batch_size", least=1)
    single = SINGLE.get(application.name)
    sizes = (1,) if single else application.sizes
    packed = (NODE,) * (asked // NODE) + ((asked % NODE,) if asked % NODE else ())
    return TraceJob(
        id=row.text("name"),
        arrival_s=row.number("time", most=LATEST_S),
        model=PolluxJob(application, sizes, single),
        min_workers=1,
        max_workers=sizes[-1],
        exclusive_s=application.seconds(packed, batch),
        facts={"application": application.name, "batch_size": batch},
        asked=asked,
        asked_model=PolluxJob(application, (asked,), batch),
    )
