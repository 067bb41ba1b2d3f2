"""One generation step by step, all ranks in one process: what is taken in which order, told, and handed back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fairlead
from fairlead import wire
from fairlead.planning.plan import Plan
from fairlead.training import reporting
from fairlead.training.group import Group, PeerLost
from fairlead.training.history import History
from fairlead.training.loop import LoopEnd, Outcome, TrainingLoop
from fairlead.training.reporting import INTERVAL_S, Reporter
from fairlead.training.run_schedule import RunSchedule
from fairlead.training.seeds import epoch_order
from fairlead.training.session import Session
from tests.training.ranks import together

X, Y = torch.randn(10, 3), torch.randint(0, 2, (10,))


class Line:
    """Keeps what is sent, and has messages for who asks at a step."""

    def __init__(self, *messages: Any) -> None:
        self.sent: list[Any] = []
        self.waiting = list(messages)

    def pending(self) -> bool:
        return bool(self.waiting)

    def take(self, timeout_s: float | None = None) -> Any:
        return self.waiting.pop(0)

    def put_back(self, message: Any) -> None:
        self.waiting.insert(0, message)

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Kept:
    """Where snapshots go, which are due when it is said."""

    def __init__(self, due: Callable[[], bool] = lambda: False, found: int = 0) -> None:
        self.due, self.found = due, found
        self.written: list[tuple[int, bool]] = []

    def find(self) -> list[Any]:
        return [None] * self.found

    def write(self, step: int, state: Any, *, wait: bool = False) -> None:
        assert state["step"] == step
        self.written.append((step, wait))

    def write_sharded(self, *_: Any) -> None:
        raise AssertionError("nothing is in parts")

    def sharded_folder(self, step: int) -> Path:
        return Path("nowhere")


def session(**more: Any) -> Session:
    common: dict[str, Any] = {
        "model": lambda: nn.Linear(3, 2), "loss": nn.CrossEntropyLoss(), "data": (X, Y), "batch_size": 4, "epochs": 3,
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.1),
    }  # fmt: skip
    return Session(fairlead.Training(**(common | more)), 0)


def alone(place: Path, own: Session, line: Line, kept: Kept, **more: Any) -> tuple[Outcome, TrainingLoop]:
    def work(group: Group) -> tuple[Outcome, TrainingLoop]:
        loop = TrainingLoop(own, group, line, kept, **more)
        return loop.run(), loop

    return together(place, 1, work)[0]


def test_each_epoch_takes_all_samples_in_an_order_of_its_own_wherever_it_begins(tmp_path: Path) -> None:
    for begun in range(9):
        own, taken = session(), list[list[int]]()
        own.step = begun
        plain = own.samples.take

        def take(index: torch.Tensor, draw: int, plain: Any = plain, taken: Any = taken) -> Any:
            taken.append(index.tolist())
            return plain(index, draw)

        own.samples.take = take  # type: ignore[method-assign]
        alone(tmp_path, own, Line(), Kept())
        expected = []
        for epoch in range(3):
            order = epoch_order(own.seed, epoch, 10).tolist()
            expected += [order[:4], order[4:8], order[8:]]
        assert taken == expected[begun:], begun


def test_a_finished_training_has_taken_every_step_once_and_says_so(tmp_path: Path) -> None:
    own, line = session(eval_data=(X, Y)), Line()
    outcome, loop = alone(tmp_path, own, line, Kept())
    assert outcome == Outcome(LoopEnd.FINISHED) and own.step == 9 and own.done
    loop.reporter.flush()
    rows = [row for message in line.sent for row in message.steps]
    assert [row["step"] for row in rows] == list(range(1, 10))
    assert [row["step"] for row in rows if "eval_loss" in row] == [3, 6, 9]
    assert loop.shares == (1.0,)


def test_who_is_told_to_leave_leaves_after_the_step_that_everybody_knows(tmp_path: Path) -> None:
    leave = wire.Leave(1, False, [])
    own = session()
    outcome, loop = alone(tmp_path, own, Line(leave), Kept())
    assert outcome == Outcome(LoopEnd.LEFT, leave) and loop.leave is leave and own.step == 1
    last = session()
    last.step = 8
    outcome, _ = alone(tmp_path, last, Line(leave), Kept())
    assert outcome.end is LoopEnd.FINISHED and last.step == 9, "nobody leaves after the last step"

    sessions, called = [session(), session()], iter(range(100))

    def work(group: Group) -> Outcome:
        line = Line(*([leave] if group.rank == 0 else []))
        if group.rank == 1:
            line.pending = lambda: next(called) == 3  # type: ignore[method-assign]
            line.take = lambda timeout_s=None: leave  # type: ignore[method-assign]
        return TrainingLoop(sessions[group.rank], group, line, Kept()).run()

    found = together(tmp_path, 2, work)
    assert [each.end for each in found] == [LoopEnd.LEFT] * 2
    assert sessions[0].step == sessions[1].step >= 2, "not before both have heard of it"


def test_snapshots_are_of_rank_0_and_when_they_are_due(tmp_path: Path) -> None:
    turns = iter([False, True, False, False, True] + [False] * 20)
    kept = [Kept(lambda: next(turns)), Kept(lambda: True)]
    sessions = [session(), session()]

    def work(group: Group) -> Outcome:
        return TrainingLoop(sessions[group.rank], group, Line(), kept[group.rank]).run()

    together(tmp_path, 2, work)
    assert kept[0].written == [(2, False), (5, False)] and kept[1].written == []


@pytest.mark.parametrize(("found", "written"), [(0, [(0, True)]), (1, [])])
def test_before_the_state_is_kept_apart_there_is_a_snapshot(
    tmp_path: Path, found: int, written: list[tuple[int, bool]]
) -> None:
    kept = [Kept(found=found), Kept(found=found)]
    sessions = [session(exact=False) for _ in range(2)]

    def work(group: Group) -> Outcome:
        plan = Plan(data=2, sync="parameter-server")
        return TrainingLoop(sessions[group.rank], group, Line(), kept[group.rank], plan).run()

    together(tmp_path, 2, work)
    assert kept[0].written == written and kept[1].written == []


def test_without_a_plan_that_keeps_apart_nothing_is_written_before(tmp_path: Path) -> None:
    kept = Kept()
    alone(tmp_path, session(), Line(), kept)
    assert kept.written == []


def test_a_rerun_follows_the_shares_of_the_first_time_and_writes_down_its_own(tmp_path: Path) -> None:
    sessions = [session(), session()]
    course = RunSchedule(
        [(0, 2, "replicas", (0.75, 0.25)), (4, 2, "replicas", (0.25, 0.75)), (6, 3, "replicas", (1.0,) * 3)]
    )
    for each in sessions:
        each.replayed_schedule = course

    def work(group: Group) -> Any:
        loop = TrainingLoop(sessions[group.rank], group, Line(), Kept())
        loop.run()
        return loop.shares

    shares = together(tmp_path, 2, work)
    assert shares == [(0.25, 0.75)] * 2
    for each in sessions:
        assert each.run_schedule.entries == [(0, 2, "replicas", (0.75, 0.25)), (4, 2, "replicas", (0.25, 0.75))]


def test_a_resumed_generation_keeps_the_shares_that_it_had(tmp_path: Path) -> None:
    sessions = [session(), session()]

    def work(group: Group) -> Any:
        return TrainingLoop(sessions[group.rank], group, Line(), Kept(), None, (0.9, 0.1)).shares

    assert together(tmp_path, 2, work) == [(0.9, 0.1)] * 2


@pytest.mark.parametrize("lost", [True, False])
def test_an_error_is_told_with_its_step_and_a_lost_peer_leaves_the_model_plain(tmp_path: Path, lost: bool) -> None:
    own = session()
    error: Exception = PeerLost("gone") if lost else ValueError("odd")

    def work(group: Group) -> TrainingLoop:
        loop = TrainingLoop(own, group, Line(), Kept())
        plain, abandoned = loop._engine.step, list[int]()
        loop._engine.abandon = lambda: abandoned.append(1)  # type: ignore[method-assign]

        def step(number: int, *rest: Any) -> Any:
            if number == 4:
                raise error
            return plain(number, *rest)

        loop._engine.step = step  # type: ignore[method-assign]
        with pytest.raises(type(error)):
            loop.run()
        assert abandoned == ([1] if lost else [])
        return loop

    together(tmp_path, 1, work)
    assert getattr(error, "__notes__", []) == ([] if lost else ["rank 0, step 5"]) and own.step == 4


def test_the_best_model_is_kept_while_it_is_the_best(tmp_path: Path) -> None:
    own = session(eval_data=(X, Y), keep_best=True, epochs=2)
    alone(tmp_path, own, Line(), Kept())
    assert set(own.early_stopping.model) == {"weight", "bias"} and own.early_stopping.best_step in (3, 6)
    assert own.history.has_metrics(3) and own.history.has_metrics(6)


# ---------------------------------------------------------------- what is told


class Told:
    def __init__(self) -> None:
        self.sent: list[wire.Progress] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


def reporter(monkeypatch: pytest.MonkeyPatch, now: list[float], rank: int = 0, balance: Any = None) -> Any:
    monkeypatch.setattr(reporting.time, "monotonic", lambda: now[0])
    course: Any = SimpleNamespace(history=History(3), step=0, total_steps=9, steps_per_epoch=3, evaluation_due=False)
    told = Told()
    group: Any = SimpleNamespace(careful_from=None, rank=rank, size=2, generation=4)
    return Reporter(told, course, group, balance), course, told.sent


def test_speed_is_that_since_the_last_word_and_each_step_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    made, course, sent = reporter(monkeypatch, now)
    for step in range(1, 10):
        course.step = step
        course.history.add(now[0], 1.0 / step)
        now[0] += INTERVAL_S * 0.51
        made.record_step(8)
    made.flush()
    made.flush()
    assert [row["step"] for message in sent for row in message.steps] == list(range(1, 10))
    assert [message.step for message in sent] == [1, 3, 5, 7, 9]
    assert all(message.generation == 4 and message.total_steps == 9 for message in sent)
    assert [message.epoch for message in sent] == [0, 0, 1, 2, 2]
    assert all(message.step_s == pytest.approx(INTERVAL_S * 0.51) for message in sent)
    assert all(message.samples_per_s == pytest.approx(8 / (INTERVAL_S * 0.51)) for message in sent)
    now[0] += INTERVAL_S
    made.report_if_due()
    assert sent[-1].steps == [] and sent[-1].step_s == pytest.approx(INTERVAL_S * 0.51), "a sign of life tells the last"
    now[0] += INTERVAL_S * 0.99
    before = len(sent)
    made.report_if_due()
    assert len(sent) == before


def test_only_rank_0_tells_steps_and_the_last_of_an_epoch_comes_with_its_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    made, course, sent = reporter(monkeypatch, now)
    other, its_course, its = reporter(monkeypatch, now, rank=1)
    for each in (course, its_course):
        each.step = 3
        for step in range(3):
            each.history.add(100.0 + step, 1.0)
        each.evaluation_due = True
    now[0] += 0.1
    for each in (made, other):
        each.record_step(8)
        each.flush()
    assert [row["step"] for message in sent for row in message.steps] == [1, 2]
    course.history.record_metrics(3, {"eval_loss": 0.5})
    course.evaluation_due = False
    now[0] += INTERVAL_S
    made.report_if_due()
    assert sent[-1].steps[-1]["step"] == 3 and sent[-1].steps[-1]["eval_loss"] == 0.5
    assert len(its) == 1 and its[0].steps == [] and its[0].step == 3


def test_how_the_work_lies_is_told_as_soon_as_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    balance: Any = SimpleNamespace(last=None, slow_s=(0.0, 7.0), share=lambda rank: (0.75, 0.25)[rank])
    now = [100.0]
    made, course, sent = reporter(monkeypatch, now, rank=1, balance=balance)
    course.step, now[0] = 1, 100.1
    made.record_step(8)
    assert (sent[-1].compute_s, sent[-1].share) == (wire.Progress(4, 1, 9).compute_s, wire.Progress(4, 1, 9).share)
    balance.last = SimpleNamespace(compute_s=(1.0, 2.0), spread=0.5, stragglers=(1,))
    made._last_s = 0.0
    made.report_if_due()
    last = sent[-1]
    assert (last.compute_s, last.spread, last.share, last.straggler, last.slow_s) == (2.0, 0.5, 0.25, True, 7.0)


def test_a_new_rank_0_tells_again_what_the_former_one_may_have_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting.time, "monotonic", lambda: 100.0)
    history = History(3)
    for step in range(9):
        history.add(10.0 * step, 1.0)
    course: Any = SimpleNamespace(history=history, step=9, total_steps=9, steps_per_epoch=3, evaluation_due=False)
    told = Told()
    Reporter(told, course, SimpleNamespace(careful_from=None, rank=0, size=2, generation=4)).flush()  # type: ignore[arg-type]
    assert [row["step"] for message in told.sent for row in message.steps] == list(range(history.repeat_from() + 1, 10))
    assert 0 < history.repeat_from() < 8


@pytest.mark.parametrize(
    ("rank", "end", "reads"), [(0, LoopEnd.FINISHED, 1), (1, LoopEnd.FINISHED, 0), (0, LoopEnd.LEFT, 0)]
)
def test_of_a_model_in_parts_only_who_writes_the_result_reads_the_weights(rank: int, end: LoopEnd, reads: int) -> None:
    done: list[Any] = []
    loop = object.__new__(TrainingLoop)
    loop._in_parts, loop._write_sharded = True, lambda: {"parts": "there"}  # type: ignore[method-assign]
    loop._group = SimpleNamespace(rank=rank)  # type: ignore[assignment]
    loop._engine = SimpleNamespace(abandon=lambda: done.append("abandon"), end=lambda: done.append("end"))  # type: ignore[assignment]
    loop._session = SimpleNamespace(load_state=done.append, load_shards=lambda **how: done.append(how))  # type: ignore[assignment]
    loop._return_model(Outcome(end))
    assert done == ["abandon", {"parts": "there"}, *[{"weights_only": True}] * reads]
    done.clear()
    loop._in_parts = False
    loop._return_model(Outcome(end))
    assert done == ["end"]
