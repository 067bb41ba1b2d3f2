"""One generation of training, step by step, until it is done, told to leave, or a peer is lost."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from fairlead import wire
from fairlead.planning.plan import Plan
from fairlead.training.control_messages import ControlConnection as ControlConnection
from fairlead.training.control_messages import SnapshotStore as SnapshotStore
from fairlead.training.control_messages import listen
from fairlead.training.evaluation import evaluate
from fairlead.training.group import Group, PeerLost
from fairlead.training.parallel.engine import Engine, ShardedEngine
from fairlead.training.parallel.engines import is_spread, keeps_apart, make_engine
from fairlead.training.parallel.model_building import building
from fairlead.training.reporting import Reporter
from fairlead.training.seeds import epoch_order
from fairlead.training.session import Session
from fairlead.training.step_flags import RankFlags


class LoopEnd(StrEnum):
    FINISHED = "finished"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Outcome:
    end: LoopEnd
    leave: wire.Leave | None = None


class Loop:
    """The training of one generation on one rank. Everything that outlives it is in the session."""

    def __init__(
        self, session: Session, group: Group, channel: ControlConnection, snapshots: SnapshotStore,
        plan: Plan | None = None,
        shares: tuple[float, ...] = (),
    ) -> None:  # fmt: skip
        """``shares``: of a generation that is resumed, the parts of the batch that its ranks had at last."""
        self._session, self._group, self._channel, self._snapshots = session, group, channel, snapshots
        if plan is not None and keeps_apart(plan) and group.rank == 0 and not snapshots.find():
            snapshots.write(session.step, session.whole(), wait=True)  # with a lost part all would be lost
        self._in_parts = plan is not None and is_spread(plan) and session.in_parts
        self._engine = self._built(plan)
        self._engine.balance.shares = shares or self._engine.balance.shares
        self.reporter = Reporter(channel, session, group, self._engine.balance)
        self._plan = "replicas" if plan is None else plan.id
        self._order, self._epoch = torch.empty(0, dtype=torch.int64), -1
        self.leave: wire.Leave | None = None

    @property
    def shares(self) -> tuple[float, ...]:
        """The parts of the batch that the ranks take now."""
        return self._engine.balance.shares

    def _built(self, plan: Plan | None) -> Engine:
        session, group = self._session, self._group
        if plan is None or not is_spread(plan):
            return make_engine(session, group, plan)
        engine: Engine | None = None
        try:
            with building(group, self._channel, wire.Progress(group.generation, session.step, session.total_steps)):
                engine = make_engine(session, group, plan)
        except PeerLost:
            if engine is not None:
                engine.abandon()
            raise
        return engine

    def run(self) -> Outcome:
        """Train to the end of the job or of the generation, whichever comes first."""
        try:
            outcome = self._run()
            self._hand_back(outcome)
        except PeerLost:
            self._engine.abandon()
            raise
        except Exception as error:
            error.add_note(f"rank {self._group.rank}, step {self._session.step + 1}")
            raise
        return outcome

    def _run(self) -> Outcome:
        session = self._session
        session.model.train()
        session.history.at_work(time.time())
        while True:
            self._follow_course()
            if session.epoch_is_open:
                self._close_epoch()
            if session.done:
                return Outcome(LoopEnd.FINISHED)
            self.leave = listen(self._channel, self._group) or self.leave
            if self._step():
                return Outcome(LoopEnd.LEFT, self.leave)

    # ------------------------------------------------------------ one step

    def _step(self) -> bool:
        """One step of the whole gang; true when all of it has been told to leave."""
        session, step = self._session, self._session.step
        index = self._batch(step)
        due = self._group.rank == 0 and self._snapshots.due()
        heard = self._engine.step(step, index, RankFlags(leaving=self.leave is not None, snapshot=due))
        session.complete_step(time.time(), heard.loss)
        self.reporter.stepped(len(index))
        if due or (heard.snapshot and self._engine.spread):
            self._snapshot()
        # Only when everybody has heard of it: then nobody is left waiting for a message or in a collective.
        return heard.leaving == self._group.size and session.step < session.total_steps

    def _follow_course(self) -> None:
        """Note in which shares the next step is taken; a rerun takes it in those of the first time."""
        session, balance, world = self._session, self._engine.balance, self._group.size
        again = None if session.replay is None else session.replay.shares(session.step, world, self._plan)
        if again is not None:
            balance.shares = again
        if not session.done:
            session.course.note(session.step, world, self._plan, balance.shares)

    def _hand_back(self, outcome: Outcome) -> None:
        """The session has its plain model again; of one in parts only the weights, and only who writes the result."""
        session, engine = self._session, self._engine
        if not self._in_parts:
            engine.end()
            return
        place = self._write_parts()
        engine.abandon()
        session.adopt(place)
        if outcome.end is LoopEnd.FINISHED and self._group.rank == 0:
            session.fetch(weights_only=True)

    def _write_parts(self) -> dict[str, Any]:
        """All ranks write what they hold; who reads it needs no more than this to find it."""
        engine, step = self._engine, self._session.step
        assert isinstance(engine, ShardedEngine)
        place = engine.place() | {"parts": str(self._snapshots.parts(step))}
        describe = (lambda file: torch.save(place, file)) if self._group.rank == 0 else None
        self._snapshots.write_parts(step, engine.save, describe)
        return place

    def _snapshot(self) -> None:
        if self._in_parts:
            self._write_parts()
            return
        state = self._engine.state()
        if self._group.rank == 0:
            self._snapshots.write(self._session.step, state)

    def _close_epoch(self) -> None:
        session = self._session
        if session.eval_samples is None:
            metrics = {}
        else:
            metrics = evaluate(session, self._group, self._engine.outputs(self.reporter.alive))
        session.history.at_work(time.time())
        if session.close_epoch(metrics):
            session.judgement.keep(self._engine.state()["model"])

    def _batch(self, step: int) -> torch.Tensor:
        """The samples of the whole global batch of this step; the last one of an epoch may be short."""
        session = self._session
        epoch, place = divmod(step, session.steps_per_epoch)
        if epoch != self._epoch:
            self._order, self._epoch = epoch_order(session.seed, epoch, len(session.samples)).to(session.device), epoch
        size = session.training.batch_size
        return self._order[place * size : (place + 1) * size]
