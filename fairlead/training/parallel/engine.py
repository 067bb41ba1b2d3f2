"""What carries out the steps of one generation under a plan; the loop above it knows nothing of parallelism."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch

from fairlead.training.evaluation import Outputs
from fairlead.training.parallel.batch_balance import Balance
from fairlead.training.step_flags import GroupFlags, RankFlags


class Engine(Protocol):
    """One rank's part in the maths. It borrows the session's model and optimizer for the time of a generation."""

    balance: Balance
    spread: bool
    """Whether no rank holds everything: then a state is a matter of all ranks, and lost with one of them."""

    def step(self, step: int, index: torch.Tensor, word: RankFlags) -> GroupFlags:
        """Train on these samples, the whole global batch; the word gets this rank's loss and time on the way."""

    def outputs(self, alive: Callable[[], None]) -> Outputs:
        """This rank's part of the outputs on the evaluation data."""

    def state(self) -> dict[str, Any]:
        """The state in the form of one process; where the model is spread, all ranks must ask at once."""

    def end(self) -> None:
        """In order, by all ranks: leave the session with the plain model in the state that was reached."""

    def abandon(self) -> None:
        """Alone, after a loss: leave the session sound, if need be without weights."""


@runtime_checkable
class ShardedEngine(Engine, Protocol):
    """One whose ranks can write what they hold by themselves, so that nobody needs room for the whole."""

    def save(self, folder: Path) -> None:
        """By all ranks at once: write tensors that any plan can read."""

    def place(self) -> dict[str, Any]:
        """Where the training stands, without its tensors."""
