"""Local SGD: every worker steps by itself, and every so often their models are averaged (only if exact=False)."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from fairlead.planning.plan import Plan
from fairlead.training.batch_ranges import part
from fairlead.training.flag_exchange import say
from fairlead.training.group import Group
from fairlead.training.model_probe import has_batch_norm
from fairlead.training.parallel.replicas import Replicas
from fairlead.training.session import Session
from fairlead.training.step_flags import GroupFlags, RankFlags


class LocalSteps(Replicas):
    """A replica that talks to the others only at the end of a period, and at the end of an epoch.

    Between two averages nobody hears of the others: a step's loss is the worker's own, and a wish to leave waits.
    """

    def __init__(self, session: Session, group: Group, plan: Plan) -> None:
        super().__init__(session, group, plan, sums=False)
        self._period = plan.period
        self._least = 2 if has_batch_norm(session.model) else 1  # of a worker's own samples, to compute at all
        self._samples = 0  # since the last average

    def step(self, step: int, index: torch.Tensor, word: RankFlags) -> GroupFlags:
        session, group = self._session, self._group
        begun_s = time.perf_counter()
        mine = part(len(index), self.balance.shares, group.rank)
        own = index[mine.start : mine.stop]
        own = own if len(own) >= self._least else own[:0]
        self._samples += len(own)
        session.optimizer.zero_grad(set_to_none=True)
        loss = self._backward(step, own) if len(own) else 0.0
        word = replace(word, loss=loss * len(own) / len(index), compute_s=time.perf_counter() - begun_s)
        session.adrift = group.size > 1  # until somebody's state is everybody's: moments are never averaged
        if len(own):
            self._update()
        if (step + 1) % self._period and (step + 1) % session.steps_per_epoch:
            heard = GroupFlags((loss,), (word.compute_s,), 0, False)
            heard.check(step)
            return heard
        heard = say(group, word)
        heard.check(step)
        self._average()
        return heard

    def _average(self) -> None:
        """Everybody's model becomes the mean of all, each counted by the samples that it saw since the last."""
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
