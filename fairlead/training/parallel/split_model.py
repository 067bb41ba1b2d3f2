"""What the engines of split models have in common: the course of a step, and how the session gets its model back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fairlead.training.parallel.gradients import FlatGradients
from fairlead.training.parallel.mesh import Mesh
from fairlead.training.parallel.model_swap import ModelSwap
from fairlead.training.parallel.sharded_parameters import Shard, clip_gradient_norm
from fairlead.training.session import Session
from fairlead.training.step_flags import GroupFlags, RankFlags, exchange_flags
from fairlead.training.straggler_log import StragglerWatch, own_s


class SplitModel:
    """One rank of a model that no rank holds whole."""

    splits_state = True
    _shards: list[Shard]
    _gradients: FlatGradients | None  # sums over the data axis, where FSDP2 does not

    def __init__(self, session: Session, mesh: Mesh) -> None:
        self._session, self._mesh = session, mesh
        self._swap = ModelSwap(session)
        self.balance = mesh.balance(session.training.batch_size)
        self._watch = StragglerWatch(self.balance, mesh.group.rank)

    def _backward(self, step: int, index: torch.Tensor) -> float:
        """Compute this rank's gradients; returns its part of the mean loss."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        raise NotImplementedError

    def step(self, step: int, index: torch.Tensor, own: RankFlags) -> GroupFlags:
        session, mesh = self._session, self._mesh
        begun_s = own_s()
        for each in self._shards:
            each.clear_gradient()
        loss = self._backward(step, index)
        for each in self._shards:
            each.take_gradient()
        computed_s = own_s() - begun_s
        if self._gradients is not None:
            self._gradients.exchange(RankFlags())
        flags = exchange_flags(mesh.group, replace(own, loss=loss if mesh.part == 0 else 0.0, compute_s=computed_s))
        flags.check(step)
        if session.training.clip_grad_norm is not None:
            clip_gradient_norm(self._shards, mesh, session.training.clip_grad_norm)
        session.optimizer.step()
        if len(index) == session.training.batch_size:
            self._watch.record_step(flags.compute_s)
        return flags

    def progress_state(self) -> dict[str, Any]:
        return self._swap.progress_state()

    def end(self) -> None:
        self._restore_model(self.state())

    def abandon(self) -> None:
        self._restore_model(None)

    def _restore_model(self, state: dict[str, Any] | None) -> None:
        self._swap.restore_model(state)
        self._mesh.close()
