"""Which modules are cut, and how: FSDP2 units by the model's own blocks, tensor parallelism by what the plan says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from fairlead.errors import InvalidSpec
from fairlead.planning.plan import Split


def shard(model: torch.nn.Module, data: DeviceMesh) -> None:
    """Spread parameters, gradients and optimizer state over the data side; a block is gathered while it computes."""
    for block in blocks(model):
        fully_shard(block, mesh=data)
    fully_shard(model, mesh=data)


def blocks(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """The elements of the outermost lists of layers. Weights that a block shares with others stay with the root."""
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


def split(model: torch.nn.Module, tensor: DeviceMesh, splits: Sequence[tuple[str, Split]]) -> None:
    """Cut linear layers and embeddings over the tensor side. Nothing else: convolutions would be silently wrong."""
    uses = Counter(id(p) for module in model.modules() for p in module._parameters.values() if p is not None)
    for name, how in splits:
        module = _module(model, name)
        if any(uses[id(p)] > 1 for p in module.parameters()):
            raise InvalidSpec(f"{name} shares its weight with another layer", field="plan.splits", fix="leave it whole")
        parallelize_module(module, tensor, _style(name, module, how))


def _module(model: torch.nn.Module, name: str) -> torch.nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise InvalidSpec(f"there is no layer {name}", field="plan.splits", fix="plan for this very model") from None


def _style(name: str, module: torch.nn.Module, how: Split) -> ParallelStyle:
    linear, embedding = isinstance(module, torch.nn.Linear), isinstance(module, torch.nn.Embedding)
    if linear and how == "column":
        return ColwiseParallel()
    if linear and how == "row":
        return RowwiseParallel()
    if (linear or embedding) and how == "column-gathered":
        return ColwiseParallel(output_layouts=Replicate())
    if embedding and how == "vocabulary":
        return RowwiseParallel(input_layouts=Replicate())
    raise InvalidSpec(
        f"{name} is a {type(module).__name__}, which cannot be cut by {how}", field="plan.splits",
        fix="cut linear layers by column or row and embeddings by vocabulary or column-gathered",
    )  # fmt: skip
