"""Local SGD: every worker steps by itself, and every few steps their models are averaged (exact=False only)."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from fairlead.planning.plan import Plan
from fairlead.training.batch_ranges import rank_range
from fairlead.training.group import Group
from fairlead.training.model_probe import has_batch_norm
from fairlead.training.parallel.replicas import Replicas
from fairlead.training.session import Session
from fairlead.training.step_flags import GroupFlags, RankFlags, exchange_flags


class LocalSteps(Replicas):
    """A replica that exchanges only at the end of a period, and at the end of an epoch.

    In between a step's loss is the worker's own, and a request to leave waits.
    """

    def __init__(self, session: Session, group: Group, plan: Plan) -> None:
        super().__init__(session, group, plan, sums=False)
        self._period = plan.period
        self._least = 2 if has_batch_norm(session.model) else 1  # samples that a worker needs to compute at all
        self._samples = 0  # since the last average

    def step(self, step: int, index: torch.Tensor, own_flags: RankFlags) -> GroupFlags:
        session, group = self._session, self._group
        begun_s = time.perf_counter()
        mine = rank_range(len(index), self.balance.shares, group.rank)
        own = index[mine.start : mine.stop]
        own = own if len(own) >= self._least else own[:0]
        self._samples += len(own)
        session.optimizer.zero_grad(set_to_none=True)
        loss = self._backward(step, own) if len(own) else 0.0
        own_flags = replace(own_flags, loss=loss * len(own) / len(index), compute_s=time.perf_counter() - begun_s)
        session.diverged = group.size > 1  # until one rank's state goes to all: moments are never averaged
        if len(own):
            self._update()
        if (step + 1) % self._period and (step + 1) % session.steps_per_epoch:
            flags = GroupFlags((loss,), (own_flags.compute_s,), 0, False)
            flags.check(step)
            return flags
        flags = exchange_flags(group, own_flags)
        flags.check(step)
        self._average()
        return flags

    def _average(self) -> None:
        """Replace every rank's model by the mean of all, weighted by the samples since the last average."""
        seen = torch.tensor([float(self._samples)], dtype=torch.float64, device=self._group.device)
        self._group.sum(seen)
        if not float(seen):
            return
        weight, self._samples = self._samples / float(seen), 0
        tensors = [p.data for p in self._session.model.parameters() if p.requires_grad]
        tensors += [buffer for buffer in self._session.model.buffers() if buffer.is_floating_point()]
        for dtype in {tensor.dtype for tensor in tensors}:
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            flat = torch.cat([tensor.reshape(-1) for tensor in same]) * weight
            self._group.sum(flat)
            pieces = torch.split(flat, [tensor.numel() for tensor in same])
            torch._foreach_copy_(same, [piece.view_as(tensor) for piece, tensor in zip(pieces, same, strict=True)])
