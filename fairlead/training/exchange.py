"""The words of a step, exchanged by themselves where they cannot ride along with the gradients."""

from __future__ import annotations

import torch

from fairlead.training import words
from fairlead.training.group import Group
from fairlead.training.words import Heard, Word


def say(group: Group, word: Word) -> Heard:
    """Say this and hear everybody."""
    said = torch.tensor(words.pack(word, group.rank, group.size), dtype=torch.float64, device=group.device)
    group.sum(said)
    return words.unpack(said.tolist(), group.size)
