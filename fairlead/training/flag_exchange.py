"""Exchanges the step flags of all ranks by themselves, where they cannot travel with the gradients."""

from __future__ import annotations

import torch

from fairlead.training import step_flags
from fairlead.training.group import Group
from fairlead.training.step_flags import GroupFlags, RankFlags


def say(group: Group, word: RankFlags) -> GroupFlags:
    """Say this and hear everybody."""
    said = torch.tensor(step_flags.pack(word, group.rank, group.size), dtype=torch.float64, device=group.device)
    group.sum(said)
    return step_flags.unpack(said.tolist(), group.size)
