"""Parameter servers as an engine: take a piece, pull, compute, push; a rank waits only when it is too far ahead."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable
from typing import Any

import torch

from fairlead.planning.plan import Plan
from fairlead.training.batch_ranges import rank_range
from fairlead.training.channel import log
from fairlead.training.evaluation import Outputs, outputs_of
from fairlead.training.group import Group, PeerLost
from fairlead.training.model_probe import has_batch_norm
from fairlead.training.optimizers import load_optimizer
from fairlead.training.parallel.batch_balance import Window
from fairlead.training.parallel.replicas import Replicas
from fairlead.training.parallel.slow_ranks import stragglers
from fairlead.training.servers.client import Servers
from fairlead.training.servers.clocks import Clocks, Closed, Turn
from fairlead.training.servers.messages import Done, Fail, Settle, Settled, Take
from fairlead.training.session import Session
from fairlead.training.step_flags import GroupFlags, RankFlags


class ParameterServers(Replicas):
    """Computes pieces of batches, and serves its part of the parameters in threads.

    The session's optimizer is not used meanwhile; its state lies with the servers. ``splits_state``: a lost rank takes
    a part of the state along, and the next generation continues from the snapshot.
    """

    splits_state = True

    def __init__(self, session: Session, group: Group, plan: Plan) -> None:
        super().__init__(session, group, plan, sums=False)
        self._least = 2 if has_batch_norm(session.model) else 1  # samples that a piece needs to be computed at all
        self._staleness = plan.staleness
        self._pulled_step = -1  # the parameters last pulled include all steps before this one
        self._settled_step = session.step  # the histories of all ranks are the same up to here
        self._servers = Servers(session, group, Clocks(group.size, plan.staleness, session.step))

    def step(self, step: int, index: torch.Tensor, own: RankFlags) -> GroupFlags:
        try:
            return self._step(step, index, own)
        except PeerLost:
            self._servers.raise_failure()  # the peer may have ended because of a non-finite loss
            raise

    def _step(self, step: int, index: torch.Tensor, own: RankFlags) -> GroupFlags:
        session, size = self._session, self._group.size
        turn = self._request_turn(Take(step, own.leaving))
        while isinstance(turn, Turn):
            done = self._compute(step, turn, index)
            turn = self._request_turn(Take(step, own.leaving, done))
        closed = turn
        self._record_pace(closed)
        loss = closed.loss
        if closed.leave or (step + 1) % session.steps_per_epoch == 0 or step + 1 == session.total_steps:
            loss = self._wait_for_step(step)
        return GroupFlags((loss,), closed.compute_s, size if closed.leave else 0, False)

    def _record_pace(self, closed: Closed) -> None:
        """Record each rank's speed and pieces for reports: pieces go to ranks that have time, not by shares."""
        late = stragglers(closed.compute_s, closed.pieces)
        self.balance.last = Window(closed.compute_s, closed.pieces, late)
        whole = sum(closed.pieces)
        if whole:
            self.balance.shares = tuple(count / whole for count in closed.pieces)

    def _request_turn(self, asked: Take) -> Turn | Closed:
        """The next free piece of this step, or the step's end; waits while this rank is too far ahead."""
        waiting = self._stall_check()
        while True:
            turn: Turn | Closed = self._servers.ask_clock_server(asked)
            if isinstance(turn, Closed) or not turn.wait:
                return turn
            waiting(turn.finished)
            asked = Take(asked.step, asked.leaving)

    def _compute(self, step: int, turn: Turn, index: torch.Tensor) -> Done:
        session, servers = self._session, self._servers
        assert turn.piece is not None
        even = (1.0,) * self._group.size
        cut = rank_range(len(index), even, turn.piece)
        mine = index[cut.start : cut.stop]
        mine = mine if len(mine) >= self._least else mine[:0]
        if self._pulled_step < step - self._staleness:
            servers.pull()
        begun_s = time.perf_counter()
        session.model.zero_grad(set_to_none=True)
        loss = self._backward(step, index, even, turn.piece) if len(mine) else 0.0
        if not math.isfinite(loss):
            servers.ask_clock_server(Fail(loss, step, self._group.rank))
        clip = session.training.clip_grad_norm
        if clip is not None and len(mine):  # clip the piece's gradient as if it were the batch's
            torch.nn.utils.clip_grad_norm_(session.model.parameters(), clip * len(mine) / len(index))
        computed_s = time.perf_counter() - begun_s
        servers.push(pull=self._staleness > 0)
        self._pulled_step = turn.complete if self._staleness else -1
        return Done(step, loss, len(mine) / len(index), computed_s)

    def _wait_for_step(self, step: int) -> float:
        """Wait for all pieces up to this step: then all ranks have the same parameters, statistics and history."""
        waiting = self._stall_check()
        while True:
            settled: Settled = self._servers.ask_clock_server(Settle(step, self._settled_step))
            if settled.losses is not None:
                break
            waiting(settled.finished)
        self._session.history.correct_losses(self._settled_step, settled.losses[:-1])
        self._settled_step = self._pulled_step = step + 1
        self._servers.pull()
        self._average_buffers()
        return settled.losses[-1]

    def _average_buffers(self) -> None:
        """Average the batch norm statistics, which differ between the ranks."""
        for buffer in self._session.model.buffers():
            if buffer.is_floating_point():
                self._group.sum(buffer)
                buffer.div_(self._group.size)

    def _stall_check(self) -> Callable[[int], None]:
        """A function to call with the number of finished pieces: raises PeerLost when it stalls for too long."""
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
        return outputs_of(session, rank_range(len(session.eval_samples or ()), (1.0,) * size, self._group.rank), alive)

    def state(self) -> dict[str, Any]:
        """The servers' state, each at its present step, without pieces that are under way."""
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
        self._group.barrier()  # no rank may stop serving before all have read the state
        self._servers.close()
        super().end()

    def abandon(self) -> None:
        self._servers.close()
        super().abandon()
        self._session.discard_weights(self._session.model)
