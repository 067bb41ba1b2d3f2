"""The few words that the ranks say to each other at every step: loss, time and wishes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fairlead.errors import TrainingFailed


@dataclass(frozen=True, slots=True)
class RankFlags:
    """What one rank has to say: its part of the mean loss, what it computed for, whether it was told to leave."""

    loss: float = 0.0
    compute_s: float = 0.0
    leaving: bool = False
    snapshot: bool = False  # rank 0 finds that one is due, which takes everybody where the state is spread


@dataclass(frozen=True, slots=True)
class GroupFlags:
    """What all ranks know after an exchange; the same on every rank."""

    losses: tuple[float, ...]
    compute_s: tuple[float, ...]
    leaving: int
    snapshot: bool

    @property
    def loss(self) -> float:
        return sum(self.losses)

    def check(self, step: int) -> None:
        """Refuse to go on with a loss that is no number; every rank raises the same and names the same one."""
        for rank, loss in enumerate(self.losses):
            if not math.isfinite(loss):
                raise not_a_number(loss, step, rank)


def not_a_number(loss: float, step: int, rank: int) -> TrainingFailed:
    """What is said of such a loss; ``step`` counts from 0."""
    return TrainingFailed(
        f"it is {loss} at step {step + 1} on rank {rank}", field="loss",
        fix="look for a division by zero, a logarithm of zero or a learning rate that is too high",
    )  # fmt: skip


def count(size: int) -> int:
    """How many numbers the words of so many ranks take."""
    return 2 + 2 * size


def pack(word: RankFlags, rank: int, size: int) -> list[float]:
    """This rank's words, zero where others will write theirs: summed over the ranks they are everybody's."""
    values = [0.0] * count(size)
    values[0], values[1] = float(word.leaving), float(word.snapshot)
    values[2 + rank], values[2 + size + rank] = word.loss, word.compute_s
    return values


def unpack(values: Sequence[float], size: int) -> GroupFlags:
    return GroupFlags(
        tuple(values[2 : 2 + size]), tuple(values[2 + size : 2 + 2 * size]), round(values[0]), values[1] > 0
    )  # fmt: skip


def alone(word: RankFlags) -> GroupFlags:
    """What a single rank hears: itself."""
    return GroupFlags((word.loss,), (word.compute_s,), int(word.leaving), word.snapshot)
