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
from fairlead.training.batch_ranges import part, pieces
from fairlead.training.channel import log
from fairlead.training.evaluation import Outputs, outputs_of
from fairlead.training.group import Group
from fairlead.training.model_probe import call, check_gradient
from fairlead.training.parallel.batch_balance import Balance
from fairlead.training.parallel.batch_norm import SyncedBatchNorms
from fairlead.training.parallel.gradients import FlatGradients
from fairlead.training.parallel.recompute import Recompute, forget, remember
from fairlead.training.randomness import SampleDropout
from fairlead.training.seeds import mix, seed_quickly
from fairlead.training.session import Session
from fairlead.training.step_flags import GroupFlags, RankFlags
from fairlead.training.step_watch import StragglerWatch

if TYPE_CHECKING:
    from fairlead.training.parallel.hierarchical_sums import Hierarchy

TELL = 0.05
"""How far a share must have moved to be worth a line in the log."""


class Replicas:
    """One replica of the model. The result does not depend on how many there are, nor on their shares."""

    spread = False

    def __init__(
        self,
        session: Session,
        group: Group,
        plan: Plan | None = None,
        *,
        rings: Hierarchy | None = None,
        sums: bool = True,
    ) -> None:
        self._session, self._group = session, group
        self._rings = rings
        compression = plan.compression if plan else "none"
        parameters = list(session.model.parameters())
        self._gradients = FlatGradients(parameters, rings or group, compression) if sums and group.size > 1 else None
        self._always = False
        self._norms = SyncedBatchNorms(session.model, group, on=sums or plan is None or plan.exact)
        if len(self._norms):
            log(f"batch norm: statistics of the whole batch, over {group.size} workers")
        self._pieces = max(session.training.accumulate, plan.microbatches if plan else 1)
        random = session.findings.random
        self._dropout = SampleDropout(random) if random.layouts else None
        self._draws = bool(random.layouts or random.others)
        again = Recompute(self._dropout, lambda: session.changing, not random.exact)
        self._forgetful = forget(session.model, again) if plan is not None and plan.recompute else []
        shares = (plan.shares if plan else ()) or _first_shares(session, group)
        follows = not session.findings.warnings
        self.balance = Balance(shares, session.training.batch_size, follows=follows, expected=group.shares)
        self._told, self._watch = self.balance.shares, StragglerWatch(self.balance, group.rank)

    def step(self, step: int, index: torch.Tensor, word: RankFlags) -> GroupFlags:
        session, group = self._session, self._group
        begun_s, waited_s = time.perf_counter(), group.waited_s
        session.remember_buffers()
        session.optimizer.zero_grad(set_to_none=True)
        loss = self._backward(step, index, self.balance.shares, group.rank)
        computed_s = self._computed_at_s() - begun_s - (group.waited_s - waited_s)
        word = replace(word, loss=loss, compute_s=computed_s)
        heard = self._exchange(word)
        heard.check(step)
        self._update()
        if group.size > 1 and len(index) == session.training.batch_size:
            self._weigh(heard)
        return heard

    def _exchange(self, word: RankFlags) -> GroupFlags:
        return step_flags.alone(word) if self._gradients is None else self._gradients.exchange(word)

    def _computed_at_s(self) -> float:
        """Asked after the backward pass: when its gradients were there, not yet those of others."""
        return time.perf_counter()

    def _unshared(self) -> AbstractContextManager[object]:
        """Put around all pieces of a batch but the last: their gradients only add up here."""
        return nullcontext()

    def _model(self) -> torch.nn.Module:
        return self._session.model

    def _weigh(self, heard: GroupFlags) -> None:
        window = self._watch.note(heard.compute_s)
        if window is None:
            return
        rank, shares = self._group.rank, self.balance.shares
        self._session.speed = window.speed(rank) or self._session.speed
        told = max(abs(now - then) for now, then in zip(shares, self._told, strict=True))
        if rank == 0 and told > TELL:
            parts = " ".join(f"{share:.1%}" for share in shares)
            log(f"shares follow the measured speed: {parts} (compute times lay {window.spread:.0%} apart)")
            self._told = shares

    def _backward(self, step: int, index: torch.Tensor, shares: Sequence[float] = (1.0,), rank: int = 0) -> float:
        """Gradients of this rank's part of the mean loss, piece by piece, and the part itself."""
        *firsts, last = pieces(len(index), self._pieces, shares, rank, together=len(self._norms) > 0)
        loss = 0.0
        if firsts:
            with self._unshared():
                loss = sum(self._piece(step, index[cut.start : cut.stop], index) for cut in firsts)
        return loss + self._piece(step, index[last.start : last.stop], index)

    def _piece(self, step: int, mine: torch.Tensor, index: torch.Tensor) -> float:
        weight = len(mine) / len(index)
        if not len(mine):
            if not len(self._norms) and not self._always:
                return 0.0
            mine = index[:1]  # where ranks talk within the pass: keep the others company, with no weight
        self._norms.weight = 1.0 if weight else 0.0
        session = self._session
        batch = session.samples.take(mine, mix(session.seed, step // session.steps_per_epoch, 4))
        if self._draws:
            seed_quickly(mix(session.seed, step, self._group.rank, 5))
        if self._dropout is not None:
            self._dropout.begin(session.seed, step, mine)
        with self._dropout or nullcontext(), session.computing():
            loss = check_gradient(call(self._model(), session.training.loss, batch))
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
        mine = part(len(session.eval_samples or ()), self.balance.shares, self._group.rank)
        return outputs_of(session, mine, alive)

    def state(self) -> dict[str, Any]:
        return self._session.state()

    def end(self) -> None:
        self._norms.restore()
        remember(self._forgetful)
        if self._rings is not None:
            self._rings.close()

    def abandon(self) -> None:
        Replicas.end(self)


def _first_shares(session: Session, group: Group) -> tuple[float, ...]:
    """What the workers have measured in earlier generations if all of them have, else what the platform thinks."""
    if group.size == 1:
        return (1.0,)
    speeds = group.gather(torch.tensor([session.speed], dtype=torch.float64, device=group.device)).flatten().tolist()
    return tuple(speeds) if min(speeds) > 0 and not session.findings.warnings else group.shares
