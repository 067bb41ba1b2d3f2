"""Progress of a simulated job whose epochs end at whole seconds, as in the simulator of Pollux's study."""

from __future__ import annotations

from collections.abc import Sequence

from fairlead.simulation.job_course import Steady
from fairlead.simulation.trace import RunOutcome


class WholeSeconds(Steady):
    """Progress is continuous, but what an epoch still takes is rounded to seconds when it ends.

    Over the hundred short epochs of a job this shifts its end by less than a percent; without it the published
    averages cannot be met to the digit.
    """

    __slots__ = ()

    def run(self, seconds: float, device_type: str, spread: Sequence[int], restart_s: float) -> RunOutcome:
        lost_s = min(restart_s, seconds)
        left_s = seconds - lost_s
        while left_s > 0 and not self.finished:
            rate = self._model.rate(self.done, device_type, spread)
            until = min(self._work, self._model.changes_at(self.done))
            if self.done + rate * left_s < until:
                self.done += rate * left_s
                left_s = 0.0
            else:
                left_s = max(0.0, left_s - round((until - self.done) / rate))
                self.done = until
        took_s = seconds - left_s
        return RunOutcome(took_s, took_s - lost_s)
