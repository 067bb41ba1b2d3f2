"""The history of a run: time, loss and metrics of every step, kept by every worker so that any can report it."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

REPEAT_S = 3.0
"""A new rank 0 reports the last seconds again: the old one may have died before it could."""

REPEAT_LOST_S, REPEAT_LOST_STEPS = 60.0, 1000
"""It repeats this much if that is at most so many steps.

A node that hung for ten seconds or more is fenced, and what the leader had not heard from it is lost.
"""


class History:
    """Time and loss of steps 1, 2, ... and the metrics at the ends of epochs."""

    def __init__(self, steps_per_epoch: int) -> None:
        self._steps_per_epoch = steps_per_epoch
        self._times_s = array("d")
        self._losses = array("d")
        self._marks: dict[int, dict[str, float]] = {}
        self._at_work_s: list[float] = []  # begin of the first step, end of the last evaluation

    def __len__(self) -> int:
        return len(self._losses)

    def mark_activity(self, time_s: float) -> None:
        """Call before a first step and after an evaluation: both count as training time."""
        self._at_work_s = [*self._at_work_s[:1], time_s]

    def add(self, time_s: float, loss: float) -> None:
        self._times_s.append(time_s)
        self._losses.append(loss)

    def correct_losses(self, after: int, losses: Sequence[float]) -> None:
        """Replace the losses after this step, now that all ranks' parts of them are known."""
        self._losses[after : after + len(losses)] = array("d", losses)

    def record_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._marks[step] = dict(metrics)

    def has_metrics(self, step: int) -> bool:
        return step in self._marks

    @property
    def last_loss(self) -> float | None:
        return self._losses[-1] if self._losses else None

    @property
    def last_metrics(self) -> Mapping[str, float]:
        """The newest metrics; empty before the first evaluation."""
        return self._marks[max(self._marks)] if self._marks else {}

    @property
    def seconds(self) -> float:
        """Wall time from the start of the first step to the end of the last one or of its evaluation."""
        moments = [*self._at_work_s, *self._times_s[:1], *self._times_s[-1:]]
        return max(moments) - min(moments) if self._times_s else 0.0

    def epoch_loss(self, step: int) -> float:
        """The mean loss over the epoch that ends with this step."""
        losses = self._losses[max(0, step - self._steps_per_epoch) : step]
        return sum(losses) / len(losses)

    def repeat_from(self) -> int:
        """The step after which a new rank 0 reports again."""
        if not self._times_s:
            return 0
        last_s = self._times_s[-1]
        longer = bisect_left(self._times_s, last_s - REPEAT_LOST_S)
        return min(bisect_left(self._times_s, last_s - REPEAT_S), max(longer, len(self) - REPEAT_LOST_STEPS))

    def rows(self, after: int) -> Iterator[dict[str, float]]:
        """The steps after this one, as they are reported."""
        for place in range(after, len(self._losses)):
            step = place + 1
            row = {
                "step": float(step),
                "epoch": float(place // self._steps_per_epoch),
                "time_s": self._times_s[place],
                "loss": self._losses[place],
            }
            yield row | self._marks.get(step, {})

    def state(self) -> dict[str, Any]:
        return {
            "times_s": _copied(self._times_s),
            "losses": _copied(self._losses),
            "marks": {step: dict(metrics) for step, metrics in self._marks.items()},
            "at_work_s": list(self._at_work_s),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        self._times_s = array("d", state["times_s"].tolist())
        self._losses = array("d", state["losses"].tolist())
        self._marks = {int(step): dict(metrics) for step, metrics in state["marks"].items()}
        self._at_work_s = list(state.get("at_work_s", []))  # not in snapshots of the first version


def _copied(numbers: array[float]) -> torch.Tensor:
    """Copied in one piece: a snapshot of a long training must not visit the steps one by one."""
    return torch.frombuffer(numbers, dtype=torch.float64).clone() if numbers else torch.empty(0, dtype=torch.float64)
