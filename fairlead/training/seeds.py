"""Seeds that follow from their purpose, so that a replay on any machine draws the same numbers."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch

_MASK = (1 << 64) - 1


def mix(*parts: int) -> int:
    """A 63-bit number from whole numbers (the finaliser of SplitMix64, chained)."""
    state = 0
    for part in parts:
        state = (state + (part & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def digest(text: str) -> int:
    """A 63-bit hash of a text, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed torch, random and NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % (1 << 32))


def seed_quickly(seed: int) -> None:
    """Seed torch only: takes microseconds, so it can be done at every step."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed(seed)


def epoch_order(seed: int, epoch: int, samples: int) -> torch.Tensor:
    """The order in which an epoch visits its samples."""
    generator = torch.Generator().manual_seed(mix(seed, epoch, 1))
    return torch.randperm(samples, generator=generator)
