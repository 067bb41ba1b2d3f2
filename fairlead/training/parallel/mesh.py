"""The ranks of a plan as a mesh (pipeline x data x tensor), with torch's process groups along each axis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from fairlead.planning.plan import Plan
from fairlead.training.group import Group, PeerLost, explain_error, is_peer_loss
from fairlead.training.parallel.batch_balance import Balance, RankShare

AXES = ("pipeline", "data", "tensor")


class Mesh:
    """This rank's place in the mesh. torch's global process group lives as long as this object: one generation."""

    def __init__(self, group: Group, plan: Plan) -> None:
        self.group, self.plan = group, plan
        with translate_peer_errors():
            group.init_torch()
            shape = (plan.pipeline, plan.data, plan.tensor)
            self.grid: DeviceMesh = init_device_mesh(group.device.type, shape, mesh_dim_names=AXES)
        self.stage, self.replica, self.part = (self.grid.get_local_rank(axis) for axis in AXES)

    def axis(self, name: str) -> MeshAxis:
        """The ranks along one axis that share this rank's other two coordinates."""
        return MeshAxis(self.grid.get_group(name), self.group.device)

    def balance(self, batch_size: int) -> Balance:
        """The plan's shares, which stay fixed, and all ranks' seats: by stage, then replica, then tensor part."""
        plan, size = self.plan, self.group.size
        seats = [RankShare(at // plan.tensor % plan.data, at // (plan.tensor * plan.data)) for at in range(size)]
        shares = plan.shares or (1.0,) * plan.data
        return Balance(shares, batch_size, follows=False, expected=self.group.shares, seats=seats)

    def close(self) -> None:
        self.group.close_torch()


class MeshAxis:
    """The ranks of one axis, for sums and gathers among them; an axis of one does no communication."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group = group
        self.device = device
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def sum(self, tensor: torch.Tensor) -> None:
        if self.size > 1:
            with translate_peer_errors():
                dist.all_reduce(tensor, group=self._group)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        stacked = tensor.new_empty((self.size, *tensor.shape))
        if self.size == 1:
            stacked[0] = tensor
        else:
            with translate_peer_errors():
                dist.all_gather(list(stacked.unbind(0)), tensor.contiguous(), group=self._group)
        return stacked


@contextmanager
def translate_peer_errors() -> Iterator[None]:
    """Raise PeerLost for a RuntimeError that a lost peer causes; errors of the user's code pass unchanged."""
    try:
        yield
    except RuntimeError as error:
        cause = error.__cause__  # a pipeline wraps the errors of its stages
        for each in (error, cause):
            if each is not None and is_peer_loss(each):
                raise PeerLost(explain_error(each)) from error
        if cause is not None and "failed to run" in str(error):
            raise cause from None  # the user's own error, or PeerLost
        raise
