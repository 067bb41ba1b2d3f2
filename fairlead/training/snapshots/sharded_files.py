"""Sharded checkpoints on disk: every rank writes its shards, and any other plan reads the parts that it needs.

In the format of torch.distributed.checkpoint: files hold boxes of the whole tensors, and a reader finds the boxes that
overlap with its own.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from fairlead.training.parallel.sharded_parameters import Shard

MODEL, OPTIMIZER = "model/", "optimizer/"


@dataclass(frozen=True, slots=True)
class TensorBox:
    """A box of a tensor: its place in the whole tensor and in this rank's part."""

    offset: tuple[int, ...]
    size: tuple[int, ...]
    own: tuple[int, ...]


class CheckpointPart(torch.Tensor):
    """This rank's part of a tensor, by the protocol of torch.distributed.checkpoint."""

    whole: torch.Size
    boxes: tuple[TensorBox, ...]

    def size(self, dim: int | None = None) -> Any:
        return self.whole if dim is None else self.whole[dim]

    def __create_write_items__(self, fqn: str, _object: object) -> list[WriteItem]:
        kind = TensorProperties.create_from_tensor(self.as_subclass(torch.Tensor))
        return [
            WriteItem(
                index=MetadataIndex(fqn, torch.Size(box.offset)), type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=kind, size=self.whole),
            )
            for box, chunk in zip(self.boxes, self.__create_chunk_list__(), strict=True)
        ]  # fmt: skip

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(box.offset), torch.Size(box.size)) for box in self.boxes]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        box = next(box for box in self.boxes if torch.Size(box.offset) == index.offset)
        plain = self.as_subclass(torch.Tensor)
        return plain[tuple(slice(at, at + size) for at, size in zip(box.own, box.size, strict=True))]


def checkpoint_part(shard: Shard, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor shaped like this rank's part of a parameter, as a part of the whole; any other is left unchanged."""
    if tensor.shape != shard.local.shape or (shard.piece is None and not isinstance(shard.whole, DTensor)):
        return tensor.detach()
    part = tensor.detach().as_subclass(CheckpointPart)
    part.whole = shard.piece.shape if shard.piece is not None else shard.whole.shape
    part.boxes = tuple(_boxes(shard))
    return part


def _boxes(shard: Shard) -> Iterable[TensorBox]:
    """FSDP2 gives a rank one box of its tensor rank's part, which may lie in several places of the whole (q, k, v)."""
    size, offset = tuple(shard.local.shape), (0,) * shard.local.dim()
    if isinstance(shard.whole, DTensor):
        like = shard.whole
        size, offset = compute_local_shape_and_global_offset(like.shape, like.device_mesh, like.placements)
    runs = [[(start, start, length)] for start, length in zip(offset, size, strict=True)]
    if shard.piece is not None and shard.axis is not None:
        runs[shard.piece.dim] = list(shard.piece.runs(shard.axis.rank, offset[shard.piece.dim], size[shard.piece.dim]))
    for place in product(*runs):
        if all(length for _, _, length in place):
            whole, local, sizes = zip(*place, strict=True) if place else ((), (), ())
            yield TensorBox(whole, sizes, tuple(at - start for at, start in zip(local, offset, strict=True)))


# ---------------------------------------------------------------- writing and reading


def write_shards(
    folder: Path, model: torch.nn.Module, parts: Sequence[Shard], optimizer: torch.optim.Optimizer,
    names: Container[str],
) -> None:  # fmt: skip
    """On all ranks at once: write their shards; tensors that several ranks hold are written once.

    ``names``: the tensors of the plain model's state.
    """
    state: dict[str, Any] = dict(_tensors(model, parts, names))
    for part in parts:
        for key, value in optimizer.state.get(part.local, {}).items():
            name = f"{OPTIMIZER}{part.name}/{key}"
            state[name] = checkpoint_part(part, value) if isinstance(value, torch.Tensor) else torch.tensor(value)
    save(state, storage_writer=FileSystemWriter(folder, sync_files=True))


def read_shards(
    folder: Path, model: torch.nn.Module, parts: Sequence[Shard], optimizer: torch.optim.Optimizer | None,
    names: Container[str],
) -> None:  # fmt: skip
    """Read what this rank's parts need, without the other ranks. Without an optimizer only the weights are read."""
    state: dict[str, Any] = dict(_tensors(model, parts, names))
    stored = FileSystemReader(folder).read_metadata().state_dict_metadata
    filled: list[Callable[[], None]] = []
    for part in parts if optimizer is not None else ():
        prefix = f"{OPTIMIZER}{part.name}/"
        for name in (name for name in stored if name.startswith(prefix)):
            fresh, key = _room(part, stored[name]), name.removeprefix(prefix)
            state[name] = checkpoint_part(part, fresh)
            filled.append(_putting(optimizer, part, key, fresh))
    load(state, storage_reader=FileSystemReader(folder), no_dist=True)
    for put in filled:
        put()


def whole_shards(model: torch.nn.Module) -> list[Shard]:
    """The parameters of a plain model, as one shard each."""
    return [Shard(name, whole, whole) for name, whole in model.named_parameters()]


def _tensors(
    model: torch.nn.Module, parts: Sequence[Shard], names: Container[str]
) -> Iterable[tuple[str, torch.Tensor]]:
    known = {part.name: part for part in parts}
    modules: Mapping[str, torch.nn.Module] = {"": model}
    if isinstance(model, torch.nn.ModuleList):  # pipeline stages: their tensors have the names of the whole model
        modules = dict(model.named_children())
    for module in modules.values():
        for name, tensor in module.state_dict().items():
            if name in names:  # a trace also holds tensors that no state has
                held = checkpoint_part(known[name], known[name].local) if name in known else tensor.detach()
                yield f"{MODEL}{name}", held


def _room(part: Shard, stored: Any) -> torch.Tensor:
    assert isinstance(stored, TensorStorageMetadata)
    whole = part.piece.shape if part.piece is not None else part.whole.shape
    shape = part.local.shape if stored.size == whole else stored.size
    # A step counter lies where the optimizer puts it: on the CPU, except for fused ones on a GPU.
    return torch.zeros(shape, dtype=stored.properties.dtype, device=part.local.device if len(shape) else None)


def _putting(optimizer: torch.optim.Optimizer | None, part: Shard, key: str, value: torch.Tensor) -> Callable[[], None]:
    def put() -> None:
        assert optimizer is not None
        optimizer.state[part.local][key] = value

    return put
