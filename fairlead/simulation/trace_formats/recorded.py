"""Models recorded jobs, known only by run time and devices: they run the same again on any device type."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from fairlead.scheduling.curves import SpeedCurve
from fairlead.simulation.job_course import Steady
from fairlead.simulation.trace import RunOutcome

ANY = "gpu"
"""The one type that stands for all where types are listed."""

Rows = tuple[tuple[float, ...], ...]


class UniformSpeeds(Mapping[str, Rows]):
    """Speeds that are the same on every type of device, whatever a cluster calls its own."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __getitem__(self, device_type: str) -> Rows:
        return self._rows

    def __iter__(self) -> Iterator[str]:
        return iter((ANY,))

    def __len__(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """A second of its recorded time per second, on its whole gang and on no other."""

    work: float
    gang: int

    def begin(self) -> RestartCosts:
        return RestartCosts(self)

    def rate(self, done: float, device_type: str, spread: Sequence[int]) -> float:
        return 1.0 if sum(spread) >= self.gang else 0.0

    def changes_at(self, done: float) -> float:
        return math.inf

    def curve(self, done: float) -> SpeedCurve:
        return constant(self.gang)

    def declared_work_left(self, done: float) -> float:
        return max(self.work - done, 0.0)


class RestartCosts(Steady):
    """The first start is part of what was recorded; only later ones cost extra."""

    __slots__ = ()

    def run(self, seconds: float, device_type: str, spread: Sequence[int], restart_s: float) -> RunOutcome:
        return super().run(seconds, device_type, spread, restart_s if self.done > 0 else 0.0)


@cache
def constant(gang: int) -> SpeedCurve:
    """The one curve of all rigid gangs of this size."""
    return SpeedCurve((gang,), UniformSpeeds(((1.0,), (1.0,))))
