"""Simulates the progress of a job whose rate depends on its gang and progress: restart first, then continuous work."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fairlead.scheduling.curves import SpeedCurve
from fairlead.simulation.trace import Course, JobModel, RunOutcome, Stepped

TINY = 1e-9
"""A job this close to its end, relative to all its work, is done: the rest is rounding."""


def begin(model: JobModel) -> Course:
    """A fresh start of this job."""
    return model.begin() if isinstance(model, Stepped) else Steady(model)


class Steady:
    """Progress is integrated exactly over the phases of the model."""

    __slots__ = ("_end", "_model", "_work", "done")

    def __init__(self, model: JobModel) -> None:
        self._model = model
        self._work = model.work
        self._end = self._work * (1 - TINY)
        self.done = 0.0

    @property
    def finished(self) -> bool:
        return self.done >= self._end

    def run(self, seconds: float, device_type: str, spread: Sequence[int], restart_s: float) -> RunOutcome:
        lost_s = min(restart_s, seconds)
        left_s = seconds - lost_s
        while left_s > 0 and self.done < self._end:
            rate = self._model.rate(self.done, device_type, spread)
            if rate <= 0:
                left_s = 0.0
                break
            until = min(self._work, self._model.changes_at(self.done))
            needed_s = (until - self.done) / rate
            if needed_s > left_s:
                self.done += rate * left_s
                left_s = 0.0
            else:
                self.done = until
                left_s -= needed_s
        took_s = seconds - left_s
        return RunOutcome(took_s, took_s - lost_s)

    def seconds_left(self, device_type: str, spread: Sequence[int]) -> float:
        total_s, done = 0.0, self.done
        while done < self._end:
            rate = self._model.rate(done, device_type, spread)
            if rate <= 0:
                return math.inf
            until = min(self._work, self._model.changes_at(done))
            total_s += (until - done) / rate
            done = until
        return total_s

    def lose(self, work: float) -> None:
        self.done = max(0.0, self.done - work)

    def curve(self) -> SpeedCurve:
        return self._model.curve(self.done)

    def work_left(self) -> float:
        return self._model.declared_work_left(self.done)
