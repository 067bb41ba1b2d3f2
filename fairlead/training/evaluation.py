"""The metrics of a model on its evaluation data: computed by all workers, judged as a whole by rank 0."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fairlead.training.data import Batch
from fairlead.training.group import Group
from fairlead.training.lightning import validation_loss
from fairlead.training.seeds import mix
from fairlead.training.session import Session

Outputs = dict[str, Any]
"""Of some rows in order: the sum of their losses, and lists of the outputs and targets of each chunk."""


def evaluate(session: Session, group: Group, own: Outputs) -> dict[str, float]:
    """The same metrics on every rank: eval_loss and those of the Training, exact for any function of the whole.

    ``own`` are the outputs that this rank holds; together the ranks hold each row once.
    """
    if group.size == 1:
        return _judge(session, [own])
    parts = [_unpacked(_load(data, session.device), own) for data in group.collect(_dump(_packed(own)))]
    metrics = _judge(session, parts) if group.rank == 0 else {}
    shared: dict[str, float] = json.loads(group.broadcast(json.dumps(metrics).encode(), 0))
    return shared


def outputs_of(session: Session, mine: range, alive: Callable[[], None]) -> Outputs:
    """Loss and outputs of these rows, by a model that this rank holds whole."""
    found = empty_outputs()
    session.model.eval()
    with torch.no_grad():
        for start in range(mine.start, mine.stop, session.training.batch_size):
            index = torch.arange(start, min(start + session.training.batch_size, mine.stop), device=session.device)
            batch = eval_batch(session, index)
            add_outputs(session, found, session.model(*batch[:-1]), batch)
            alive()
    session.model.train()
    return found


def empty_outputs() -> Outputs:
    return {"loss_sum": 0.0, "chunks": [], "targets": []}


def eval_batch(session: Session, index: torch.Tensor) -> Batch:
    assert session.eval_samples is not None
    batch: Batch = session.eval_samples.take(index, mix(session.seed, 3))
    return batch


def add_outputs(session: Session, found: Outputs, outputs: Any, batch: Batch) -> None:
    loss, target = session.training.loss, batch[-1]
    value = validation_loss(session.model, batch) if loss is None else float(loss(outputs, target))
    found["loss_sum"] += value * len(target)
    found["chunks"].append(outputs)
    found["targets"].append(target)


def _judge(session: Session, parts: list[dict[str, Any]]) -> dict[str, float]:
    chunks = [chunk for piece in parts for chunk in piece["chunks"]]
    outputs = pytree.tree_map(lambda *leaves: torch.cat(leaves), chunks[0], *chunks[1:])
    targets = torch.cat([target for piece in parts for target in piece["targets"]])
    with torch.no_grad():
        values = {name: float(metric(outputs, targets)) for name, metric in session.training.metrics.items()}
    return {"eval_loss": sum(piece["loss_sum"] for piece in parts) / len(targets)} | values


def _packed(own: Outputs) -> Outputs:
    """To be sent: an output of a class of its own, as Hugging Face's are, is sent as its tensors."""
    if all(_is_plain(chunk) for chunk in own["chunks"]):
        return own
    return own | {"chunks": [pytree.tree_leaves(chunk) for chunk in own["chunks"]], "leaves": True}


def _unpacked(part: Outputs, like: Outputs) -> Outputs:
    """What another rank sent, made of the same classes as this rank's own."""
    if "leaves" not in part or not like["chunks"]:
        return part
    shape = pytree.tree_structure(like["chunks"][0])
    return part | {"chunks": [pytree.tree_unflatten(leaves, shape) for leaves in part["chunks"]]}


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(_is_plain(each) for each in value.values())
    if type(value) in (list, tuple):
        return all(_is_plain(each) for each in value)
    return isinstance(value, torch.Tensor)


def _dump(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _load(data: bytes, device: torch.device) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    return loaded
