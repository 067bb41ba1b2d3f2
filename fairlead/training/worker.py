"""Runs a worker's process: loads the Training, reports Ready, joins and leaves generations until the job is done."""

from __future__ import annotations

import os
import socket
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from fairlead import wire
from fairlead.errors import FairleadError, Unavailable
from fairlead.local_wire import PlacedSpec
from fairlead.planning.plan import plan_from
from fairlead.training.channel import Channel, log
from fairlead.training.control_messages import must_follow_join
from fairlead.training.custom_loop.loop import CustomLoop
from fairlead.training.custom_loop.session import CustomSession
from fairlead.training.definition import Training
from fairlead.training.grid_dataset import grant_datasets
from fairlead.training.group import Group, PeerLost
from fairlead.training.lineage import lineage
from fairlead.training.loading import describe, load_training
from fairlead.training.loop import LoopEnd, Outcome, TrainingLoop
from fairlead.training.result import final_metrics, write_result
from fairlead.training.resumption import Resumption, patience_s
from fairlead.training.run_schedule import schedule_from
from fairlead.training.seeds import seed_everything
from fairlead.training.session import Session
from fairlead.training.snapshots.grid_snapshots import GridSnapshots
from fairlead.training.snapshots.snapshotter import Snapshots
from fairlead.training.state_agreement import agree_on_state

LoadTraining = Callable[[], Training]
"""Makes the Training of a pipeline stage; any other job names a function in ``run``."""

StoreResult = Callable[[Session | CustomSession], dict[str, Any]]
"""Rank 0 calls it when the training is done: stores the result and returns where the next stages find it."""

Profile = Callable[[PlacedSpec, Session, Channel], wire.Glance | None]
"""Starts a process that profiles the model while it trains; returns the times of its first passes, if they came."""


def main(
    spec: PlacedSpec, worker: str, channel: socket.socket, load: LoadTraining | None = None,
    store: StoreResult | None = None, profile: Profile | None = None,
) -> int:  # fmt: skip
    """Run this worker in the present process; returns its exit code. The working folder holds the user's code."""
    line = Channel(channel)
    try:
        return TrainingWorker(spec, worker, line, load, store, profile).run()
    except (SyntaxError, FairleadError) as error:
        return _report_error(line, error, permanent=not isinstance(error, Unavailable))  # a grid may be back soon
    except (Exception, SystemExit) as error:  # noqa: BLE001 (the process's edge: whatever user code raises is reported)
        return _report_error(line, error, permanent=False)


def _report_error(line: Channel, error: BaseException, *, permanent: bool) -> int:
    text, trace = describe(error)
    log(f"ends: {text}")
    if trace:
        print(trace, flush=True)
    missing = list(getattr(error, "missing", []))
    line.send(wire.Raised(error=text, trace=trace, permanent=permanent, missing=missing))
    return 1


@dataclass(frozen=True, slots=True)
class _LeftGeneration:
    """The generation that this worker left last. Its ranks resume it together if no call to another one comes."""

    join: wire.Join
    group: Group
    shares: tuple[float, ...]
    resumption: Resumption
    ends: bool  # this worker's process ends as soon as the other ranks go on without it


class TrainingWorker:
    """A worker of a training: what it keeps from one generation to the next, and what it does in each.

    Methods that return bool return True when the process is to end.
    """

    def __init__(
        self, spec: PlacedSpec, worker: str, line: Channel, load: LoadTraining | None = None,
        store: StoreResult | None = None, profile: Profile | None = None,
    ) -> None:  # fmt: skip
        self._store, self._profile = store, profile
        torch.set_num_threads(max(1, int(spec.cpu)))
        self._spec, self._worker, self._line = spec, worker, line
        self._generation = 0  # the newest that this worker was called to
        self._resumed = False  # whether this worker had left that generation before
        self._left_generation: _LeftGeneration | None = None
        self._folder = Path(spec.folder)
        memory = Path(spec.memory_folder)
        self._snapshots = Snapshots(self._folder, memory, self._report_snapshot, GridSnapshots(spec.job, memory))
        seed_everything(spec.seed)
        grant_datasets(spec.data)
        training = load_training(spec.run or "", spec.params) if load is None else load()
        self._session: Session | CustomSession
        if training.loop is not None:
            self._session = CustomSession(training, spec.seed)
            return
        self._session = Session(training, spec.seed)
        self._session.replayed_schedule = schedule_from(spec.course) if spec.course else None
        for warning in self._session.findings.warnings:
            log(warning)

    def run(self) -> int:
        """Follow the messages of the control plane until one of them ends the process; returns its exit code."""
        self._line.send(self._ready_message())
        while True:
            match self._next_message():
                case None:
                    if self._resume():
                        return 0
                case wire.Quit():
                    return 0
                case wire.Join() as join if join.generation > self._generation:
                    if self._run_generation(join):
                        return 0
                case wire.Leave() as leave if leave.generation >= self._generation:
                    if self._leave_without_peers(leave):
                        return 0
                case _:
                    pass  # a repeated message, or one of a generation that is over

    def _ready_message(self) -> wire.Ready:
        session, stored = self._session, self._snapshots.find()
        resumable, looks = stored[0].step if stored else 0, self._spec.looks == self._worker
        if isinstance(session, CustomSession):
            return wire.Ready(batch_size=session.training.batch_size, resumable_step=resumable)
        return wire.Ready(
            samples=len(session.samples), epochs=session.training.epochs, batch_size=session.training.batch_size,
            parameters=sum(p.numel() for p in session.model.parameters()), resumable_step=resumable,
            plan=session.training.plan,
            glance=self._profile(self._spec, session, self._line) if looks and self._profile else None,
        )  # fmt: skip

    # ------------------------------------------------------------ between two generations

    def _next_message(self) -> wire.ToWorker | None:
        """Wait for the next message; returns None when the ranks have decided to resume the generation they left."""
        while (former := self._left_generation) is not None and not former.resumption.decided_to_leave:
            if former.resumption.should_resume():
                return None
            message = self._line.take(former.resumption.pause_s)
            if message is not None:
                return message if self._accept(message, former) else None
        self._left_generation = None
        return wire.Quit() if former is not None and former.ends else self._line.take()

    def _accept(self, message: wire.ToWorker, former: _LeftGeneration) -> bool:
        """Whether this worker may follow the message. False: the ranks have already decided to resume.

        Any message that ends the left generation needs the ranks' decision to leave it for good. A message that loses
        against a resumption is kept for later. A Join is dropped: Joined(resumed=True) tells the control plane.
        """
        match message:
            case wire.Join(generation=generation, breaks=breaks) if generation > self._generation:
                over = former.resumption.decide_to_leave() or breaks >= self._generation
                if not over:
                    log(f"generation {generation}: call refused, because generation {self._generation} is resumed")
            case wire.Leave(generation=generation) as leave if generation > self._generation or _lets_ranks_exit(leave):
                over = former.resumption.decide_to_leave()
            case wire.Quit():
                over = former.resumption.decide_to_leave()
            case _:
                return True  # a repeated message
        if over:
            self._left_generation = None
        elif not isinstance(message, wire.Join):
            self._line.put_back(message)
        return over

    def _resume(self) -> bool:
        """Run the generation that was left once more: all ranks waited, and no call to another one came."""
        former, self._left_generation = self._left_generation, None
        assert former is not None
        step = self._session.step
        log(f"generation {self._generation}: no call in time; resumed after step {step}")
        self._line.send(wire.Joined(self._generation, step, resumed=True))
        return self._run_generation(former.join, former)

    # ------------------------------------------------------------ a generation

    def _run_generation(self, join: wire.Join, former: _LeftGeneration | None = None) -> bool:
        """Meet the other ranks, agree on the state to continue from, train, and leave or finish."""
        self._generation, self._resumed = join.generation, former is not None
        if self._worker not in join.ranks:
            log(f"generation {join.generation} goes on without this worker")
            self._session.live = False  # the others train on: this worker's state is outdated from now on
            return False
        group: Group | None = None
        loop: TrainingLoop | CustomLoop | None = None
        try:
            group = Group(join, self._worker, self._why_abandoned, None if former is None else former.group)
            agreed = agree_on_state(group, self._session, self._snapshots)
            place = f"rank {group.rank} of {group.size}"
            log(f"generation {group.generation}: {place}, from step {agreed.step} ({agreed.source})")
            if former is None:
                self._line.send(wire.Joined(group.generation, self._session.step))
            self._snapshots.begin_generation(writes=group.rank == 0)
            loop = self._make_loop(group, join, () if former is None else former.shares)
            return self._end_generation(join, group, loop, loop.run())
        except PeerLost as lost:
            self._report_broken(group, loop, str(lost))
            return False

    def _make_loop(self, group: Group, join: wire.Join, shares: tuple[float, ...]) -> TrainingLoop | CustomLoop:
        """The loop of one generation. A custom loop parallelises itself, so it gets no plan."""
        if isinstance(self._session, CustomSession):
            return CustomLoop(self._session, group, self._line, self._snapshots)
        plan = None if join.plan is None else plan_from(join.plan)
        return TrainingLoop(self._session, group, self._line, self._snapshots, plan, shares)

    def _await_resumption(
        self, join: wire.Join, group: Group, shares: tuple[float, ...], *, ends: bool
    ) -> _LeftGeneration:
        """All ranks have left and wait for a call, including those that are to end: without one they resume."""
        store = group.store("after") if group.size > 1 else None
        resumption = Resumption(store, group.rank, group.size, patience_s(group.resumed), ends=ends)
        return _LeftGeneration(join, group, shares, resumption, ends)

    def _write_result(self) -> list[str]:
        session, folder = self._session, self._folder
        return session.write_result(folder) if isinstance(session, CustomSession) else write_result(session, folder)

    def _final_metrics(self) -> dict[str, float]:
        session = self._session
        return session.history.last if isinstance(session, CustomSession) else final_metrics(session)

    def _end_generation(self, join: wire.Join, group: Group, loop: TrainingLoop | CustomLoop, outcome: Outcome) -> bool:
        if outcome.end is LoopEnd.FINISHED:
            return self._finish_job(group, loop)
        assert outcome.leave is not None
        return self._leave_generation(join, group, loop, outcome.leave)

    def _finish_job(self, group: Group, loop: TrainingLoop | CustomLoop) -> bool:
        """Rank 0 writes the result; every rank reports Finished once it knows that the result is written."""
        session = self._session
        artifacts = self._write_result() if group.rank == 0 else []
        value = self._store(session) if self._store is not None and group.rank == 0 else {}
        came_from = lineage(session, self._folder) if group.rank == 0 else {}
        loop.reporter.flush()
        group.broadcast(b"written", 0)
        self._close_finished(group)
        self._snapshots.wait()
        log(f"finished at step {session.step}{self._snapshot_waits()}")
        self._line.send(wire.Finished(
            group.generation, session.step, self._final_metrics(), artifacts, value=value, lineage=came_from,
            made=session.made_datasets if isinstance(session, CustomSession) and group.rank == 0 else {},
        ))  # fmt: skip
        return True

    def _leave_generation(
        self, join: wire.Join, group: Group, loop: TrainingLoop | CustomLoop, leave: wire.Leave
    ) -> bool:
        """All ranks were told to leave and stopped after the same step. Without a last snapshot they may resume."""
        session = self._session
        sharded = isinstance(session, Session) and session.unread_shards is not None  # all ranks have written already
        if leave.snapshot and group.rank == 0 and session.live and not sharded:
            self._snapshots.write(session.step, session.full_state(), wait=True)
        loop.reporter.flush()
        group.close()
        goes = self._report_left(leave)
        if leave.snapshot:
            return goes
        self._left_generation = self._await_resumption(join, group, loop.shares, ends=goes)
        return False

    def _close_finished(self, group: Group) -> None:
        """Close the group after the result was written: a peer that is lost now makes no difference."""
        try:
            group.close()
        except PeerLost:
            group.abort()

    def _report_left(self, leave: wire.Leave) -> bool:
        goes = leave.snapshot or self._worker in leave.exits
        log(f"generation {leave.generation}: left after step {self._session.step}{', ends' if goes else ''}")
        self._snapshots.wait()
        self._line.send(wire.Left(leave.generation, self._session.step, leave.snapshot))
        return goes

    def _report_broken(self, group: Group | None, loop: TrainingLoop | CustomLoop | None, why: str) -> None:
        """Roll back the partial step, report Broken, wait. A call to leave that came meanwhile is kept."""
        if group is not None:
            group.abort()
        if loop is not None:
            self._session.roll_back_step()
            loop.reporter.flush()
            if loop.leave is not None:
                self._line.put_back(loop.leave)
        log(f"generation {self._generation}: broken after step {self._session.step} ({why})")
        self._line.send(wire.Broken(self._generation, self._session.step, why))

    def _leave_without_peers(self, leave: wire.Leave) -> bool:
        """Leave a generation that is broken or never began: each worker by itself."""
        self._generation = leave.generation
        if leave.snapshot and self._session.live:
            self._snapshots.write(self._session.step, self._session.full_state(), wait=True)
        return self._report_left(leave)

    # ------------------------------------------------------------ what loop, group and snapshots call

    def _why_abandoned(self) -> str | None:
        """Why waiting for the peers is pointless: the control plane has ended this generation. None: it has not."""
        for message in self._line.peek():
            if isinstance(message, wire.Quit):
                return "told to quit"
            if isinstance(message, wire.Join) and must_follow_join(message, self._generation, resumed=self._resumed):
                return f"generation {message.generation} was called"
        return None

    def _snapshot_waits(self) -> str:
        """For the log: how long steps waited for snapshots."""
        waits_s = self._snapshots.waits_s
        if not waits_s:
            return ""
        return f"; steps waited {statistics.median(waits_s) * 1e3:.1f} ms for each of {len(waits_s)} snapshots (median)"

    def _report_snapshot(self, step: int, where: str, size_bytes: int, seconds: float, waited_s: float) -> None:
        self._line.send(wire.Snapshot(self._generation, step, where, size_bytes, seconds, waited_s))


def _lets_ranks_exit(leave: wire.Leave) -> bool:
    """Whether this message, sent to ranks that have left already, lets some of them exit."""
    return leave.snapshot or bool(leave.exits)


def spec_from_environment() -> tuple[PlacedSpec, str, socket.socket]:
    """Spec, worker id and channel of a worker that was started by exec, under a virtual environment of the tenant's."""
    if place := os.environ.pop("FAIRLEAD_WORKER_SPEC_FD", ""):
        with os.fdopen(int(place), "rb") as file:
            written = file.read()
    else:
        written = os.environ["FAIRLEAD_WORKER_SPEC"].encode()
    spec = msgspec.json.decode(written, type=PlacedSpec)
    stream = socket.socket(fileno=int(os.environ["FAIRLEAD_CHANNEL_FD"]))
    return spec, os.environ["FAIRLEAD_WORKER"], stream
