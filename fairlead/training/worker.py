"""The life of a worker process: load, say Ready, then join and leave generations until told to go or done."""

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
from fairlead.training.control_messages import calls_away
from fairlead.training.custom_loop.loop import CustomLoop
from fairlead.training.custom_loop.session import CustomSession
from fairlead.training.definition import Training
from fairlead.training.grid_dataset import hand_over
from fairlead.training.group import Group, PeerLost
from fairlead.training.lineage import lineage
from fairlead.training.loading import describe, load_training
from fairlead.training.loop import Loop, LoopEnd, Outcome
from fairlead.training.result import final_metrics, write_result
from fairlead.training.resumption import Resumption, patience_s
from fairlead.training.run_schedule import course_from
from fairlead.training.seeds import seed_everything
from fairlead.training.session import Session
from fairlead.training.snapshots.grid_snapshots import GridSnapshots
from fairlead.training.snapshots.snapshotter import Snapshots
from fairlead.training.state_agreement import agree

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
        return _raised(line, error, permanent=not isinstance(error, Unavailable))  # a grid may be back soon
    except (Exception, SystemExit) as error:  # noqa: BLE001 (the process's edge: whatever user code raises is reported)
        return _raised(line, error, permanent=False)


def _raised(line: Channel, error: BaseException, *, permanent: bool) -> int:
    text, trace = describe(error)
    log(f"ends: {text}")
    if trace:
        print(trace, flush=True)
    missing = list(getattr(error, "missing", []))
    line.send(wire.Raised(error=text, trace=trace, permanent=permanent, missing=missing))
    return 1


@dataclass(frozen=True, slots=True)
class _Former:
    """The generation that this worker left last, while its ranks may still resume it."""

    join: wire.Join
    group: Group
    shares: tuple[float, ...]
    resumption: Resumption
    ends: bool  # whether this worker ends as soon as the others go on without it


class TrainingWorker:
    """What a worker holds, and what it does between and in generations."""

    def __init__(
        self, spec: PlacedSpec, worker: str, line: Channel, load: LoadTraining | None = None,
        store: StoreResult | None = None, profile: Profile | None = None,
    ) -> None:  # fmt: skip
        self._store, self._profile = store, profile
        torch.set_num_threads(max(1, int(spec.cpu)))
        self._spec, self._worker, self._line = spec, worker, line
        self._generation = 0  # the newest it was called to
        self._resumed = False  # whether that one was left before
        self._former: _Former | None = None
        self._folder = Path(spec.folder)
        memory = Path(spec.memory_folder)
        self._snapshots = Snapshots(self._folder, memory, self._report_snapshot, GridSnapshots(spec.job, memory))
        seed_everything(spec.seed)
        hand_over(spec.data)
        training = load_training(spec.run or "", spec.params) if load is None else load()
        self._session: Session | CustomSession
        if training.loop is not None:
            self._session = CustomSession(training, spec.seed)
            return
        self._session = Session(training, spec.seed)
        self._session.replay = course_from(spec.course) if spec.course else None
        for warning in self._session.findings.warnings:
            log(warning)

    def run(self) -> int:
        """Wait for messages and follow them; returns the exit code."""
        self._line.send(self._ready())
        while True:
            match self._next():
                case None:
                    if self._resume():
                        return 0
                case wire.Quit():
                    return 0
                case wire.Join() as join if join.generation > self._generation:
                    if self._take_part(join):
                        return 0
                case wire.Leave() as leave if leave.generation >= self._generation:
                    if self._leave_alone(leave):
                        return 0
                case _:
                    pass  # of a generation that is over, or said twice

    def _ready(self) -> wire.Ready:
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

    def _next(self) -> wire.ToWorker | None:
        """The next message; None if the ranks resume the generation that they left last."""
        while (former := self._former) is not None and not former.resumption.over:
            if former.resumption.resumes():
                return None
            message = self._line.take(former.resumption.pause_s)
            if message is not None:
                return message if self._may_follow(message, former) else None
        self._former = None
        return wire.Quit() if former is not None and former.ends else self._line.take()

    def _may_follow(self, message: wire.ToWorker, former: _Former) -> bool:
        """Whether the generation that was left is over, or this message does not end it; else it is resumed."""
        match message:
            case wire.Join(generation=generation, breaks=breaks) if generation > self._generation:
                over = former.resumption.goes() or breaks >= self._generation
                if not over:
                    log(f"generation {generation}: call refused, generation {self._generation} is resumed")
            case wire.Leave(generation=generation) as leave if generation > self._generation or _ends_some(leave):
                over = former.resumption.goes()
            case wire.Quit():
                over = former.resumption.goes()
            case _:
                return True  # said twice
        if over:
            self._former = None
        elif not isinstance(message, wire.Join):
            self._line.put_back(message)
        return over

    def _resume(self) -> bool:
        """All ranks have left a generation in vain: take part in it again."""
        former, self._former = self._former, None
        assert former is not None
        step = self._session.step
        log(f"generation {self._generation}: no call in time; resumed after step {step}")
        self._line.send(wire.Joined(self._generation, step, resumed=True))
        return self._take_part(former.join, former)

    # ------------------------------------------------------------ a generation

    def _take_part(self, join: wire.Join, former: _Former | None = None) -> bool:
        """Join, train, leave. True when this worker's life is over."""
        self._generation, self._resumed = join.generation, former is not None
        if self._worker not in join.ranks:
            log(f"generation {join.generation} goes on without this worker")
            self._session.live = False  # what it holds is behind from here on
            return False
        group: Group | None = None
        loop: Loop | CustomLoop | None = None
        try:
            group = Group(join, self._worker, self._given_up, None if former is None else former.group)
            agreed = agree(group, self._session, self._snapshots)
            place = f"rank {group.rank} of {group.size}"
            log(f"generation {group.generation}: {place}, from step {agreed.step} ({agreed.source})")
            if former is None:
                self._line.send(wire.Joined(group.generation, self._session.step))
            self._snapshots.rearm(writes=group.rank == 0)
            loop = self._loop(group, join, () if former is None else former.shares)
            return self._end(join, group, loop, loop.run())
        except PeerLost as lost:
            self._broken(group, loop, str(lost))
            return False

    def _loop(self, group: Group, join: wire.Join, shares: tuple[float, ...]) -> Loop | CustomLoop:
        """A loop of the user's own is not spread by a plan: it does what it does."""
        if isinstance(self._session, CustomSession):
            return CustomLoop(self._session, group, self._line, self._snapshots)
        plan = None if join.plan is None else plan_from(join.plan)
        return Loop(self._session, group, self._line, self._snapshots, plan, shares)

    def _resumable(self, join: wire.Join, group: Group, shares: tuple[float, ...], *, ends: bool) -> _Former:
        """All ranks have left and wait, those that are to end as well: without a call they go on where they left."""
        store = group.store("after") if group.size > 1 else None
        resumption = Resumption(store, group.rank, group.size, patience_s(group.resumed), ends=ends)
        return _Former(join, group, shares, resumption, ends)

    def _write_result(self) -> list[str]:
        session, folder = self._session, self._folder
        return session.write_result(folder) if isinstance(session, CustomSession) else write_result(session, folder)

    def _metrics(self) -> dict[str, float]:
        session = self._session
        return session.history.last if isinstance(session, CustomSession) else final_metrics(session)

    def _end(self, join: wire.Join, group: Group, loop: Loop | CustomLoop, outcome: Outcome) -> bool:
        session = self._session
        if outcome.end is LoopEnd.FINISHED:
            artifacts = self._write_result() if group.rank == 0 else []
            value = self._store(session) if self._store is not None and group.rank == 0 else {}
            came_from = lineage(session, self._folder) if group.rank == 0 else {}
            loop.reporter.flush()
            group.broadcast(b"written", 0)
            self._close_finished(group)
            self._snapshots.finish()
            log(f"finished at step {session.step}{self._waits()}")
            self._line.send(wire.Finished(
                group.generation, session.step, self._metrics(), artifacts, value=value, lineage=came_from,
                made=session.made if isinstance(session, CustomSession) and group.rank == 0 else {},
            ))  # fmt: skip
            return True
        leave = outcome.leave
        assert leave is not None
        written = isinstance(session, Session) and session.pending is not None  # in parts, by all ranks
        if leave.snapshot and group.rank == 0 and session.live and not written:
            self._snapshots.write(session.step, session.whole(), wait=True)
        loop.reporter.flush()
        group.close()
        goes = self._left(leave)
        if leave.snapshot:
            return goes
        self._former = self._resumable(join, group, loop.shares, ends=goes)
        return False

    def _close_finished(self, group: Group) -> None:
        """The result is written and every rank knows it: who is lost from here on is not missed."""
        try:
            group.close()
        except PeerLost:
            group.abort()

    def _left(self, leave: wire.Leave) -> bool:
        goes = leave.snapshot or self._worker in leave.exits
        log(f"generation {leave.generation}: left after step {self._session.step}{', ends' if goes else ''}")
        self._snapshots.finish()
        self._line.send(wire.Left(leave.generation, self._session.step, leave.snapshot))
        return goes

    def _broken(self, group: Group | None, loop: Loop | CustomLoop | None, why: str) -> None:
        """Be sound again, say so, and wait: what was said about leaving still holds."""
        if group is not None:
            group.abort()
        if loop is not None:
            self._session.undo_half_step()
            loop.reporter.flush()
            if loop.leave is not None:
                self._line.put_back(loop.leave)
        log(f"generation {self._generation}: broken after step {self._session.step} ({why})")
        self._line.send(wire.Broken(self._generation, self._session.step, why))

    def _leave_alone(self, leave: wire.Leave) -> bool:
        """Told to leave a generation that is broken already, or never began: each one for itself."""
        self._generation = leave.generation
        if leave.snapshot and self._session.live:
            self._snapshots.write(self._session.step, self._session.whole(), wait=True)
        return self._left(leave)

    # ------------------------------------------------------------ helpers

    def _given_up(self) -> str | None:
        """Whether the control plane has moved on while this worker waits for its peers."""
        for message in self._line.peek():
            if isinstance(message, wire.Quit):
                return "told to quit"
            if isinstance(message, wire.Join) and calls_away(message, self._generation, resumed=self._resumed):
                return f"generation {message.generation} was called"
        return None

    def _waits(self) -> str:
        """What snapshots cost this worker's steps, for its log."""
        waits_s = self._snapshots.waits_s
        if not waits_s:
            return ""
        return f"; steps waited {statistics.median(waits_s) * 1e3:.1f} ms for each of {len(waits_s)} snapshots (median)"

    def _report_snapshot(self, step: int, where: str, size_bytes: int, seconds: float, waited_s: float) -> None:
        self._line.send(wire.Snapshot(self._generation, step, where, size_bytes, seconds, waited_s))


def _ends_some(leave: wire.Leave) -> bool:
    """Whether this call, told to ranks that have left already, lets some of them end."""
    return leave.snapshot or bool(leave.exits)


def spec_from_environment() -> tuple[PlacedSpec, str, socket.socket]:
    """The form for virtual environments: started by exec, with its spec and channel handed over by name."""
    if place := os.environ.pop("FAIRLEAD_WORKER_SPEC_FD", ""):
        with os.fdopen(int(place), "rb") as file:
            written = file.read()
    else:
        written = os.environ["FAIRLEAD_WORKER_SPEC"].encode()
    spec = msgspec.json.decode(written, type=PlacedSpec)
    stream = socket.socket(fileno=int(os.environ["FAIRLEAD_CHANNEL_FD"]))
    return spec, os.environ["FAIRLEAD_WORKER"], stream
