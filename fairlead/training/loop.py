"""One generation of training, step by step, until it is done, told to leave, or a peer is lost."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

import torch

from fairlead import wire
from fairlead.training.channel import Channel
from fairlead.training.evaluation import evaluate
from fairlead.training.group import Group, PeerLost
from fairlead.training.replicas import Replicas
from fairlead.training.reporting import Reporter
from fairlead.training.seeds import epoch_order
from fairlead.training.session import Session
from fairlead.training.snapshots import Snapshots
from fairlead.training.words import Word


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
        self._engine = Replicas(session, group)
        self.reporter = Reporter(channel, session, group, self._engine.balance)
        self._order, self._epoch = torch.empty(0, dtype=torch.int64), -1
        self.leave: wire.Leave | None = None

    def run(self) -> Outcome:
        """Train to the end of the job or of the generation, whichever comes first."""
        session = self._session
        session.model.train()
        try:
            while True:
                if session.epoch_is_open:
                    session.close_epoch(self._evaluate() if session.eval_samples is not None else {})
                if session.done:
                    return Outcome(End.FINISHED)
                self._listen()
                if self._step():
                    return Outcome(End.LEFT, self.leave)
                if self._group.rank == 0 and self._snapshots.due():
                    self._snapshots.write(session.step, session.save)
        except PeerLost:
            raise
        except Exception as error:
            error.add_note(f"rank {self._group.rank}, step {session.step + 1}")
            raise
        finally:
            self._engine.close()

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
        heard = self._engine.step(step, index, Word(leaving=self.leave is not None))
        session.complete_step(time.time(), heard.loss)
        self.reporter.stepped(len(index))
        # Only when everybody has heard of it: then nobody is left waiting for a message or in a collective.
        return heard.leaving == self._group.size and session.step < session.total_steps

    def _evaluate(self) -> dict[str, float]:
        return evaluate(self._session, self._group, self._engine.shares, self.reporter.alive)

    def _batch(self, step: int) -> torch.Tensor:
        """The samples of the whole global batch of this step; the last one of an epoch may be short."""
        session = self._session
        epoch, place = divmod(step, session.steps_per_epoch)
        if epoch != self._epoch:
            self._order, self._epoch = epoch_order(session.seed, epoch, len(session.samples)).to(session.device), epoch
        size = session.training.batch_size
        return self._order[place * size : (place + 1) * size]
