"""Which epoch was the best so far, and whether it is time to stop: from figures that all ranks share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from fairlead.training.definition import Training


class EarlyStopping:
    """Judges epochs by one figure. Every rank comes to the same, and it travels with the state."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.best = math.nan
        self.best_step = 0
        self.judged_step = 0  # the newest epoch's end that was looked at
        self._without = 0
        self.model: dict[str, torch.Tensor] = {}  # of the best epoch, if it is to be kept

    def judge(self, step: int, figures: Mapping[str, float]) -> bool:
        """Look at an epoch that ended with this step; true if it is the best one so far."""
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
    def enough(self) -> bool:
        """Whether so many epochs brought nothing that the training ends early."""
        patience = self._training.early_stopping
        return patience is not None and self._without >= patience

    def keep(self, state: Mapping[str, Any]) -> None:
        """Hold a copy of the best model."""
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
