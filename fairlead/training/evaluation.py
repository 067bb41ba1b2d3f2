"""The metrics of a model on its evaluation data: computed by all workers, judged as a whole by rank 0."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fairlead.training.data import part
from fairlead.training.group import Group
from fairlead.training.seeds import mix
from fairlead.training.session import Session


def evaluate(
    session: Session, group: Group, shares: Sequence[float], alive: Callable[[], None]
) -> dict[str, float]:
    """The same metrics on every rank: eval_loss and those of the Training, exact for any function of the whole."""
    mine = part(len(session.eval_samples or ()), shares, group.rank)
    own = _outputs(session, mine, alive)
    if group.size == 1:
        return _judge(session, [own])
    parts = group.collect(_dump(own))
    metrics = _judge(session, [_load(data, session.device) for data in parts]) if group.rank == 0 else {}
    shared: dict[str, float] = json.loads(group.broadcast(json.dumps(metrics).encode(), 0))
    return shared


def _outputs(session: Session, mine: range, alive: Callable[[], None]) -> dict[str, Any]:
    """Loss and outputs of this rank's part, in order; leaves are lists of tensors, one per chunk."""
    assert session.eval_samples is not None
    chunks, targets, loss_sum = [], [], 0.0
    session.model.eval()
    with torch.no_grad():
        for start in range(mine.start, mine.stop, session.training.batch_size):
            index = torch.arange(start, min(start + session.training.batch_size, mine.stop), device=session.device)
            batch = session.eval_samples.take(index, mix(session.seed, 3))
            outputs = session.model(*batch[:-1])
            loss_sum += float(session.training.loss(outputs, batch[-1])) * len(index)
            chunks.append(outputs)
            targets.append(batch[-1])
            alive()
    session.model.train()
    return {"loss_sum": loss_sum, "chunks": chunks, "targets": targets}


def _judge(session: Session, parts: list[dict[str, Any]]) -> dict[str, float]:
    chunks = [chunk for piece in parts for chunk in piece["chunks"]]
    outputs = pytree.tree_map(lambda *leaves: torch.cat(leaves), chunks[0], *chunks[1:])
    targets = torch.cat([target for piece in parts for target in piece["targets"]])
    with torch.no_grad():
        values = {name: float(metric(outputs, targets)) for name, metric in session.training.metrics.items()}
    return {"eval_loss": sum(piece["loss_sum"] for piece in parts) / len(targets)} | values


def _dump(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _load(data: bytes, device: torch.device) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    return loaded
