"""Splits modules: FSDP2 units by the model's own blocks, tensor parallelism as the plan says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from fairlead.errors import InvalidSpec
from fairlead.planning.plan import HEADS, Split
from fairlead.training.parallel.mesh import Mesh
from fairlead.training.parallel.tensor_collectives import enable_collectives
from fairlead.training.parallel.tensor_layers import cut_layer


def shard(model: torch.nn.Module, data: DeviceMesh) -> None:
    """Shard parameters, gradients and optimizer state over the data axis; a block is gathered while it computes."""
    for block in blocks(model):
        fully_shard(block, mesh=data)
    fully_shard(model, mesh=data)


def shard_stage(stage: torch.nn.Module, data: DeviceMesh) -> None:
    """Shard a traced pipeline stage as one unit, because it stays gathered until its last micro-batch anyway."""
    fully_shard(stage, mesh=data)


def blocks(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The elements of the outermost lists of layers. Blocks that share weights with others stay with the root unit."""
    uses = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    for _, container in _outermost(model):
        for block in container.children():
            own = list(block.parameters())
            if own and all(uses[id(p)] == 1 for p in own) and not isinstance(block, torch.nn.ModuleList):
                yield block


def _outermost(module: torch.nn.Module, name: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    if isinstance(module, torch.nn.Sequential | torch.nn.ModuleList):
        yield name, module
        return
    for child_name, child in module.named_children():
        yield from _outermost(child, f"{name}.{child_name}".lstrip("."))


def split(model: torch.nn.Module, mesh: Mesh, *, traced: bool = False) -> None:
    """Cut layers over the tensor axis: linear ones and embeddings by DTensor, the rest by layers of ours.

    In a model that is to be ``traced`` all are ours and without communication: a trace knows no distributed tensors.
    """
    axis, splits = mesh.axis("tensor"), mesh.plan.splits
    uses = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    for name, how in splits:
        module = _module(model, name)
        if how == "heads" and not isinstance(module, torch.nn.MultiheadAttention):
            _count_heads(name, module, axis.size)
            continue
        if any(uses[id(p)] > 1 for p in module.parameters()):
            raise InvalidSpec(f"{name} shares its weight with another layer", field="plan.splits", fix="leave it whole")
        style = None if traced else _style(module, how)
        if style is None:
            cut_layer(name, module, how, axis)
        else:
            parallelize_module(module, mesh.grid["tensor"], style)
    if not traced:
        enable_collectives(model)


def _count_heads(name: str, module: torch.nn.Module, parts: int) -> None:
    """Reduce the number of heads of a user's own attention to those of this rank."""
    counts = {each: getattr(module, each) for each in HEADS if isinstance(getattr(module, each, None), int)}
    if not counts or any(count % parts for count in counts.values()):
        raise InvalidSpec(
            f"{name} has no number of heads that {parts} ranks can share", field="plan.splits",
            fix=f"call it one of {', '.join(HEADS)}, or leave it whole",
        )  # fmt: skip
    for each, count in counts.items():
        setattr(module, each, count // parts)


def _module(model: torch.nn.Module, name: str) -> torch.nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise InvalidSpec(f"there is no layer {name}", field="plan.splits", fix="plan for this very model") from None


def _style(module: torch.nn.Module, how: Split) -> ParallelStyle | None:
    """DTensor's way of cutting this layer; None where it has none, or a wrong one (convolutions)."""
    linear, embedding = isinstance(module, torch.nn.Linear), isinstance(module, torch.nn.Embedding)
    if linear and how == "column":
        return ColwiseParallel()
    if linear and how == "row":
        return RowwiseParallel()
    if (linear or embedding) and how == "column-gathered":
        return ColwiseParallel(output_layouts=Replicate())
    if embedding and how == "vocabulary":
        return RowwiseParallel(input_layouts=Replicate())
    return None
