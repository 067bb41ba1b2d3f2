"""DDP as an engine: gradients are sent in buckets while the backward pass goes on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from fairlead.planning.plan import Plan
from fairlead.training.group import Group
from fairlead.training.model_probe import PROBE_SAMPLES, compute_loss, preserving_buffers
from fairlead.training.parallel.mesh import Mesh, translate_peer_errors
from fairlead.training.parallel.replicas import Replicas
from fairlead.training.session import Session
from fairlead.training.step_flags import GroupFlags, RankFlags, exchange_flags


class DdpEngine(Replicas):
    """A replica under DDP, which waits for the other ranks within the backward pass.

    Its buckets are sent by a hook of ours, which sums where DDP would average, and notes when the last bucket was
    ready.
    """

    def __init__(self, session: Session, group: Group, plan: Plan) -> None:
        super().__init__(session, group, plan, sums=False)
        self._mesh = Mesh(group, plan)
        unused = _has_unused(session)
        with translate_peer_errors():
            self._wrapped: Any = DistributedDataParallel(
                session.model, broadcast_buffers=False, find_unused_parameters=unused, gradient_as_bucket_view=True,
                bucket_cap_mb=plan.bucket_bytes / (1 << 20) if plan.bucket_bytes else None,
            )  # fmt: skip
        self._wrapped.register_comm_hook(None, lambda _, bucket: self._send(bucket))
        self._sent_s = 0.0
        self._computes_empty_part = True

    def _send(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        self._sent_s = time.perf_counter()
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        assert work is not None
        sent: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
        return sent

    def _computed_at_s(self) -> float:
        return self._sent_s

    def _no_sync(self) -> AbstractContextManager[object]:
        unshared: AbstractContextManager[object] = self._wrapped.no_sync()
        return unshared

    def _model(self) -> Any:
        return self._wrapped

    def _backward(self, step: int, index: torch.Tensor, shares: Sequence[float] = (1.0,), rank: int = 0) -> float:
        with translate_peer_errors():
            return super()._backward(step, index, shares, rank)

    def _exchange(self, own: RankFlags) -> GroupFlags:
        return exchange_flags(self._group, own)

    def end(self) -> None:
        self._unwrap()
        super().end()

    def abandon(self) -> None:
        self._unwrap()
        super().abandon()

    def _unwrap(self) -> None:
        self._wrapped = None  # its hooks go with it
        self._session.optimizer.zero_grad(set_to_none=True)
        self._mesh.close()


def _has_unused(session: Session) -> bool:
    """Whether a pass leaves out parameters, which DDP must know in advance."""
    index = torch.arange(min(PROBE_SAMPLES, len(session.samples)), device=session.device)
    with preserving_buffers(session.model):
        torch.autograd.backward(compute_loss(session.model, session.training.loss, session.samples.take(index, 0)))
    unused = any(p.grad is None for p in session.model.parameters() if p.requires_grad)
    session.model.zero_grad(set_to_none=True)
    return unused
