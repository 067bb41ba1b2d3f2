"""All-reduce in two levels: within groups of neighbours first, then between the groups, where links are slow."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from fairlead.training.group import Group
from fairlead.training.parallel.mesh import translate_peer_errors


class HierarchicalSums:
    """Sums over all ranks of a generation; only 1 / group size of a tensor crosses the links between groups."""

    def __init__(self, group: Group, inner: int) -> None:
        self._group, self._inner = group, inner
        self.rank, self.size, self.device = group.rank, group.size, group.device
        with translate_peer_errors():
            group.init_torch()
            sides = ("outer", "inner")
            grid = init_device_mesh(group.device.type, (group.size // inner, inner), mesh_dim_names=sides)
        self._near, self._far = grid.get_group("inner"), grid.get_group("outer")

    def sum(self, tensor: torch.Tensor) -> None:
        padded = torch.nn.functional.pad(tensor, (0, -tensor.numel() % self._inner))
        own = torch.empty(padded.numel() // self._inner, dtype=tensor.dtype, device=tensor.device)
        with translate_peer_errors():
            dist.reduce_scatter_tensor(own, padded, group=self._near)
            dist.all_reduce(own, group=self._far)
            dist.all_gather_into_tensor(padded, own, group=self._near)
        tensor.copy_(padded[: tensor.numel()])

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._group.gather(tensor)

    def close(self) -> None:
        self._group.close_torch()
