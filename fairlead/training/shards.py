"""Parameters of which a rank holds a part: how the optimizer sees them, and how parts become wholes and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from fairlead.training.mesh import Mesh


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """A parameter as the model has it, and this rank's part of it as a plain tensor that shares its memory.

    Optimizers work element by element on the plain ones: many times cheaper than on distributed tensors, and exact.
    """

    name: str
    whole: torch.nn.Parameter
    local: torch.nn.Parameter

    def take_gradient(self) -> None:
        """After a backward pass: show the optimizer this rank's part of the gradient."""
        gradient = self.whole.grad
        if isinstance(gradient, DTensor) and isinstance(self.whole, DTensor):
            if gradient.placements != self.whole.placements:
                gradient = gradient.redistribute(placements=self.whole.placements)
            gradient = gradient.to_local()
        self.local.grad = gradient

    def clear_gradient(self) -> None:
        self.whole.grad = self.local.grad = None

    def copies(self, mesh: Mesh) -> int:
        """How many ranks of this stage hold the very same part."""
        ranks = mesh.plan.data * mesh.plan.tensor
        if not isinstance(self.whole, DTensor):
            return ranks
        sizes = self.whole.device_mesh.shape
        for size, placement in zip(sizes, self.whole.placements, strict=True):
            ranks //= 1 if placement.is_replicate() else size
        return ranks

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """From the ranks' parts of something shaped like this parameter: the whole, on every rank. A collective."""
        if not isinstance(self.whole, DTensor) or tensor.shape != self.local.shape:
            return tensor
        like = self.whole
        spread = DTensor.from_local(
            tensor, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )
        return spread.full_tensor().detach()

    def cut(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's part of something shaped like the whole parameter."""
        if not isinstance(self.whole, DTensor) or tensor.shape != self.whole.shape:
            return tensor
        shape, offset = compute_local_shape_and_global_offset(
            self.whole.shape, self.whole.device_mesh, self.whole.placements
        )
        return tensor[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))].clone()


def shards(named: Iterable[tuple[str, torch.nn.Parameter]]) -> list[Shard]:
    """All parameters that are trained."""
    found = []
    for name, whole in named:
        if whole.requires_grad:
            local = torch.nn.Parameter(whole.to_local().detach()) if isinstance(whole, DTensor) else whole
            found.append(Shard(name, whole, local))
    return found


def clip(parts: Iterable[Shard], mesh: Mesh, most: float) -> None:
    """Clip the norm of the whole gradient, wherever its parts are; each piece counts once."""
    held = [(part.local.grad, part.copies(mesh)) for part in parts if part.local.grad is not None]
    square = torch.zeros(1, dtype=torch.float64, device=mesh.group.device)
    for gradient, copies in held:
        square += gradient.double().pow(2).sum() / copies
    mesh.group.sum(square)
    factor = float((most / (square.sqrt() + 1e-6)).clamp(max=1.0))
    for gradient, _ in held:
        gradient.mul_(factor)


def optimizer_parts(optimizer: torch.optim.Optimizer, parts: Iterable[Shard]) -> dict[str, dict[str, Any]]:
    """The optimizer's state with whole tensors, by the name of the parameter. A collective."""
    return {
        part.name: {
            key: part.gathered(value) if isinstance(value, torch.Tensor) else value
            for key, value in optimizer.state.get(part.local, {}).items()
        }
        for part in parts
    }


def fill_optimizer(
    optimizer: torch.optim.Optimizer, parts: Iterable[Shard], states: Mapping[str, Mapping[str, Any]]
) -> None:
    """Take over a state with whole tensors."""
    for part in parts:
        if states.get(part.name):
            optimizer.state[part.local] = {
                key: part.cut(value) if isinstance(value, torch.Tensor) else value
                for key, value in states[part.name].items()
            }
