"""The training loop of one generation: steps until the job is done, the ranks are told to leave, or a peer is lost."""

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
from fairlead.training.control_messages import read_messages
from fairlead.training.evaluation import evaluate
from fairlead.training.group import Group, PeerLost
from fairlead.training.parallel.engine import Engine, ShardedEngine
from fairlead.training.parallel.engines import loses_state_with_worker, make_engine, splits_model
from fairlead.training.parallel.model_building import keep_alive_while_building
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


class TrainingLoop:
    """Trains one generation on one rank. What outlives the generation is in the session."""

    def __init__(
        self, session: Session, group: Group, channel: ControlConnection, snapshots: SnapshotStore,
        plan: Plan | None = None,
        shares: tuple[float, ...] = (),
    ) -> None:  # fmt: skip
        """``shares``: the ranks' parts of the batch when the generation was left; only for one that is resumed."""
        self._session, self._group, self._channel, self._snapshots = session, group, channel, snapshots
        if plan is not None and loses_state_with_worker(plan) and group.rank == 0 and not snapshots.find():
            snapshots.write(session.step, session.full_state(), wait=True)  # a lost worker takes state along
        self._in_parts = plan is not None and splits_model(plan) and session.snapshots_sharded
        self._engine = self._make_engine(plan)
        self._engine.balance.shares = shares or self._engine.balance.shares
        self.reporter = Reporter(channel, session, group, self._engine.balance)
        self._plan = "replicas" if plan is None else plan.id
        self._order, self._epoch = torch.empty(0, dtype=torch.int64), -1
        self.leave: wire.Leave | None = None

    @property
    def shares(self) -> tuple[float, ...]:
        """The part of the batch that each rank computes now."""
        return self._engine.balance.shares

    def run(self) -> Outcome:
        """Train until the job is done or the generation is left, whichever comes first."""
        try:
            outcome = self._train()
            self._return_model(outcome)
        except PeerLost:
            self._engine.abandon()
            raise
        except Exception as error:
            error.add_note(f"rank {self._group.rank}, step {self._session.step + 1}")
            raise
        return outcome

    def _train(self) -> Outcome:
        session = self._session
        session.model.train()
        session.history.mark_activity(time.time())
        while True:
            self._apply_schedule()
            if session.evaluation_due:
                self._evaluate_epoch()
            if session.done:
                return Outcome(LoopEnd.FINISHED)
            self.leave = read_messages(self._channel, self._group) or self.leave
            if self._train_step():
                return Outcome(LoopEnd.LEFT, self.leave)

    # ------------------------------------------------------------ one step

    def _train_step(self) -> bool:
        """One step of all ranks. True when every rank knows that all leave after this step."""
        session, step = self._session, self._session.step
        index = self._batch_indices(step)
        due = self._group.rank == 0 and self._snapshots.due()
        flags = self._engine.step(step, index, RankFlags(leaving=self.leave is not None, snapshot=due))
        session.complete_step(time.time(), flags.loss)
        self.reporter.record_step(len(index))
        if due or (flags.snapshot and self._engine.splits_state):
            self._take_snapshot()
        # Leave only when every rank was told: otherwise some would wait in a collective for ranks that have left.
        return flags.leaving == self._group.size and session.step < session.total_steps

    def _apply_schedule(self) -> None:
        """Record the shares of the next step; a rerun takes them from the schedule that it repeats."""
        session, balance, world = self._session, self._engine.balance, self._group.size
        if session.replayed_schedule is not None:
            balance.shares = session.replayed_schedule.shares(session.step, world, self._plan) or balance.shares
        if not session.done:
            session.run_schedule.record(session.step, world, self._plan, balance.shares)

    def _return_model(self, outcome: Outcome) -> None:
        """Give the session its plain model back; a sharded one stays in files until rank 0 reads it for the result."""
        session, engine = self._session, self._engine
        if not self._in_parts:
            engine.end()
            return
        state = self._write_sharded()
        engine.abandon()
        session.load_state(state)
        if outcome.end is LoopEnd.FINISHED and self._group.rank == 0:
            session.load_shards(weights_only=True)

    def _write_sharded(self) -> dict[str, Any]:
        """All ranks write their shards. Returns the state that refers to them."""
        engine, step = self._engine, self._session.step
        assert isinstance(engine, ShardedEngine)
        state = engine.progress_state() | {"parts": str(self._snapshots.sharded_folder(step))}
        describe = (lambda file: torch.save(state, file)) if self._group.rank == 0 else None
        self._snapshots.write_sharded(step, engine.save, describe)
        return state

    def _take_snapshot(self) -> None:
        if self._in_parts:
            self._write_sharded()
            return
        state = self._engine.state()
        if self._group.rank == 0:
            self._snapshots.write(self._session.step, state)

    def _evaluate_epoch(self) -> None:
        session = self._session
        if session.eval_samples is None:
            metrics = {}
        else:
            metrics = evaluate(session, self._group, self._engine.outputs(self.reporter.report_if_due))
        session.history.mark_activity(time.time())
        if session.close_epoch(metrics):
            session.early_stopping.keep(self._engine.state()["model"])

    def _batch_indices(self, step: int) -> torch.Tensor:
        """The sample indices of this step's global batch; the last batch of an epoch may be short."""
        session = self._session
        epoch, place = divmod(step, session.steps_per_epoch)
        if epoch != self._epoch:
            self._order, self._epoch = epoch_order(session.seed, epoch, len(session.samples)).to(session.device), epoch
        size = session.training.batch_size
        return self._order[place * size : (place + 1) * size]

    # ------------------------------------------------------------ setup

    def _make_engine(self, plan: Plan | None) -> Engine:
        session, group = self._session, self._group
        if plan is None or not splits_model(plan):
            return make_engine(session, group, plan)
        engine: Engine | None = None
        try:
            progress = wire.Progress(group.generation, session.step, session.total_steps)
            with keep_alive_while_building(group, self._channel, progress):
                engine = make_engine(session, group, plan)
        except PeerLost:
            if engine is not None:
                engine.abandon()
            raise
        return engine
