"""What carries out the steps of one generation under a plan; the loop above it knows nothing of parallelism."""

from __future__ import annotations

from typing import Protocol

import torch

from fairlead.training.words import Heard, Word


class Engine(Protocol):
    """One rank's part in the maths. It borrows the session's model and optimizer for the time of a generation."""

    shares: tuple[float, ...]
    """Part of the global batch per rank, as it is now: also how an evaluation is divided."""

    def step(self, step: int, index: torch.Tensor, word: Word) -> Heard:
        """Train on these samples, the whole global batch; the word gets this rank's loss and time on the way."""

    def close(self) -> None:
        """Give the model back as it was lent; never talks to others."""
