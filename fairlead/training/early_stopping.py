"""Tracks the best epoch and decides when to stop, from metrics that are the same on all ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from fairlead.training.definition import Training


class EarlyStopping:
    """Compares epochs by one metric. Every rank decides the same; the decision's state travels with snapshots."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.best = math.nan
        self.best_step = 0
        self.judged_step = 0  # the last step of the newest epoch that was compared
        self._without = 0
        self.model: dict[str, torch.Tensor] = {}  # of the best epoch, with keep_best

    def judge(self, step: int, figures: Mapping[str, float]) -> bool:
        """Compare the epoch that ended with this step; True if it is the best so far."""
        value = figures[self._training.monitor]
        lower = self._training.monitor_mode == "min"
        better = value < self.best if lower else value > self.best
        better = better or (math.isnan(self.best) and not math.isnan(value))
        self.judged_step = step
        self._without = 0 if better else self._without + 1
        if better:
            self.best, self.best_step = value, step
        return better

    @property
    def should_stop(self) -> bool:
        """Whether ``early_stopping`` epochs in a row brought no improvement."""
        patience = self._training.early_stopping
        return patience is not None and self._without >= patience

    def keep(self, state: Mapping[str, Any]) -> None:
        """Keep a copy of the best model."""
        self.model = {name: tensor.detach().clone() for name, tensor in state.items()}

    def state(self) -> dict[str, Any]:
        return {
            "best": self.best, "best_step": self.best_step, "judged_step": self.judged_step, "without": self._without,
            "model": self.model,
        }  # fmt: skip

    def load(self, state: Mapping[str, Any]) -> None:
        self.best, self.best_step = float(state["best"]), int(state["best_step"])
        self.judged_step, self._without = int(state["judged_step"]), int(state["without"])
        self.model = dict(state["model"])
