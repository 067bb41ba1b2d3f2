"""Times the first passes of a new model, which show whether more than one worker can pay off."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from fairlead import wire
from fairlead.training.model_probe import compute_loss
from fairlead.training.precision import autocast, requested_dtype
from fairlead.training.session import Session

FEW, MANY = 8, 64
LONG_S = 0.02
"""A pass of a few samples that takes longer is not repeated."""

LEAST, MOST, WORTH_S = 3, 20, 0.02
"""Short passes vary more, so they are repeated more often."""

_QUEUED = Path("/proc/self/schedstat")


def time_first_passes(session: Session, rows: tuple[torch.Tensor, ...]) -> wire.Glance:
    """Time of a forward and backward pass on a core of its own, for a few samples and for more.

    Call it in a process that is thrown away: it changes buffers and random numbers.
    """
    session.model.train()
    few = min(FEW, session.training.batch_size, len(rows[-1]))
    many = min(MANY, session.training.batch_size, len(rows[-1]))
    kept = _kept_bytes(session, _first(rows, few)) / few
    few_s = _pass_s(session, _first(rows, few))  # the first backward pass in a process takes extra time
    few_s = min(few_s, (_repeated_s if few_s < LONG_S else _pass_s)(session, _first(rows, few)))
    if few == many or few_s >= LONG_S:
        return wire.Glance(0.0, few_s / few, kept)
    many_s = _repeated_s(session, _first(rows, many))
    sample_s = max(many_s - few_s, 0.0) / (many - few)
    return wire.Glance(max(few_s - sample_s * few, 0.0), sample_s, kept)


def _first(rows: tuple[torch.Tensor, ...], count: int) -> tuple[torch.Tensor, ...]:
    return tuple(column[:count] for column in rows)


def _repeated_s(session: Session, batch: tuple[torch.Tensor, ...]) -> float:
    """The shortest of several passes: disturbances only ever add time."""
    times: list[float] = []
    while len(times) < LEAST or (len(times) < MOST and sum(times) < WORTH_S):
        times.append(_pass_s(session, batch))
    return min(times)


def _pass_s(session: Session, batch: tuple[torch.Tensor, ...]) -> float:
    begun_s = _spent_s()
    session.model.zero_grad(set_to_none=True)
    with autocast(requested_dtype(session.training), session.device):
        loss = compute_loss(session.model, session.training.loss, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return _spent_s() - begun_s


def _spent_s() -> float:
    """Time in which this process computed or waited on purpose, without waiting for a core or for its quota.

    A model that waits (for a service, a disk) is as slow as one that computes, and copies of it wait in parallel.
    """
    try:
        queued_ns = int(_QUEUED.read_text(encoding="ascii").split()[1])
    except OSError:  # a kernel that does not count it
        return time.process_time()
    return time.monotonic() - queued_ns / 1e9


def _kept_bytes(session: Session, batch: tuple[torch.Tensor, ...]) -> float:
    """Bytes that autograd keeps of a forward pass besides the weights, each storage once."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in session.model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compute_loss(session.model, session.training.loss, batch)
    return float(sum(kept.values()))
