"""Reads the workloads of Sia's study (SOSP 23): Pollux's applications, measured on three unlike types of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fairlead.cluster import Node
from fairlead.errors import NotFound
from fairlead.scheduling.curves import SpeedCurve
from fairlead.simulation.clusters import cluster
from fairlead.simulation.trace import Trace, TraceJob
from fairlead.simulation.trace_formats import pollux
from fairlead.simulation.trace_formats.cells import LATEST_S, Row, rows_of
from fairlead.simulation.trace_formats.epochs import WholeSeconds
from fairlead.simulation.trace_formats.goodput import Application

CLUSTER = "6x4xaws,2x8xdgx-ext,3x8xrtx"
"""T4, A100 and RTX 2080 Ti, as its files call them."""

ROUND_S = 60.0
WIDTHS = {"aws": 4, "dgx-ext": 8, "rtx": 8}
"""Devices of a node, by type."""

RESTART_S = {"cifar10": 50.0, "deepspeech2": 25.0, "bert": 120.0, "yolov3": 80.0, "imagenet": 250.0, "ncf": 15.0}
OTHERS_RESTART_S = 30.0
"""What a change of gang costs an application, its first start included."""

SLOWER = {"cifar10": 1.8, "ncf": 1.5}
OTHERS_SLOWER = 1.2
"""Steps took so many times as long on the real cluster as in the profiles."""

LARGEST_LOCAL = {("deepspeech2", "rtx"): 57}


@dataclass(frozen=True)
class Applications:
    """One application on all types of devices; its epochs are the same on each."""

    by_type: Mapping[str, Application]
    _curves: dict[tuple[int, tuple[int, ...], int | None], SpeedCurve] = field(default_factory=dict)

    @property
    def any(self) -> Application:
        return next(iter(self.by_type.values()))

    @property
    def sizes(self) -> tuple[int, ...]:
        return max((one.sizes for one in self.by_type.values()), key=len)

    def curve(self, epoch: int, sizes: tuple[int, ...], batch: int | None) -> SpeedCurve:
        """The curves of all types as one: 0 for gangs that are too large for a type."""
        key = (epoch, sizes, batch)
        if key not in self._curves:
            speeds = {}
            for name, one in self.by_type.items():
                there = one.curve(epoch, tuple(size for size in sizes if size <= one.most_workers), batch)
                near, far = there.speeds[name]
                rest = (0.0,) * (len(sizes) - len(there.sizes))
                speeds[name] = (near + rest, far + rest)
            self._curves[key] = SpeedCurve(sizes, speeds)
        return self._curves[key]

    def seconds(self, workers: int, batch: int) -> float:
        """From start to end on the fastest type, packed as tightly as its nodes allow."""
        found = []
        for one in self.by_type.values():
            if workers <= one.most_workers:
                whole, rest = divmod(workers, one.node)
                found.append(one.seconds((one.node,) * whole + ((rest,) if rest else ()), batch))
        return min(found, default=0.0)


@dataclass(frozen=True, slots=True)
class SiaJob:
    """As a job of Pollux's study, on any type of device."""

    applications: Applications
    sizes: tuple[int, ...]
    batch: int | None = None  # None: it adapts its batch size to its gang

    def begin(self) -> WholeSeconds:
        return WholeSeconds(self)

    @property
    def work(self) -> float:
        return float(self.applications.any.bounds[-1])

    def rate(self, done: float, device_type: str, spread: Sequence[int]) -> float:
        one = self.applications.by_type.get(device_type)
        if one is None or not 0 < sum(spread) <= one.most_workers:
            return 0.0
        return one.rate(one.epoch(done), spread, self.batch)

    def changes_at(self, done: float) -> float:
        one = self.applications.any
        return float(one.bounds[one.epoch(done) + 1])

    def curve(self, done: float) -> SpeedCurve:
        return self.applications.curve(self.applications.any.epoch(done), self.sizes, self.batch)

    def declared_work_left(self, done: float) -> float:
        return max(self.work - done, 0.0)


def looks_like(path: Path, head: str) -> bool:
    """The workloads themselves are written as Pollux's are, but their profiles lie elsewhere."""
    return pollux.looks_like(path, head) and (path.parent.parent / "profiles").is_dir()


def read(path: Path, speeds: Path | None = None) -> Trace:
    """The jobs of one workload file; profiles are looked for in ``profiles`` beside the workloads' folder."""
    folder = speeds or path.parent.parent / "profiles"
    known: dict[str, Applications] = {}
    jobs = []
    for row in rows_of(path)[1]:
        name = row.text("application")
        if name not in known:
            known[name] = _applications(folder / name)
        jobs.append(_job(row, known[name]))
    jobs.sort(key=lambda job: job.arrival_s)
    nodes: tuple[Node, ...] = cluster(CLUSTER)
    return Trace(path.stem, "sia", tuple(jobs), ROUND_S, OTHERS_RESTART_S, nodes, grid_s=0.0, settings=pollux.SETTINGS)


def _applications(folder: Path) -> Applications:
    types = [kind for kind in WIDTHS if (folder / f"placements-{kind}.csv").is_file()]
    if not types:
        raise NotFound(
            f"no profile of {folder.name} in {folder.parent}",
            field="--speeds",
            fix=f"name the folder that holds one folder per application, each with placements-{next(iter(WIDTHS))}.csv",
        )
    slower = SLOWER.get(folder.name, OTHERS_SLOWER)
    return Applications({
        kind: Application(
            folder, kind, suffix=f"-{kind}", node=WIDTHS[kind], slower=slower,
            largest_local=LARGEST_LOCAL.get((folder.name, kind)),
        )
        for kind in types
    })  # fmt: skip


def _job(row: Row, applications: Applications) -> TraceJob:
    asked, batch = row.whole("num_replicas", least=1), row.whole("batch_size", least=1)
    name = applications.any.name
    single = pollux.SINGLE.get(name)
    sizes = (1,) if single else applications.sizes
    return TraceJob(
        id=row.text("name"),
        arrival_s=row.number("time", most=LATEST_S),
        model=SiaJob(applications, sizes, single),
        min_workers=1,
        max_workers=sizes[-1],
        exclusive_s=applications.seconds(asked, batch),
        restart_cost_s=RESTART_S.get(name, OTHERS_RESTART_S),
        facts={"application": name, "batch_size": batch},
        asked=asked,
        asked_model=SiaJob(applications, (asked,), batch),
    )
