"""The precision a training computes in: as its model is written, or bf16 where all devices are faster with it."""

from __future__ import annotations

import functools
import time
from contextlib import AbstractContextManager, nullcontext

import torch

from fairlead.training.channel import log
from fairlead.training.definition import Training
from fairlead.training.parallel.gradients import Ranks

GAIN = 1.3
"""How much faster bf16 must multiply to be used: the casts around it cost time, too."""
SIDE, REPEATS = 512, 3


def agree_dtype(training: Training, ranks: Ranks) -> torch.dtype | None:
    """The dtype that all ranks compute in; None: as the model is written. A collective with ``precision="auto"``.

    bf16 has the range of float32, so losses need no scaling. It rounds more coarsely: ``auto`` uses it only where the
    Training allows other maths (``exact=False``) and every rank is faster with it.
    """
    if training.precision != "auto" or training.exact:
        return requested_dtype(training)
    gaining = torch.tensor([float(bf16_is_faster(ranks.device.type))], device=ranks.device)
    ranks.sum(gaining)
    if int(gaining.item()) < ranks.size:
        return None
    log("computes in bf16, which is faster on these devices")
    return torch.bfloat16


def requested_dtype(training: Training) -> torch.dtype | None:
    """The dtype that the Training asks for; None with ``auto`` or float32."""
    return torch.bfloat16 if training.precision == "bf16" else None


def autocast(dtype: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """The context of a forward pass; parameters, gradients and the optimizer keep their own precision."""
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


@functools.cache
def bf16_is_faster(device: str) -> bool:
    """Whether bf16 is faster on this device: it has units for it, and a measurement agrees.

    Without such units it can be 20 times slower.
    """
    if not _has_units(device):
        return False
    wide, narrow = (_product_s(device, dtype) for dtype in (torch.float32, torch.bfloat16))
    return wide / narrow >= GAIN


def _has_units(device: str) -> bool:
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _product_s(device: str, dtype: torch.dtype) -> float:
    """The shortest time of a few matrix products; on a CPU in time of this process only."""
    left = torch.ones(SIDE, SIDE, device=device, dtype=dtype)
    clock = time.process_time if device == "cpu" else time.perf_counter
    times = []
    for _ in range(REPEATS + 1):
        begun = clock()
        float((left @ left)[0, 0])
        times.append(clock() - begun)
    return max(min(times[1:]), 1e-9)
