"""The flags that ranks exchange at every step: loss, compute time, who leaves, whether a snapshot is due."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fairlead.errors import TrainingFailed

if TYPE_CHECKING:
    from fairlead.training.group import Group


@dataclass(frozen=True, slots=True)
class RankFlags:
    """One rank's flags: its part of the mean loss, its compute time, whether it was told to leave."""

    loss: float = 0.0
    compute_s: float = 0.0
    leaving: bool = False
    snapshot: bool = False  # rank 0's clock: one is due; where the state is split, every rank takes part in it


@dataclass(frozen=True, slots=True)
class GroupFlags:
    """The flags of all ranks after an exchange; the same on every rank."""

    losses: tuple[float, ...]
    compute_s: tuple[float, ...]
    leaving: int
    snapshot: bool

    @property
    def loss(self) -> float:
        return sum(self.losses)

    def check(self, step: int) -> None:
        """Raise if a rank's loss is not finite; every rank raises the same error."""
        for rank, loss in enumerate(self.losses):
            if not math.isfinite(loss):
                raise non_finite_loss(loss, step, rank)


def non_finite_loss(loss: float, step: int, rank: int) -> TrainingFailed:
    """The error for a loss that is not finite; ``step`` counts from 0."""
    return TrainingFailed(
        f"it is {loss} at step {step + 1} on rank {rank}", field="loss",
        fix="look for a division by zero, a logarithm of zero or a learning rate that is too high",
    )  # fmt: skip


def flag_count(size: int) -> int:
    """How many numbers the flags of ``size`` ranks take."""
    return 2 + 2 * size


def pack(own: RankFlags, rank: int, size: int) -> list[float]:
    """This rank's flags in its places and zeros in the others': summed over the ranks they are the flags of all."""
    values = [0.0] * flag_count(size)
    values[0], values[1] = float(own.leaving), float(own.snapshot)
    values[2 + rank], values[2 + size + rank] = own.loss, own.compute_s
    return values


def unpack(values: Sequence[float], size: int) -> GroupFlags:
    return GroupFlags(
        tuple(values[2 : 2 + size]), tuple(values[2 + size : 2 + 2 * size]), round(values[0]), values[1] > 0
    )  # fmt: skip


def single_rank_flags(own: RankFlags) -> GroupFlags:
    """The flags of a gang of one."""
    return GroupFlags((own.loss,), (own.compute_s,), int(own.leaving), own.snapshot)


def exchange_flags(group: Group, own: RankFlags) -> GroupFlags:
    """Exchange flags by a collective of their own, for engines that cannot send them with the gradients."""
    values = torch.tensor(pack(own, group.rank, group.size), dtype=torch.float64, device=group.device)
    group.sum(values)
    return unpack(values.tolist(), group.size)
