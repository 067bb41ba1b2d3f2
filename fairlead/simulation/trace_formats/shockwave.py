"""Reads Shockwave's traces: Gavel's lines with a mode of batch sizes that change during training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from fairlead.cluster import DEVICE, Node
from fairlead.errors import InvalidSpec
from fairlead.scheduling.curves import SpeedCurve
from fairlead.simulation.trace import Clock, RunOutcome, Trace, TraceJob
from fairlead.simulation.trace_formats.batches import (
    LARGEST,
    SAMPLES,
    SCALABLE,
    SMALLEST,
    gns_batch,
    in_critical_regime,
    profile,
)
from fairlead.simulation.trace_formats.gavel import Speeds, lines_of, read_speeds, speeds_file

ROUND_S = 120.0
RESTART_S = 20.0
RESET_S = 1000.0
"""Its fork of Gavel solves for a new allocation at most this often."""

COLUMNS = 12
REFERENCE = "v100"
EPOCHS_AHEAD = 760
NEARLY_S = 5.0
"""A gang that stops this much before the round's end is about to finish: no restart is charged to it."""

ATTEMPTS = 5
OVERTIME = 1.5
"""A job that ran this many times longer than its profile said is ended as it is."""


def looks_like(path: Path, head: str) -> bool:
    return head.split("\n", 1)[0].count("\t") == COLUMNS - 1


def read(path: Path, speeds: Path | None = None) -> Trace:
    """A Shockwave trace with the speeds of this file, or of the table that lies beside the trace."""
    lines = lines_of(path, COLUMNS)
    table = read_speeds(speeds_file(path, speeds, "tacc_throughputs.json"))
    jobs = [_job(number, words, table) for number, words in enumerate(lines)]
    nodes = (Node(REFERENCE, {DEVICE: 32.0}, REFERENCE),)
    return Trace(
        path.name, "shockwave", jobs, ROUND_S, RESTART_S, nodes, clock=Clock.LAST, first_round_free=True,
        settings={"reset_s": RESET_S},
    )  # fmt: skip


def _job(number: int, words: Sequence[str], table: Speeds) -> TraceJob:
    kind, steps, gang, mode, weight, arrival = words[0], *words[5:9], words[11]
    model = DynamicModel(kind, int(steps), int(gang), mode, table)
    return TraceJob(
        str(number), float(arrival), model, int(gang), int(gang), weight=float(weight),
        exclusive_s=sum(model.epoch_s), facts=model.facts,
    )  # fmt: skip


def named(model: str, batch: int) -> str:
    return f"{model} (batch size {batch})"


class DynamicModel:
    """Epochs are what counts; how many steps they take, and how long, depends on the batch size."""

    def __init__(self, kind: str, steps: int, gang: int, mode: str, table: Speeds) -> None:
        self.name, _, batch = kind.partition(" (batch size ")
        if self.name not in SAMPLES or (kind, gang) not in table.table:
            raise InvalidSpec(f"no speeds are known of {kind} on {gang} devices", field="job type")
        self.first, self.steps, self.gang, self.mode, self.table = int(batch[:-1]), steps, gang, mode, table
        self.samples = SAMPLES[self.name]
        self.epochs = math.ceil(steps / self.steps_per_epoch(self.first))
        self.batches = profile(self.name, self.first, gang, mode, self.epochs)
        self.epoch_s = [self.samples / batch / self.speed(batch) for batch in self.batches]
        self.facts = {"kind": kind, "mode": mode, "epochs": self.epochs, "batches": tuple(self.batches),
                      "epoch_s": tuple(self.epoch_s)}  # fmt: skip

    def steps_per_epoch(self, batch: int) -> int:
        return math.ceil(self.samples / batch)

    def speed(self, batch: int, device_type: str = REFERENCE) -> float:
        return self.table.table[named(self.name, batch), self.gang].get(device_type, 0.0)

    def known(self, batch: int) -> bool:
        return (named(self.name, batch), self.gang) in self.table.table

    @property
    def work(self) -> float:
        return float(self.steps)

    def rate(self, done: float, device_type: str, spread: Sequence[int]) -> float:
        return self.speed(self.first, device_type)

    def changes_at(self, done: float) -> float:
        return math.inf

    def curve(self, done: float) -> SpeedCurve:
        return self.table.curve(named(self.name, self.first))

    def declared_work_left(self, done: float) -> float:
        return self.steps - done

    def begin(self) -> DynamicCourse:
        return DynamicCourse(self)


class DynamicCourse:
    """A job notices after a round that its batch size should change, and changes it at the end of its next one.

    When it does, the epochs begun count as done, and all epochs of the job still have to be trained.
    """

    __slots__ = ("_failures", "_job", "_served_s", "_wanted", "batch", "ended", "ran", "total")

    def __init__(self, job: DynamicModel) -> None:
        self._job = job
        self.batch = job.first
        self.total = job.steps
        self.ran = 0
        self.ended = False
        self._wanted: int | None = None
        self._served_s = 0.0
        self._failures = 0

    @property
    def done(self) -> float:
        return float(self.ran)

    @property
    def finished(self) -> bool:
        return self.ended

    def run(self, seconds: float, device_type: str, spread: Sequence[int], restart_s: float) -> RunOutcome:
        rate = self._job.speed(self.batch, device_type)
        if rate <= 0:
            return RunOutcome(seconds, 0.0)
        steps = min(int(rate * seconds), self.total - self.ran)
        if steps <= 0:
            return self._fail(steps / rate)
        took_s = service_s = steps / rate
        if restart_s > 0 and took_s > seconds - NEARLY_S:
            service_s -= restart_s
            steps = int(steps * (service_s / took_s))
        self.ran += steps
        self._served_s += service_s
        over = self._served_s > int(int(sum(self._job.epoch_s)) * OVERTIME)
        self.ended = self.ran >= self.total or over
        if not self.ended:
            self._change_batch()
            self._wanted = self._notice()
        return RunOutcome(took_s, service_s)

    def _fail(self, took_s: float) -> RunOutcome:
        """A change of batch size left it with fewer steps than it has run: it is tried again, then given up."""
        self._failures += 1
        self.ended = self._failures >= ATTEMPTS
        return RunOutcome(took_s, 0.0)

    def _change_batch(self) -> None:
        if self._wanted is None or self._wanted == self.batch or not self._job.known(self._wanted):
            return
        job, old, new = self._job, self.batch, self._wanted
        epochs = math.ceil(self.total / job.steps_per_epoch(old))
        total = math.ceil(self.total * (1 / (new / old)))
        same = math.ceil(total / job.steps_per_epoch(new)) == epochs
        self.total = total if same else job.steps_per_epoch(new) * epochs
        self.ran = math.ceil(self.ran / job.steps_per_epoch(old)) * job.steps_per_epoch(new)
        self.batch = new

    def _notice(self) -> int | None:
        """The batch size it should have, if that is another one."""
        job = self._job
        if SCALABLE.get(job.name) == job.first:
            return None
        epoch = math.ceil(self.ran / job.steps_per_epoch(self.batch))
        if job.mode == "gns":
            return self._by_noise(epoch)
        return self._by_regime(epoch) if job.mode == "accordion" and job.name in SCALABLE else None

    def _by_noise(self, epoch: int) -> int | None:
        job, epochs = self._job, max(EPOCHS_AHEAD, epoch + 2)
        ahead = max(gns_batch(job.name, job.first, job.gang, at, epochs) for at in (epoch, epoch + 1))
        return 2 * self.batch if ahead > self.batch != LARGEST.get(job.name) else None

    def _by_regime(self, epoch: int) -> int | None:
        job = self._job
        critical = in_critical_regime(job.name, job.first, epoch)
        if self.batch == job.first and not critical and self.batch != LARGEST[job.name]:
            return SCALABLE[job.name]
        if self.batch != job.first and critical and self.batch != SMALLEST[job.name]:
            return job.first
        return None

    def seconds_left(self, device_type: str, spread: Sequence[int]) -> float:
        rate = self._job.speed(self.batch, device_type)
        return (self.total - self.ran) / rate * (1 + 1e-12) + 1e-9 if rate > 0 else math.inf

    def lose(self, work: float) -> None:
        self.ran = max(0, self.ran - int(work))

    def curve(self) -> SpeedCurve:
        return self._job.table.curve(named(self._job.name, self.batch))

    def work_left(self) -> float:
        return float(self.total - self.ran)
