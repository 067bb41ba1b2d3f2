"""The parameter server as an engine: take a piece, pull, compute, push; nobody waits but who is too far ahead."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from fairlead.planning.plan import Plan
from fairlead.training.batch_ranges import part
from fairlead.training.channel import log
from fairlead.training.evaluation import Outputs, outputs_of
from fairlead.training.group import Group, PeerLost
from fairlead.training.model_probe import has_batch_norm
from fairlead.training.optimizers import load_optimizer
from fairlead.training.parallel.batch_balance import Window, stragglers
from fairlead.training.parallel.replicas import Replicas
from fairlead.training.servers.client import Servers
from fairlead.training.servers.clocks import Clocks, Closed, Turn
from fairlead.training.servers.messages import Done, Fail, Settle, Settled, Take
from fairlead.training.session import Session
from fairlead.training.step_flags import GroupFlags, RankFlags


class ParameterServers(Replicas):
    """A rank that computes pieces of batches, and serves its part of the parameters in threads of its own.

    The optimizer of the session rests meanwhile; its state lies with the servers. ``spread``: who is lost takes the
    state of a part along, and the next generation goes on from the snapshot.
    """

    spread = True

    def __init__(self, session: Session, group: Group, plan: Plan) -> None:
        super().__init__(session, group, plan, sums=False)
        self._least = 2 if has_batch_norm(session.model) else 1  # samples that can be computed at all
        self._staleness = plan.staleness
        self._fresh = -1  # what this rank last pulled holds all steps before this one
        self._settled = session.step  # the histories of all ranks are alike up to here
        self._servers = Servers(session, group, Clocks(group.size, plan.staleness, session.step))

    def step(self, step: int, index: torch.Tensor, word: RankFlags) -> GroupFlags:
        try:
            return self._step(step, index, word)
        except PeerLost:
            self._servers.raise_failure()  # it may have gone because somebody's loss is no number
            raise

    def _step(self, step: int, index: torch.Tensor, word: RankFlags) -> GroupFlags:
        session, size = self._session, self._group.size
        turn = self._take(Take(step, word.leaving))
        while isinstance(turn, Turn):
            done = self._compute(step, turn, index)
            turn = self._take(Take(step, word.leaving, done))
        closed = turn
        self._tell(closed)
        loss = closed.loss
        if closed.leave or (step + 1) % session.steps_per_epoch == 0 or step + 1 == session.total_steps:
            loss = self._settle(step)
        return GroupFlags((loss,), closed.compute_s, size if closed.leave else 0, False)

    def _tell(self, closed: Closed) -> None:
        """Who was how fast, for the reports: pieces are taken by who has time for them, not shared out before."""
        late = stragglers(closed.compute_s, closed.pieces)
        self.balance.last = Window(closed.compute_s, closed.pieces, late)
        whole = sum(closed.pieces)
        if whole:
            self.balance.shares = tuple(count / whole for count in closed.pieces)

    def _take(self, asked: Take) -> Turn | Closed:
        """The next piece of this step that nobody has, or its end; waits while this rank is too far ahead."""
        waiting = self._waiting()
        while True:
            turn: Turn | Closed = self._servers.ask_keeper(asked)
            if isinstance(turn, Closed) or not turn.wait:
                return turn
            waiting(turn.finished)
            asked = Take(asked.step, asked.leaving)

    def _compute(self, step: int, turn: Turn, index: torch.Tensor) -> Done:
        session, servers = self._session, self._servers
        assert turn.piece is not None
        everybody = (1.0,) * self._group.size
        cut = part(len(index), everybody, turn.piece)
        mine = index[cut.start : cut.stop]
        mine = mine if len(mine) >= self._least else mine[:0]
        if self._fresh < step - self._staleness:
            servers.pull()
        begun_s = time.perf_counter()
        session.model.zero_grad(set_to_none=True)
        loss = self._backward(step, index, everybody, turn.piece) if len(mine) else 0.0
        if not math.isfinite(loss):
            servers.ask_keeper(Fail(loss, step, self._group.rank))
        clip = session.training.clip_grad_norm
        if clip is not None and len(mine):  # the piece's own gradient, as if it were that of the batch
            torch.nn.utils.clip_grad_norm_(session.model.parameters(), clip * len(mine) / len(index))
        computed_s = time.perf_counter() - begun_s
        servers.push(pull=self._staleness > 0)
        self._fresh = turn.complete if self._staleness else -1
        return Done(step, loss, len(mine) / len(index), computed_s)

    def _settle(self, step: int) -> float:
        """Wait for all pieces up to this step: then every rank has the same parameters, statistics and history."""
        waiting = self._waiting()
        while True:
            settled: Settled = self._servers.ask_keeper(Settle(step, self._settled))
            if settled.losses is not None:
                break
            waiting(settled.finished)
        self._session.history.amend(self._settled, settled.losses[:-1])
        self._settled = self._fresh = step + 1
        self._servers.pull()
        self._average_buffers()
        return settled.losses[-1]

    def _average_buffers(self) -> None:
        """What batch norm has seen differs between the ranks: the mean of all counts."""
        for buffer in self._session.model.buffers():
            if buffer.is_floating_point():
                self._group.sum(buffer)
                buffer.div_(self._group.size)

    def _waiting(self) -> Callable[[int], None]:
        """To be called with the number of finished pieces while waiting: raises when it stands still for too long."""
        seen, deadline_s = -1, 0.0

        def wait(finished: int) -> None:
            nonlocal seen, deadline_s
            self._servers.check()
            if finished != seen:
                seen, deadline_s = finished, time.monotonic() + self._group.silence_s
            elif time.monotonic() > deadline_s:
                raise PeerLost("another rank did not answer in time")

        return wait

    # ------------------------------------------------------------ evaluation and state

    def outputs(self, alive: Callable[[], None]) -> Outputs:
        session, size = self._session, self._group.size
        return outputs_of(session, part(len(session.eval_samples or ()), (1.0,) * size, self._group.rank), alive)

    def state(self) -> dict[str, Any]:
        """Of the servers, each at its present step: pieces that are under way are not in it."""
        self._servers.pull()
        return self._session.state() | {"optimizer": self._optimizer_state()}

    def _optimizer_state(self) -> dict[str, Any]:
        states: dict[int, Any] = {}
        for data in self._servers.states():
            states |= torch.load(io.BytesIO(data), map_location=self._session.device, weights_only=True)
        groups = self._session.optimizer.state_dict()["param_groups"]
        return {"state": dict(sorted(states.items())), "param_groups": groups}

    def end(self) -> None:
        log(f"parameter servers: this rank took {self.balance.shares[self._group.rank]:.0%} of all pieces")
        self._servers.pull()
        self._session.model.zero_grad(set_to_none=True)
        load_optimizer(self._session.optimizer, self._optimizer_state())
        self._group.barrier()  # who has it all may go only when the others have it, too
        self._servers.close()
        super().end()

    def abandon(self) -> None:
        self._servers.close()
        super().abandon()
        self._session.spoil(self._session.model)
