"""Data parallelism: every rank holds the whole model and computes its share of the batch; gradients are summed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from fairlead.planning.plan import Plan
from fairlead.training import step_flags
from fairlead.training.batch_ranges import pass_ranges, rank_range
from fairlead.training.channel import log
from fairlead.training.evaluation import Outputs, outputs_of
from fairlead.training.group import Group
from fairlead.training.model_probe import compute_loss, require_gradient
from fairlead.training.parallel.batch_balance import Balance
from fairlead.training.parallel.batch_norm import SyncedBatchNorms
from fairlead.training.parallel.gradients import FlatGradients
from fairlead.training.parallel.recompute import Recompute, disable_recompute, enable_recompute
from fairlead.training.randomness import SampleDropout
from fairlead.training.seeds import mix, seed_quickly
from fairlead.training.session import Session
from fairlead.training.step_flags import GroupFlags, RankFlags
from fairlead.training.straggler_log import StragglerWatch

if TYPE_CHECKING:
    from fairlead.training.parallel.hierarchical_sums import HierarchicalSums

LOGGED_CHANGE = 0.05
"""A share must move by this much before the log tells it."""


class Replicas:
    """One replica of the model. The result depends neither on the number of replicas nor on their shares."""

    splits_state = False

    def __init__(
        self,
        session: Session,
        group: Group,
        plan: Plan | None = None,
        *,
        rings: HierarchicalSums | None = None,
        sums: bool = True,
    ) -> None:
        self._session, self._group = session, group
        self._rings = rings
        compression = plan.compression if plan else "none"
        parameters = list(session.model.parameters())
        self._gradients = FlatGradients(parameters, rings or group, compression) if sums and group.size > 1 else None
        self._computes_empty_part = False
        self._norms = SyncedBatchNorms(session.model, group, on=sums or plan is None or plan.exact)
        if len(self._norms):
            log(f"batch norm: statistics of the whole batch, over {group.size} workers")
        self._pieces = max(session.training.accumulate, plan.microbatches if plan else 1)
        random = session.findings.random
        self._dropout = SampleDropout(random) if random.layouts else None
        self._draws = bool(random.layouts or random.others)
        again = Recompute(self._dropout, lambda: session.changing, not random.exact)
        self._recomputed = enable_recompute(session.model, again) if plan is not None and plan.recompute else []
        shares = (plan.shares if plan else ()) or _first_shares(session, group)
        follows = not session.findings.warnings
        self.balance = Balance(shares, session.training.batch_size, follows=follows, expected=group.shares)
        self._logged_shares, self._watch = self.balance.shares, StragglerWatch(self.balance, group.rank)

    def step(self, step: int, index: torch.Tensor, own: RankFlags) -> GroupFlags:
        session, group = self._session, self._group
        begun_s, waited_s = time.perf_counter(), group.waited_s
        session.save_buffers()
        session.optimizer.zero_grad(set_to_none=True)
        loss = self._backward(step, index, self.balance.shares, group.rank)
        computed_s = self._computed_at_s() - begun_s - (group.waited_s - waited_s)
        own = replace(own, loss=loss, compute_s=computed_s)
        flags = self._exchange(own)
        flags.check(step)
        self._update()
        if group.size > 1 and len(index) == session.training.batch_size:
            self._record_times(flags)
        return flags

    def _exchange(self, own: RankFlags) -> GroupFlags:
        return step_flags.single_rank_flags(own) if self._gradients is None else self._gradients.exchange(own)

    def _computed_at_s(self) -> float:
        """Called after the backward pass: when this rank's own gradients were complete."""
        return time.perf_counter()

    def _no_sync(self) -> AbstractContextManager[object]:
        """The context of all passes of a batch but the last: their gradients are only added up locally."""
        return nullcontext()

    def _model(self) -> torch.nn.Module:
        return self._session.model

    def _record_times(self, flags: GroupFlags) -> None:
        window = self._watch.record_step(flags.compute_s)
        if window is None:
            return
        rank, shares = self._group.rank, self.balance.shares
        self._session.speed = window.speed(rank) or self._session.speed
        moved = max(abs(now - then) for now, then in zip(shares, self._logged_shares, strict=True))
        if rank == 0 and moved > LOGGED_CHANGE:
            parts = " ".join(f"{share:.1%}" for share in shares)
            log(f"shares follow the measured speed: {parts} (compute times differed by {window.spread:.0%})")
            self._logged_shares = shares

    def _backward(self, step: int, index: torch.Tensor, shares: Sequence[float] = (1.0,), rank: int = 0) -> float:
        """Gradients of this rank's part of the mean loss, pass by pass; returns that part."""
        *firsts, last = pass_ranges(len(index), self._pieces, shares, rank, together=len(self._norms) > 0)
        loss = 0.0
        if firsts:
            with self._no_sync():
                loss = sum(self._compute_piece(step, index[cut.start : cut.stop], index) for cut in firsts)
        return loss + self._compute_piece(step, index[last.start : last.stop], index)

    def _compute_piece(self, step: int, mine: torch.Tensor, index: torch.Tensor) -> float:
        weight = len(mine) / len(index)
        if not len(mine):
            if not len(self._norms) and not self._computes_empty_part:
                return 0.0
            mine = index[:1]  # where ranks communicate within the pass: take part with weight 0
        self._norms.weight = 1.0 if weight else 0.0
        session = self._session
        batch = session.samples.take(mine, mix(session.seed, step // session.steps_per_epoch, 4))
        if self._draws:
            seed_quickly(mix(session.seed, step, self._group.rank, 5))
        if self._dropout is not None:
            self._dropout.begin(session.seed, step, mine)
        with self._dropout or nullcontext(), session.autocast():
            loss = require_gradient(compute_loss(self._model(), session.training.loss, batch))
        torch.autograd.backward(loss if weight == 1.0 else loss * weight)
        return float(loss.detach()) * weight

    def _update(self) -> None:
        session = self._session
        clip = session.training.clip_grad_norm
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(session.model.parameters(), clip)
        session.optimizer.step()

    def outputs(self, alive: Callable[[], None]) -> Outputs:
        session = self._session
        mine = rank_range(len(session.eval_samples or ()), self.balance.shares, self._group.rank)
        return outputs_of(session, mine, alive)

    def state(self) -> dict[str, Any]:
        return self._session.state()

    def end(self) -> None:
        self._norms.restore()
        disable_recompute(self._recomputed)
        if self._rings is not None:
            self._rings.close()

    def abandon(self) -> None:
        Replicas.end(self)


def _first_shares(session: Session, group: Group) -> tuple[float, ...]:
    """Shares from the speeds of earlier generations, if all ranks measured one; else from the platform's figures."""
    if group.size == 1:
        return (1.0,)
    speeds = group.gather(torch.tensor([session.speed], dtype=torch.float64, device=group.device)).flatten().tolist()
    return tuple(speeds) if min(speeds) > 0 and not session.findings.warnings else group.shares
