"""Evaluates a model: every rank computes outputs for its rows, rank 0 computes the metrics from all of them."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fairlead.training.group import Group
from fairlead.training.lightning import validation_loss
from fairlead.training.samples import Batch
from fairlead.training.seeds import mix
from fairlead.training.session import Session

Outputs = dict[str, Any]
"""Of some rows in order: the sum of their losses, their number, and with metrics the outputs of each chunk of rows.

``like`` is any output of this rank: rank 0 takes the structure of the others' from it.
"""


def evaluate(session: Session, group: Group, own: Outputs) -> dict[str, float]:
    """The same metrics on every rank: eval_loss and those of the Training, exact for any function of all rows.

    ``own`` are this rank's outputs; together the ranks hold each row once.
    """
    like = own.pop("like")
    if group.size == 1:
        return _judge(session, [own], like)
    parts = [_load(data, session.device) for data in group.gather_bytes(_dump(own))]
    metrics = _judge(session, parts, like) if group.rank == 0 else {}
    shared: dict[str, float] = json.loads(group.broadcast(json.dumps(metrics).encode(), 0))
    return shared


def outputs_of(session: Session, mine: range, alive: Callable[[], None]) -> Outputs:
    """Loss and outputs of these rows, computed by a model that this rank holds whole."""
    found = empty_outputs()
    session.model.eval()
    with torch.no_grad():
        for start in range(mine.start, mine.stop, session.training.batch_size):
            index = torch.arange(start, min(start + session.training.batch_size, mine.stop), device=session.device)
            batch = eval_batch(session, index)
            add_outputs(session, found, session.model(*batch[:-1]), batch)
            alive()
        if not len(mine):  # more workers than rows: only the structure is needed
            batch = eval_batch(session, torch.zeros(1, dtype=torch.int64, device=session.device))
            found["like"] = session.model(*batch[:-1])
    session.model.train()
    return found


def empty_outputs() -> Outputs:
    return {"loss_sum": 0.0, "rows": 0, "chunks": [], "targets": [], "like": None}


def eval_batch(session: Session, index: torch.Tensor) -> Batch:
    assert session.eval_samples is not None
    batch: Batch = session.eval_samples.take(index, mix(session.seed, 3))
    return batch


def add_outputs(session: Session, found: Outputs, outputs: Any, batch: Batch) -> None:
    loss, target = session.training.loss, batch[-1]
    value = validation_loss(session.model, batch) if loss is None else float(loss(outputs, target))
    found["loss_sum"] += value * len(target)
    found["rows"] += len(target)
    found["like"] = outputs
    if session.training.metrics:
        found["chunks"].append([leaf if isinstance(leaf, torch.Tensor) else None for leaf in _flat(outputs)[0]])
        found["targets"].append(target)


def _judge(session: Session, parts: list[Outputs], like: Any) -> dict[str, float]:
    figures = {"eval_loss": sum(piece["loss_sum"] for piece in parts) / sum(piece["rows"] for piece in parts)}
    if not session.training.metrics:
        return figures
    chunks = [chunk for piece in parts for chunk in piece["chunks"]]
    targets = [target for piece in parts for target in piece["targets"]]
    leaves, structure = _flat(like)
    rows = [len(target) for target in targets]
    whole = [_together(list(column), rows, leaf) for *column, leaf in zip(*chunks, leaves, strict=True)]
    outputs, target = pytree.tree_unflatten(whole, structure), torch.cat(targets)
    with torch.no_grad():
        return figures | {name: float(metric(outputs, target)) for name, metric in session.training.metrics.items()}


def _together(parts: list[Any], rows: list[int], like: Any) -> Any:
    """One part of the output for all rows: rows are joined in order, scalars averaged by rows.

    Other tensors, such as a hidden state, belong to no row: None, so that a metric of them fails.
    """
    if not isinstance(like, torch.Tensor):
        return like
    if all(part.dim() == 0 for part in parts):
        return sum(part * (count / sum(rows)) for part, count in zip(parts, rows, strict=True))
    by_row = all(part.dim() > 0 and len(part) == count for part, count in zip(parts, rows, strict=True))
    return torch.cat(parts) if by_row else None


def _flat(outputs: Any) -> tuple[list[Any], Any]:
    """The leaves of an output and their structure; dataclasses of the user's are flattened, too."""
    while True:
        leaves, structure = pytree.tree_flatten(outputs)
        strange = {type(leaf) for leaf in leaves if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type)}
        if not strange:
            return leaves, structure
        for kind in strange:
            pytree.register_dataclass(kind)


def _dump(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _load(data: bytes, device: torch.device) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    return loaded
