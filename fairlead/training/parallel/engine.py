"""The interface of engines, which carry out steps under a plan; the training loop knows nothing of parallelism."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from fairlead.training.evaluation import Outputs
from fairlead.training.parallel.batch_balance import Balance
from fairlead.training.step_flags import GroupFlags, RankFlags


class Engine(Protocol):
    """One rank's part in the computation. It borrows the session's model and optimizer for one generation."""

    balance: Balance
    splits_state: bool
    """Whether no rank holds the whole state: then saving it takes all ranks, and losing one loses it."""

    def step(self, step: int, index: torch.Tensor, own: RankFlags) -> GroupFlags:
        """Train on these samples, the whole global batch; adds this rank's loss and time to its flags."""

    def outputs(self, alive: Callable[[], None]) -> Outputs:
        """This rank's outputs on the evaluation data."""

    def state(self) -> dict[str, Any]:
        """The state in the form of one process; a collective where the state is split."""

    def end(self) -> None:
        """On all ranks, in order: return the plain model to the session, in the state that was reached."""

    def abandon(self) -> None:
        """On one rank, after a loss: return the session in a sound state, if need be without weights."""


@runtime_checkable
class ShardedEngine(Engine, Protocol):
    """An engine whose ranks can each write their own part, so that none needs room for the whole state."""

    def save(self, folder: Path) -> None:
        """On all ranks at once: write tensors that any plan can read."""

    def progress_state(self) -> dict[str, Any]:
        """The progress of the training, without tensors."""
