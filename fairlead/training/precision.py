"""In which precision a training computes: as its model is written, or in bf16 where all of its devices gain by that."""

from __future__ import annotations

import functools
import time
from contextlib import AbstractContextManager, nullcontext

import torch

from fairlead.training.channel import log
from fairlead.training.definition import Training
from fairlead.training.parallel.gradients import Ranks

GAIN = 1.3
"""How much faster bf16 must multiply: the casts around it cost something, too."""
SIDE, REPEATS = 512, 3


def agreed(training: Training, ranks: Ranks) -> torch.dtype | None:
    """What all ranks compute in; None: as the model is written. A collective where it has to be asked.

    bf16 has the range of float32, so losses need no scaling. It rounds more coarsely: ``auto`` uses it only where
    the Training allows another maths (``exact=False``) and every rank gains.
    """
    if training.precision != "auto" or training.exact:
        return asked(training)
    gaining = torch.tensor([float(gains(ranks.device.type))], device=ranks.device)
    ranks.sum(gaining)
    if int(gaining.item()) < ranks.size:
        return None
    log("computes in bf16, which is faster on these devices")
    return torch.bfloat16


def asked(training: Training) -> torch.dtype | None:
    """What the Training insists on, without asking any device."""
    return torch.bfloat16 if training.precision == "bf16" else None


def computing(dtype: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """Put around a forward pass; parameters, gradients and the optimizer keep their own precision."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


@functools.cache
def gains(device: str) -> bool:
    """Whether bf16 is faster here: by units that exist, then by measuring. Without units it can be 20 times slower."""
    if not _has_units(device):
        return False
    wide, narrow = (_product_s(device, dtype) for dtype in (torch.float32, torch.bfloat16))
    return wide / narrow >= GAIN


def _has_units(device: str) -> bool:
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _product_s(device: str, dtype: torch.dtype) -> float:
    """The least time of a few matrix products; of the process's own where the cpu computes."""
    left = torch.ones(SIDE, SIDE, device=device, dtype=dtype)
    clock = time.process_time if device == "cpu" else time.perf_counter
    times = []
    for _ in range(REPEATS + 1):
        begun = clock()
        float((left @ left)[0, 0])
        times.append(clock() - begun)
    return max(min(times[1:]), 1e-9)
