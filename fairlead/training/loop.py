"""One generation of training, step by step, until it is done, told to leave, or a peer is lost."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum

import torch

from fairlead import wire
from fairlead.training.batchnorm import SyncedBatchNorms
from fairlead.training.channel import Channel, log
from fairlead.training.data import part
from fairlead.training.evaluation import evaluate
from fairlead.training.gradients import FlatGradients, Summed
from fairlead.training.group import Group, PeerLost
from fairlead.training.probe import call
from fairlead.training.randomness import SampleDropout
from fairlead.training.reporting import Reporter
from fairlead.training.seeds import epoch_order, mix, seed_quickly
from fairlead.training.session import Session
from fairlead.training.snapshots import Snapshots


class End(StrEnum):
    FINISHED = "finished"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Outcome:
    end: End
    leave: wire.Leave | None = None


class Loop:
    """The training of one generation on one rank. Everything that outlives it is in the session."""

    def __init__(self, session: Session, group: Group, channel: Channel, snapshots: Snapshots) -> None:
        self._session, self._group, self._channel, self._snapshots = session, group, channel, snapshots
        self.reporter = Reporter(channel, session, group)
        self._gradients = FlatGradients(list(session.model.parameters()), group) if group.size > 1 else None
        self._norms = SyncedBatchNorms(session.model, group)
        if len(self._norms):
            log(f"batch norm: statistics of the whole batch, over {group.size} workers")
        self._dropout = SampleDropout(session.findings.random) if session.findings.random.layouts else None
        self._order, self._epoch = torch.empty(0, dtype=torch.int64), -1
        self.leave: wire.Leave | None = None

    def run(self) -> Outcome:
        """Train to the end of the job or of the generation, whichever comes first."""
        session = self._session
        session.model.train()
        try:
            while True:
                if session.wants_evaluation:
                    session.history.mark(session.step, evaluate(session, self._group, self.reporter.alive))
                if session.step >= session.total_steps:
                    return Outcome(End.FINISHED)
                self._listen()
                if self._step():
                    return Outcome(End.LEFT, self.leave)
                if self._group.rank == 0 and self._snapshots.due():
                    self._snapshots.write(session.step, session.save)
        finally:
            self._norms.restore()

    # ------------------------------------------------------------ messages

    def _listen(self) -> None:
        """Take what the control plane says between two steps."""
        while self._channel.pending():
            message = self._channel.take()
            match message:
                case wire.Leave(generation=generation) if generation == self._group.generation:
                    self.leave = message
                case wire.Join(generation=generation) if generation > self._group.generation:
                    self._channel.put_back(message)
                    raise PeerLost(f"generation {generation} was called")
                case wire.Quit():
                    self._channel.put_back(message)
                    raise PeerLost("told to quit")
                case _:
                    pass  # of a generation that is over, or said twice

    # ------------------------------------------------------------ one step

    def _step(self) -> bool:
        """One step of the whole gang; true when all of it has been told to leave."""
        session, step = self._session, self._session.step
        index = self._batch(step)
        mine = part(len(index), self._group.shares, self._group.rank)
        session.remember_buffers()
        session.optimizer.zero_grad(set_to_none=True)
        loss = self._backward(step, index[mine.start : mine.stop], len(index))
        if self._gradients is None:
            summed = Summed(loss, int(self.leave is not None))
        else:
            summed = self._gradients.exchange(loss, self.leave is not None)
        self._update(step)
        session.complete_step(time.time(), summed.loss)
        self.reporter.stepped(len(index))
        # Only when everybody has heard of it: then nobody is left waiting for a message or in a collective.
        return summed.leaving == self._group.size and session.step < session.total_steps

    def _batch(self, step: int) -> torch.Tensor:
        """The samples of the whole global batch of this step; the last one of an epoch may be short."""
        session = self._session
        epoch, place = divmod(step, session.steps_per_epoch)
        if epoch != self._epoch:
            self._order, self._epoch = epoch_order(session.seed, epoch, len(session.samples)).to(session.device), epoch
        size = session.training.batch_size
        return self._order[place * size : (place + 1) * size]

    def _backward(self, step: int, mine: torch.Tensor, total: int) -> float:
        """Gradients of this rank's part of the mean loss, and the part itself."""
        weight = len(mine) / total
        if not len(mine):
            if not len(self._norms):
                return 0.0
            mine = self._order[:1]  # batch norm talks within the pass: keep the others company, with no weight
        self._norms.weight = 1.0 if weight else 0.0
        session = self._session
        batch = session.samples.take(mine, mix(session.seed, step // session.steps_per_epoch, 4))
        seed_quickly(mix(session.seed, step, self._group.rank, 5))
        if self._dropout is not None:
            self._dropout.begin(session.seed, step, mine)
        with self._dropout or nullcontext():
            loss = call(session.model, session.training.loss, batch)
        scaled = loss if weight == 1.0 else loss * weight
        torch.autograd.backward(scaled)
        return float(scaled.detach())

    def _update(self, step: int) -> None:
        session = self._session
        clip = session.training.clip_grad_norm
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(session.model.parameters(), clip)
        session.optimizer.step()
        if session.scheduler is not None and (step + 1) % session.steps_per_epoch == 0:
            session.scheduler.step()
