"""Models an application of Pollux's study: learning speed by gang and batch size, epoch by epoch."""

from __future__ import annotations

import csv
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairlead.scheduling.curves import SpeedCurve
from fairlead.simulation.trace_formats.step_times import NODE, Floats, StepTimes, normal

DEVICE_TYPE = "t4"
MOST_WORKERS = 64
CANDIDATES = 50
LOOKS = 3
"""How often a job measures its gradient noise at the batch size it last chose, before it keeps that one."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Ways to run on one placement: the whole batch and the seconds a step with it takes."""

    batch: Floats
    step_s: Floats


class Application:
    """Measured truth about one application; everything derived is kept, for all jobs that run it.

    A study of several types of devices has files of step times for each, told apart by their ``suffix``; in ``slower``
    it says how many times as long a step took on its real cluster.
    """

    def __init__(
        self, folder: Path, device_type: str = DEVICE_TYPE, *, suffix: str = "", node: int = NODE, slower: float = 1.0,
        largest_local: int | None = None,
    ) -> None:  # fmt: skip
        self.name, self.device_type, self.node, self._slower = folder.name, device_type, node, slower
        self.steps = StepTimes(folder, suffix)
        runs = {int(path.stem.split("-")[1]): _columns(path) for path in folder.glob("validation-*.csv")}
        self.batches = np.array(sorted(runs), dtype=np.float64)
        self.epochs = min(len(run) for run in runs.values())
        whole = np.stack([runs[int(batch)][: self.epochs] for batch in self.batches])  # batch x epoch x column
        self.bounds: Floats = np.concatenate([[0.0], whole[:, :, 0].min(axis=0)])  # progress at which epochs end
        self._ends: list[float] = self.bounds[1:].tolist()
        self._sqr, self._var = whole[:, :, 1], whole[:, :, 2]
        self.smallest_local = self.steps.smallest_local
        self.largest_local = largest_local or self.steps.largest_local
        self.first_batch, self.largest_batch = int(self.batches[0]), int(self.batches[-1])
        self._choices: dict[tuple[tuple[int, ...], int | None], Choices] = {}
        self._rates: dict[tuple[int, tuple[int, ...], int | None], float] = {}
        self._curves: dict[tuple[int, tuple[int, ...], int | None], SpeedCurve] = {}

    @property
    def most_workers(self) -> int:
        """As many as the largest batch feeds."""
        return min(MOST_WORKERS, self.steps.most_workers, self.largest_batch // self.smallest_local)

    def epoch(self, progress: float) -> int:
        return min(bisect_right(self._ends, progress * (1 + 1e-12) + 1e-9), self.epochs - 1)

    def rate(self, epoch: int, spread: Sequence[int], batch: int | None) -> float:
        """Progress per second in that epoch; with no batch size given, with the one the job would choose."""
        name = normal(tuple(spread), self.node)
        key = (epoch, name, batch)
        if key not in self._rates:
            self._rates[key] = self._best([self._options(name, batch)], epoch)[0]
        return self._rates[key]

    def curve(self, epoch: int, sizes: tuple[int, ...], batch: int | None) -> SpeedCurve:
        """Best goodput for each gang size, on one node and over several, packed as tightly as nodes allow."""
        key = (epoch, sizes, batch)
        if key not in self._curves:
            near = [(size,) for size in sizes if size <= self.node]
            far = [normal(_apart(size, self.node), self.node) for size in sizes if size > 1]
            rates = self._best([self._options(name, batch) for name in near + far], epoch)
            by_near = dict(zip(near, rates[: len(near)], strict=True))
            by_far = dict(zip([sum(name) for name in far], rates[len(near) :], strict=True))
            levels = (
                tuple(by_near.get((size,), 0.0) for size in sizes),
                tuple(by_far.get(size, 0.0) for size in sizes),
            )
            self._curves[key] = SpeedCurve(sizes, {self.device_type: levels})
        return self._curves[key]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(range(1, self.most_workers + 1))

    def seconds(self, spread: Sequence[int], batch: int | None) -> float:
        """From start to end on one placement."""
        rates = [self.rate(epoch, spread, batch) for epoch in range(self.epochs)]
        return float((np.diff(self.bounds) / np.array(rates)).sum())

    def _options(self, spread: tuple[int, ...], batch: int | None) -> Choices:
        key = (spread, batch)
        if key not in self._choices:
            workers = sum(spread)
            if batch is None:
                smallest = max(self.first_batch, self.smallest_local * workers)
                wanted = np.geomspace(smallest, self.largest_batch, CANDIDATES)
            else:
                wanted = np.array([float(batch)])
            local, accumulated = self._split(wanted, workers)
            times = self.steps.of(spread, local)
            step_s = times[:, 0] + accumulated * (times[:, 0] - times[:, 1])
            self._choices[key] = Choices(workers * local * (accumulated + 1), step_s)
        return self._choices[key]

    def _split(self, batch: Floats, workers: int) -> tuple[Floats, Floats]:
        """A whole batch as (batch per device, accumulated passes): no pass is larger than a device can hold.

        A single worker accumulates at least once when it goes beyond the first batch size, because it could not
        measure its gradient noise otherwise.
        """
        share = batch / workers
        passes = np.ceil(share / self.largest_local - 1e-8)
        if workers == 1:
            passes = np.where(batch > self.first_batch + 1e-8, np.maximum(passes, 2), passes)
        local = np.ceil(share / passes - 1e-8)
        return np.minimum(local, np.floor(self.largest_batch / (workers * passes))), passes - 1

    def _best(self, options: Sequence[Choices], epoch: int) -> list[float]:
        """The true goodput of each placement at the batch size that the job would choose for it.

        The job knows the step times of its profile but the gradient noise only at the batch size it runs with, so it
        chooses, measures and chooses again, as Pollux's agent does; it is not told the best.
        """
        if not options:
            return []
        batch = np.stack([option.batch for option in options])
        step_s = np.stack([option.step_s for option in options])
        sqr = np.interp(batch, self.batches, self._sqr[:, epoch])
        var = np.interp(batch, self.batches, self._var[:, epoch])
        rows = np.arange(len(options))
        chosen: NDArray[np.intp] = np.zeros(len(options), dtype=np.intp)
        for _ in range(LOOKS if batch.shape[1] > 1 else 0):
            believed = self._gain(batch, sqr[rows, chosen][:, None], var[rows, chosen][:, None]) / step_s
            chosen = believed.argmax(axis=1)
        true = self._gain(batch, sqr, var) / step_s
        return [float(rate) for rate in true[rows, chosen] / self._slower]

    def _gain(self, batch: Floats, sqr: Floats, var: Floats) -> Floats:
        """Progress that one step makes, in steps of the first batch size (Pollux, equation 6)."""
        scale = batch / self.first_batch
        return np.asarray((var + sqr) / (var / scale + sqr), dtype=np.float64)


def _apart(size: int, node: int) -> tuple[int, ...]:
    """The tightest way over several nodes."""
    if size <= node:
        return (size - size // 2, size // 2)
    return (node,) * (size // node) + ((size % node,) if size % node else ())


def _columns(path: Path) -> Floats:
    with path.open(newline="") as file:
        rows = [(float(r["progress"]), float(r["grad_sqr"]), float(r["grad_var"])) for r in csv.DictReader(file)]
    return np.array(rows)
