"""Parameters of which a rank holds a part: how the optimizer sees them, how parts become wholes and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from fairlead.training.parallel.mesh import Mesh, MeshAxis
from fairlead.training.parallel.tensor_layers import ParameterSlice


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """A parameter of the model, and this rank's part of it as a plain tensor that shares its memory.

    Optimizers work element by element on the plain ones: exact, and many times cheaper than on distributed tensors.
    """

    name: str
    whole: torch.nn.Parameter
    local: torch.nn.Parameter
    piece: ParameterSlice | None = None  # how a layer of ours cuts it over the tensor axis
    axis: MeshAxis | None = None

    def take_gradient(self) -> None:
        """After a backward pass: give the optimizer this rank's part of the gradient."""
        gradient = self.whole.grad
        if isinstance(gradient, DTensor) and isinstance(self.whole, DTensor):
            if gradient.placements != self.whole.placements:
                gradient = gradient.redistribute(placements=self.whole.placements)
            gradient = gradient.to_local()
        self.local.grad = gradient

    def clear_gradient(self) -> None:
        self.whole.grad = self.local.grad = None

    def copy_count(self, mesh: Mesh) -> int:
        """How many ranks of this stage hold the same part."""
        ranks = mesh.plan.data * (mesh.plan.tensor if self.piece is None else 1)
        if not isinstance(self.whole, DTensor):
            return ranks
        sizes = self.whole.device_mesh.shape
        for size, placement in zip(sizes, self.whole.placements, strict=True):
            ranks //= 1 if placement.is_replicate() else size
        return ranks

    def gather_whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """The whole, on every rank, from the ranks' parts of a tensor shaped like this parameter. A collective."""
        if tensor.shape != self.local.shape:
            return tensor
        if isinstance(self.whole, DTensor):
            tensor = self.as_dtensor(tensor).full_tensor().detach()
        if self.piece is None or self.axis is None:
            return tensor
        return self.piece.join(self.axis.gather(tensor.detach()).unbind(0))

    def as_dtensor(self, tensor: torch.Tensor) -> DTensor:
        """This rank's part of a tensor shaped like the parameter, as a DTensor."""
        like = self.whole
        assert isinstance(like, DTensor)
        return DTensor.from_local(
            tensor, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
        )

    def own_part(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's part of a tensor shaped like the whole parameter."""
        if self.piece is not None and self.axis is not None and tensor.shape == self.piece.shape:
            tensor = self.piece.part(tensor, self.axis.rank)
        if not isinstance(self.whole, DTensor) or tensor.shape != self.whole.shape:
            return tensor
        shape, offset = compute_local_shape_and_global_offset(
            self.whole.shape, self.whole.device_mesh, self.whole.placements
        )
        return tensor[tuple(slice(start, start + size) for start, size in zip(offset, shape, strict=True))].clone()


def make_shards(
    named: Iterable[tuple[str, torch.nn.Parameter]],
    pieces: Mapping[str, ParameterSlice] | None = None,
    axis: MeshAxis | None = None,
) -> list[Shard]:
    """All parameters, trained or not; ``pieces`` are those that layers of ours cut over the tensor axis."""
    found = []
    for name, whole in named:
        local = whole
        if isinstance(whole, DTensor):
            local = torch.nn.Parameter(whole.to_local().detach(), requires_grad=whole.requires_grad)
        found.append(Shard(name, whole, local, (pieces or {}).get(name), axis))
    return found


def clip_gradient_norm(parts: Iterable[Shard], mesh: Mesh, most: float) -> None:
    """Clip the norm of the whole gradient, whose parts lie on several ranks; each part counts once."""
    held = [(part.local.grad, part.copy_count(mesh)) for part in parts if part.local.grad is not None]
    square = torch.zeros(1, dtype=torch.float64, device=mesh.group.device)
    for gradient, copies in held:
        square += gradient.double().pow(2).sum() / copies
    mesh.group.sum(square)
    factor = float((most / (square.sqrt() + 1e-6)).clamp(max=1.0))
    for gradient, _ in held:
        gradient.mul_(factor)


def whole_tensors(
    model: torch.nn.Module, pieces: Mapping[str, ParameterSlice], axis: MeshAxis | None
) -> dict[str, torch.Tensor]:
    """The model's whole state on every rank. A collective."""
    found = {}
    for name, tensor in model.state_dict().items():
        whole = tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor.detach().clone()
        piece = pieces.get(name)
        found[name] = whole if piece is None or axis is None else piece.join(axis.gather(whole).unbind(0))
    return found


def optimizer_parts(optimizer: torch.optim.Optimizer, parts: Iterable[Shard]) -> dict[str, dict[str, Any]]:
    """The optimizer's state with whole tensors, by parameter name. A collective."""
    return {
        part.name: {
            key: part.gather_whole(value) if isinstance(value, torch.Tensor) else value
            for key, value in optimizer.state.get(part.local, {}).items()
        }
        for part in parts
    }


def fill_optimizer(
    optimizer: torch.optim.Optimizer, parts: Iterable[Shard], states: Mapping[str, Mapping[str, Any]]
) -> None:
    """Load a state with whole tensors: each rank takes its parts."""
    for part in parts:
        if states.get(part.name):
            optimizer.state[part.local] = {
                key: part.own_part(value) if isinstance(value, torch.Tensor) else value
                for key, value in states[part.name].items()
            }
