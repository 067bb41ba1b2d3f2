"""Reads Gavel's traces: tab-separated jobs, and a table of measured speeds per job type and gang."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from fairlead.errors import InvalidSpec
from fairlead.scheduling.curves import SpeedCurve
from fairlead.simulation.trace import Clock, RunOutcome, Trace, TraceJob
from fairlead.simulation.trace_formats.cells import text_of

ROUND_S = 360.0
RESET_S = 1920.0
"""Gavel solves for a new allocation at most this often."""

FAR = "_unconsolidated"
COLUMNS = 10


class Speeds:
    """Steps per second by job type and gang, then by device type; ``_unconsolidated`` means spread over nodes."""

    def __init__(self, table: Mapping[tuple[str, int], Mapping[str, float]]) -> None:
        self.table = table
        self._curves: dict[str, SpeedCurve] = {}

    def curve(self, kind: str) -> SpeedCurve:
        """Of a job type, one object for all its jobs."""
        if kind not in self._curves:
            sizes = tuple(sorted(gang for name, gang in self.table if name == kind))
            types = sorted({name.removesuffix(FAR) for size in sizes for name in self.table[kind, size]})
            near = {name: self._row(kind, sizes, name) for name in types}
            far = {name: self._row(kind, sizes, name + FAR) for name in types}
            self._curves[kind] = SpeedCurve(sizes, {name: (near[name], far[name]) for name in types})
        return self._curves[kind]

    def _row(self, kind: str, sizes: tuple[int, ...], name: str) -> tuple[float, ...]:
        return tuple(self.table[kind, size].get(name, 0.0) for size in sizes)


def looks_like(path: Path, head: str) -> bool:
    return head.split("\n", 1)[0].count("\t") == COLUMNS - 1


def read(path: Path, speeds: Path | None = None) -> Trace:
    """A Gavel trace with the speeds of this file, or of the table that lies beside the trace."""
    lines = lines_of(path, COLUMNS)
    table = read_speeds(speeds_file(path, speeds, "simulation_throughputs.json"))
    jobs = [_job(number, words, table) for number, words in enumerate(lines)]
    return Trace(path.name, "gavel", jobs, ROUND_S, 0.0, clock=Clock.LAST, settings={"reset_s": RESET_S})


def lines_of(path: Path, columns: int) -> list[list[str]]:
    """The words of each line that is not empty."""
    rows = [line.split("\t") for line in text_of(path).splitlines() if line.strip()]
    for number, words in enumerate(rows, start=1):
        if len(words) != columns:
            raise InvalidSpec(f"line {number} has {len(words)} columns, not {columns}", field=path.name)
    return rows


def speeds_file(trace: Path, given: Path | None, usual: str) -> Path:
    """Where the table of speeds is: the file given, in the folder given, or beside the trace."""
    place = given or trace.parent
    found = place / usual if place.is_dir() else place
    if not found.is_file():
        raise InvalidSpec(f"there is no table of speeds at {found}", field="--speeds", fix="name it with --speeds")
    return found


@cache
def read_speeds(path: Path) -> Speeds:
    """What each job type does alone on each device type."""
    table: dict[tuple[str, int], dict[str, float]] = {}
    try:
        for device_type, jobs in json.loads(text_of(path)).items():
            for key, measured in jobs.items():
                name, gang = ast.literal_eval(key)
                table.setdefault((name, int(gang)), {})[device_type] = float(measured["null"])
    except (ValueError, TypeError, AttributeError, KeyError, SyntaxError) as error:
        text = f"{path.name} is no table of speeds: {type(error).__name__}: {error}"
        raise InvalidSpec(text, field="--speeds", fix="name a table as Gavel's simulator has them") from error
    return Speeds(table)


def _job(number: int, words: Sequence[str], table: Speeds) -> TraceJob:
    kind, *_, steps, gang, weight, slo, arrival = (*words[:1], *words[5:])
    alone = table.table.get((kind, int(gang)))
    if alone is None:
        raise InvalidSpec(f"no speeds are known of {kind} on {gang} devices", field=f"line {number + 1}")
    fastest = max(speed for name, speed in alone.items() if not name.endswith(FAR))
    exclusive_s = int(steps) / fastest
    deadline_s = float(arrival) + float(slo) * exclusive_s if float(slo) > 0 else None
    return TraceJob(
        str(number), float(arrival), StepsModel(kind, int(gang), int(steps), table), int(gang), int(gang),
        weight=float(weight), deadline_s=deadline_s, exclusive_s=exclusive_s, facts={"kind": kind},
    )  # fmt: skip


class StepsModel:
    """A job of so many steps at a speed that never changes."""

    def __init__(self, kind: str, gang: int, steps: int, table: Speeds) -> None:
        self.kind, self.gang, self.steps = kind, gang, steps
        self._curve = table.curve(kind)

    @property
    def work(self) -> float:
        return float(self.steps)

    def rate(self, done: float, device_type: str, spread: Sequence[int]) -> float:
        return self._curve.speed(device_type, sum(spread), min(1, len(spread) - 1))

    def changes_at(self, done: float) -> float:
        return math.inf

    def curve(self, done: float) -> SpeedCurve:
        return self._curve

    def declared_work_left(self, done: float) -> float:
        return self.steps - done

    def begin(self) -> StepsCourse:
        return StepsCourse(self)


class StepsCourse:
    """Only whole steps are done: what of a round is left over after the last whole one is lost."""

    __slots__ = ("_model", "done")

    def __init__(self, model: StepsModel) -> None:
        self._model = model
        self.done = 0.0

    @property
    def finished(self) -> bool:
        return self.done >= self._model.steps

    def run(self, seconds: float, device_type: str, spread: Sequence[int], restart_s: float) -> RunOutcome:
        rate = self._model.rate(self.done, device_type, spread)
        left = self._model.steps - self.done
        lost_s = min(restart_s, seconds)
        if rate <= 0:
            return RunOutcome(seconds, 0.0)
        steps = min(int(rate * (seconds - lost_s)), left)
        self.done += steps
        took_s = steps / rate
        return RunOutcome(lost_s + took_s, took_s)

    def seconds_left(self, device_type: str, spread: Sequence[int]) -> float:
        rate = self._model.rate(self.done, device_type, spread)
        # A moment more, so that rounding down to whole steps leaves none over.
        return (self._model.steps - self.done) / rate * (1 + 1e-12) + 1e-9 if rate > 0 else math.inf

    def lose(self, work: float) -> None:
        self.done = max(0.0, self.done - int(work))

    def curve(self) -> SpeedCurve:
        return self._model.curve(self.done)

    def work_left(self) -> float:
        return self._model.steps - self.done
