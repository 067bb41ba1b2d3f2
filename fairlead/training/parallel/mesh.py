"""The workers of a plan as a grid: pipeline by data by tensor, with torch's process groups along each side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from fairlead.planning.plan import Plan
from fairlead.training.group import Group, PeerLost, in_words, is_loss
from fairlead.training.parallel.batch_balance import Balance, RankShare

SIDES = ("pipeline", "data", "tensor")


class Mesh:
    """This rank's place in the grid. torch's own global group is alive as long as this is: one generation."""

    def __init__(self, group: Group, plan: Plan) -> None:
        self.group, self.plan = group, plan
        with lost_peers():
            dist.init_process_group(
                "nccl" if group.device.type == "cuda" else "gloo", store=group.store("torch"), rank=group.rank,
                world_size=group.size, timeout=timedelta(seconds=group.silence_s),
            )  # fmt: skip
            shape = (plan.pipeline, plan.data, plan.tensor)
            self.grid: DeviceMesh = init_device_mesh(group.device.type, shape, mesh_dim_names=SIDES)
        self.stage, self.replica, self.part = (self.grid.get_local_rank(side) for side in SIDES)

    def side(self, name: str) -> MeshAxis:
        """The ranks along one side of the grid that share this one's other two places."""
        return MeshAxis(self.grid.get_group(name), self.group.device)

    def balance(self, batch_size: int) -> Balance:
        """The plan's shares, which stay, and all ranks' seats: they are numbered by stage, then replica, then part."""
        plan, size = self.plan, self.group.size
        seats = [RankShare(at // plan.tensor % plan.data, at // (plan.tensor * plan.data)) for at in range(size)]
        shares = plan.shares or (1.0,) * plan.data
        return Balance(shares, batch_size, follows=False, expected=self.group.shares, seats=seats)

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


class MeshAxis:
    """Some of the ranks, for sums and gathers among them only; a group of one talks to nobody."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self._group = group
        self.device = device
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def sum(self, tensor: torch.Tensor) -> None:
        if self.size > 1:
            with lost_peers():
                dist.all_reduce(tensor, group=self._group)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        stacked = tensor.new_empty((self.size, *tensor.shape))
        if self.size == 1:
            stacked[0] = tensor
        else:
            with lost_peers():
                dist.all_gather(list(stacked.unbind(0)), tensor.contiguous(), group=self._group)
        return stacked


@contextmanager
def lost_peers() -> Iterator[None]:
    """Tell a lost peer from a mistake in the user's code, where both raise a RuntimeError within the same pass."""
    try:
        yield
    except RuntimeError as error:
        cause = error.__cause__  # a pipeline wraps what happens in its stages
        for each in (error, cause):
            if each is not None and is_loss(each):
                raise PeerLost(in_words(each)) from error
        if cause is not None and "failed to run" in str(error):
            raise cause from None  # what the user's code has raised, or PeerLost
        raise
