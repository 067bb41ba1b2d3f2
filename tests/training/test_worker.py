"""A worker: the messages it follows between generations, how it begins, leaves and finishes one."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

import fairlead
from fairlead import wire
from fairlead.errors import InvalidSpec, TrainingFailed, Unavailable
from fairlead.local_wire import PlacedSpec
from fairlead.planning.plan import Plan
from fairlead.training import plan_measurement, worker
from fairlead.training.custom_loop.session import CustomSession
from fairlead.training.grid_dataset import granted_dataset
from fairlead.training.group import PeerLost
from fairlead.training.loop import LoopEnd, Outcome
from fairlead.training.plan_measurement import WorkerPlace, _read, place_from
from fairlead.training.run_schedule import RunSchedule
from fairlead.training.session import Session
from fairlead.training.worker import (
    TrainingWorker,
    _LeftGeneration,
    _lets_ranks_exit,
    _report_error,
    spec_from_environment,
)


class Line:
    """Words that wait, and what was said."""

    def __init__(self, *waiting: Any) -> None:
        self.waiting, self.sent, self.paused = list(waiting), list[Any](), list[float | None]()

    def take(self, timeout_s: float | None = None) -> Any:
        self.paused.append(timeout_s)
        return self.waiting.pop(0) if self.waiting else None

    def put_back(self, message: Any) -> None:
        self.waiting.insert(0, message)

    def peek(self) -> list[Any]:
        return list(self.waiting)

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Resumption:
    """The decision of the ranks, as it is told."""

    def __init__(self, *, resumes: bool = False, goes: bool = True, over: bool = False) -> None:
        self.decided_to_leave, self.pause_s, self._resumes, self._goes, self.asked = over, 0.5, resumes, goes, 0

    def should_resume(self) -> bool:
        return self._resumes

    def decide_to_leave(self) -> bool:
        self.asked += 1
        return self._goes


class Snapshots:
    def __init__(self) -> None:
        self.written: list[tuple[int, bool]] = []
        self.finished = 0
        self.waits_s: list[float] = []

    def write(self, step: int, state: Any, *, wait: bool = False) -> None:
        self.written.append((step, wait))

    def wait(self) -> None:
        self.finished += 1

    def find(self) -> list[Any]:
        return []


def life(*waiting: Any, former: Any = None, generation: int = 3, resumed: bool = False, **session: Any) -> Any:
    made = object.__new__(TrainingWorker)
    made._line, made._snapshots, made._worker = Line(*waiting), Snapshots(), "w1"  # type: ignore[assignment]
    made._generation, made._resumed, made._left_generation = generation, resumed, former
    made._session = SimpleNamespace(**({"step": 7, "live": True, "full_state": dict} | session))  # type: ignore[assignment]
    return made


def left(resumption: Resumption, *, ends: bool = False) -> _LeftGeneration:
    return _LeftGeneration(join(3), SimpleNamespace(), (0.5, 0.5), resumption, ends)  # type: ignore[arg-type]


def join(generation: int, breaks: int = 0, workers: tuple[str, ...] = ("w0", "w1")) -> wire.Join:
    ranks = {name: rank for rank, name in enumerate(workers)}
    return wire.Join(generation, ranks, breaks=breaks)


def leave(generation: int, *, snapshot: bool = False, exits: tuple[str, ...] = ()) -> wire.Leave:
    return wire.Leave(generation, snapshot, list(exits))


# ---------------------------------------------------------------- while ranks may still resume what they left


@pytest.mark.parametrize(
    ("message", "goes", "follows", "asked", "kept"),
    [
        (join(4), True, True, 1, False), (join(4), False, False, 1, False), (join(4, breaks=3), False, True, 1, False),
        (join(4, breaks=2), False, False, 1, False), (join(3), False, True, 0, False), (join(2), False, True, 0, False),
        (leave(4), True, True, 1, False), (leave(4), False, False, 1, True), (leave(3), False, True, 0, False),
        (leave(3, snapshot=True), False, False, 1, True), (leave(3, exits=("w0",)), True, True, 1, False),
        (leave(2, exits=("w0",)), False, False, 1, True), (wire.Quit(), True, True, 1, False),
        (wire.Quit(), False, False, 1, True),
    ],
)  # fmt: skip
def test_a_call_is_followed_unless_the_ranks_have_decided_to_resume(
    message: Any, goes: bool, follows: bool, asked: int, kept: bool
) -> None:
    resumption = Resumption(goes=goes)
    former = left(resumption)
    made = life(former=former)
    assert made._accept(message, former) is follows and resumption.asked == asked
    assert made._line.waiting == ([message] if kept else []), "what is not followed now is heard again afterwards"
    assert (made._left_generation is None) is (follows and asked > 0)


def test_who_left_waits_no_longer_than_its_patience_and_then_takes_part_again() -> None:
    made = life(former=left(Resumption(resumes=True)))
    assert made._next_message() is None and made._left_generation is not None and made._line.paused == []
    called = life(join(4), former=left(Resumption()))
    assert called._next_message() == join(4) and called._line.paused == [0.5] and called._left_generation is None
    refused = life(join(4), former=left(Resumption(goes=False)))
    assert refused._next_message() is None and refused._left_generation is not None
    over = life(join(4), former=left(Resumption(over=True)))
    assert over._next_message() == join(4) and over._left_generation is None and over._line.paused == [None]
    ends = life(join(4), former=left(Resumption(over=True), ends=True))
    assert ends._next_message() == wire.Quit() and ends._line.waiting == [join(4)]
    plain = life(leave(3))
    assert plain._next_message() == leave(3)


def test_a_resumed_generation_is_told_and_joined_with_what_it_had(capsys: pytest.CaptureFixture[str]) -> None:
    former = left(Resumption(resumes=True))
    made, seen = life(former=former), list[Any]()
    made._run_generation = lambda *words: seen.append(words) or True
    assert made._resume() is True and seen == [(former.join, former)] and made._left_generation is None
    assert made._line.sent == [wire.Joined(3, 7, resumed=True)]
    assert "generation 3: no call in time; resumed after step 7" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("waiting", "resumed", "why"),
    [
        ([], False, None), ([wire.Quit()], False, "told to quit"), ([join(4)], False, "generation 4 was called"),
        ([join(3)], False, None), ([join(4)], True, None), ([join(4, breaks=3)], True, "generation 4 was called"),
        ([leave(3), join(4), wire.Quit()], False, "generation 4 was called"), ([leave(4)], False, None),
    ],
)  # fmt: skip
def test_who_waits_for_its_peers_sees_that_the_control_plane_has_moved_on(
    waiting: list[Any], resumed: bool, why: str | None
) -> None:
    made = life(*waiting, resumed=resumed)
    assert made._why_abandoned() == why and made._line.waiting == waiting


# ---------------------------------------------------------------- life


def test_words_are_followed_in_their_order_and_old_ones_are_not() -> None:
    done: list[Any] = []
    made = life(join(3), leave(2), join(4), leave(4), join(4), leave(5), wire.Quit(), join(9), generation=3)
    made._ready_message = lambda: wire.Ready()

    def take_part(call: wire.Join) -> bool:
        made._generation = call.generation
        done.append(call)
        return False

    def leave_alone(call: wire.Leave) -> bool:
        done.append(call)
        return False

    made._run_generation, made._leave_without_peers = take_part, leave_alone
    assert made.run() == 0 and done == [join(4), leave(4), leave(5)]
    assert made._line.sent == [wire.Ready()] and made._line.waiting == [join(9)]
    for last in (join(4), leave(3)):
        ending = life(last, join(5))
        ending._ready_message, ending._run_generation, ending._leave_without_peers = (
            wire.Ready,
            lambda _: True,
            lambda _: True,
        )
        assert ending.run() == 0 and ending._line.waiting == [join(5)]
    resumes = life(former=left(Resumption(resumes=True)))
    resumes._ready_message, resumes._resume = wire.Ready, lambda: True
    assert resumes.run() == 0


def test_who_is_not_in_a_generation_is_behind_from_there_on() -> None:
    made = life()
    assert made._run_generation(join(4, workers=("w0",))) is False
    assert made._generation == 4 and made._session.live is False and made._resumed is False


@pytest.mark.parametrize(
    ("said", "live", "goes", "written"),
    [
        (leave(5), True, False, []), (leave(5, exits=("w1",)), True, True, []),
        (leave(5, exits=("w0",)), True, False, []),
        (leave(5, snapshot=True), True, True, [(7, True)]), (leave(5, snapshot=True), False, True, []),
    ],
)  # fmt: skip
def test_who_leaves_alone_writes_what_it_holds_if_it_is_asked_to(
    said: wire.Leave, live: bool, goes: bool, written: list[tuple[int, bool]]
) -> None:
    made = life(live=live)
    assert made._leave_without_peers(said) is goes and made._generation == 5
    assert made._snapshots.written == written and made._snapshots.finished == 1
    assert made._line.sent == [wire.Left(5, 7, said.snapshot)]


def test_after_a_loss_a_worker_is_sound_says_so_and_keeps_what_it_was_told() -> None:
    done: list[str] = []
    group = SimpleNamespace(abort=lambda: done.append("abort"))
    loop = SimpleNamespace(reporter=SimpleNamespace(flush=lambda: done.append("flush")), leave=leave(3))
    made = life(join(4), roll_back_step=lambda: done.append("undo"))
    made._report_broken(group, loop, "gone")
    assert done == ["abort", "undo", "flush"] and made._line.waiting == [leave(3), join(4)]
    assert made._line.sent == [wire.Broken(3, 7, "gone")]
    early = life()
    early._report_broken(None, None, "nobody came")
    assert early._line.sent == [wire.Broken(3, 7, "nobody came")]


def group(rank: int = 0, size: int = 2) -> Any:
    said: list[str] = []
    return SimpleNamespace(
        rank=rank, size=size, generation=3, resumed=1, said=said, close=lambda: said.append("close"),
        abort=lambda: said.append("abort"), broadcast=lambda data, source: said.append("broadcast"),
        store=lambda purpose: None,
    )  # fmt: skip


def a_loop() -> Any:
    return SimpleNamespace(reporter=SimpleNamespace(flush=lambda: None), shares=(0.7, 0.3))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("snapshot", "exits", "over"), [(False, (), False), (False, ("w1",), False), (True, (), True)])
def test_who_leaves_in_order_may_resume_unless_a_snapshot_was_asked_for(
    rank: int, snapshot: bool, exits: tuple[str, ...], over: bool
) -> None:
    made, ranks = life(unread_shards=None), group(rank)
    said = leave(3, snapshot=snapshot, exits=exits)
    assert made._end_generation(join(3), ranks, a_loop(), Outcome(LoopEnd.LEFT, said)) is over
    assert made._snapshots.written == ([(7, True)] if snapshot and rank == 0 else [])
    assert ranks.said == ["close"] and made._line.sent == [wire.Left(3, 7, snapshot)]
    if snapshot:
        assert made._left_generation is None
    else:
        assert (
            made._left_generation.shares == (0.7, 0.3)
            and made._left_generation.ends is bool(exits)
            and made._left_generation.group is ranks
        )


@pytest.mark.parametrize(("rank", "pending", "live", "written"), [
    (0, None, True, [(7, True)]), (1, None, True, []), (0, Path("parts"), True, []), (0, None, False, []),
])  # fmt: skip
def test_rank_0_writes_the_snapshot_that_was_asked_for_unless_all_have(
    rank: int, pending: Path | None, live: bool, written: list[Any]
) -> None:
    made = life()
    made._session = object.__new__(Session)
    made._session.step, made._session.live, made._session.unread_shards = 7, live, pending
    made._session.full_state = dict  # type: ignore[method-assign]
    made._end_generation(join(3), group(rank), a_loop(), Outcome(LoopEnd.LEFT, leave(3, snapshot=True)))
    assert made._snapshots.written == written


def test_what_snapshots_cost_is_told_when_there_were_any() -> None:
    made = life()
    assert made._snapshot_waits() == ""
    made._snapshots.waits_s = [0.001, 0.003, 0.5]
    assert made._snapshot_waits() == "; steps waited 3.0 ms for each of 3 snapshots (median)"
    made._report_snapshot(5, "disk", 7, 0.5, 0.25)
    assert made._line.sent == [wire.Snapshot(3, 5, "disk", 7, 0.5, 0.25)]


def test_a_peer_that_is_lost_after_the_result_was_written_is_not_missed() -> None:
    ranks = group()

    def close() -> None:
        raise PeerLost("gone")

    ranks.close = close
    life()._close_finished(ranks)
    assert ranks.said == ["abort"]


@pytest.mark.parametrize("rank", [0, 1])
def test_only_rank_0_writes_the_result_and_all_report_it_once_it_is_written(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[Any] = []

    def noted(what: str, answer: Any) -> Any:
        return lambda *_: order.append(what) or answer

    monkeypatch.setattr(worker, "write_result", noted("write", ["model.safetensors"]))
    monkeypatch.setattr(worker, "lineage", noted("lineage", {"seed": 1}))
    monkeypatch.setattr(worker, "final_metrics", lambda _: {"loss": 0.5})
    made, ranks = life(), group(rank)
    made._folder, made._store = Path("job"), noted("store", {"at": "grid"})
    ranks.broadcast = lambda data, source: order.append((data, source))
    ranks.close = noted("close", None)
    loop = SimpleNamespace(reporter=SimpleNamespace(flush=noted("flush", None)), shares=())
    assert made._end_generation(join(3), ranks, loop, Outcome(LoopEnd.FINISHED)) is True
    mine = rank == 0
    assert order == ["write", "store", "lineage"] * mine + ["flush", (b"written", 0), "close"]
    assert made._snapshots.finished == 1 and made._left_generation is None
    artifacts, value, came_from = (["model.safetensors"], {"at": "grid"}, {"seed": 1}) if mine else ([], {}, {})
    assert made._line.sent == [wire.Finished(3, 7, {"loss": 0.5}, artifacts, value=value, lineage=came_from, made={})]


def a_training(**more: Any) -> fairlead.Training:
    return fairlead.Training(
        model=lambda: torch.nn.Linear(3, 2), loss=torch.nn.MSELoss(), data=(torch.ones(10, 3), torch.ones(10, 2)),
        batch_size=4, epochs=3, **more,
    )  # fmt: skip


@pytest.mark.parametrize(("looks", "profiles"), [("w1", True), ("w0", False), (None, False)])
def test_ready_says_what_is_trained_and_only_the_chosen_worker_profiles_it(looks: str | None, profiles: bool) -> None:
    made, asked = life(), list[Any]()
    made._session, made._spec = Session(a_training(), 0), SimpleNamespace(looks=looks)
    made._profile = lambda *what: asked.append(what) or wire.Glance(0.1, 0.2, 0.3)
    made._snapshots.find = lambda: [SimpleNamespace(step=9), SimpleNamespace(step=4)]
    assert made._ready_message() == wire.Ready(
        samples=10, epochs=3, batch_size=4, parameters=8, resumable_step=9, plan="auto",
        glance=wire.Glance(0.1, 0.2, 0.3) if profiles else None,
    )  # fmt: skip
    assert asked == ([(made._spec, made._session, made._line)] if profiles else [])
    made._profile, made._snapshots.find = None, lambda: []
    found = made._ready_message()
    assert found.glance is None and found.resumable_step == 0


def test_a_custom_loop_says_its_batch_size_and_is_not_profiled() -> None:
    made = life()
    made._session, made._spec = (
        CustomSession(fairlead.Training(loop=print, batch_size=5), 0),
        SimpleNamespace(looks="w1"),
    )
    made._profile = None
    made._snapshots.find = lambda: [SimpleNamespace(step=2)]
    assert made._ready_message() == wire.Ready(batch_size=5, resumable_step=2)


def a_spec(place: Path, **more: Any) -> PlacedSpec:
    common: dict[str, Any] = {
        "job": "j", "tenant": "t", "uid": None, "run": "a.py:f", "command": None, "params": {}, "env": {}, "venv": None,
        "bundle": None, "folder": str(place), "memory_folder": str(place / "memory"), "cpu": 1.0,
    }  # fmt: skip
    return PlacedSpec(**(common | more))


def test_a_worker_begins_with_its_data_sets_its_seed_and_the_schedule_it_repeats(tmp_path: Path) -> None:
    spec = a_spec(tmp_path, seed=5, data={"bank": {"manifest": {}}}, course=[[0, 2, "replicas", [0.75, 0.25]]])
    granted = list[Any]()

    def load() -> fairlead.Training:
        granted.append(granted_dataset("bank"))
        return a_training()

    made = TrainingWorker(spec, "w0", Line(), load)  # type: ignore[arg-type]
    assert granted == [{"manifest": {}}], "the user's code may ask for them"
    assert isinstance(made._session, Session) and made._session.seed == Session(a_training(), 5).seed
    assert made._session.replayed_schedule == RunSchedule([(0, 2, "replicas", (0.75, 0.25))])
    plain = TrainingWorker(a_spec(tmp_path), "w0", Line(), a_training)  # type: ignore[arg-type]
    assert isinstance(plain._session, Session) and plain._session.replayed_schedule is None
    assert plain._session.seed != made._session.seed and granted_dataset("bank") is None
    custom = TrainingWorker(a_spec(tmp_path), "w0", Line(), lambda: fairlead.Training(loop=print))  # type: ignore[arg-type]
    assert isinstance(custom._session, CustomSession)


def test_a_plan_is_for_the_platforms_loop_and_a_custom_loop_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "TrainingLoop", lambda *what: ("platform", *what))
    monkeypatch.setattr(worker, "CustomLoop", lambda *what: ("custom", *what))
    made, ranks, plan = life(), group(), Plan(data=2, sync="allreduce")
    made._session = Session(a_training(), 0)
    call = wire.Join(4, {"w0": 0, "w1": 1}, plan=plan.to_plain())
    common = (ranks, made._line, made._snapshots)
    assert made._make_loop(ranks, call, (0.6, 0.4)) == ("platform", made._session, *common, plan, (0.6, 0.4))
    assert made._make_loop(ranks, join(4), ()) == ("platform", made._session, *common, None, ())
    made._session = CustomSession(fairlead.Training(loop=print), 0)
    assert made._make_loop(ranks, call, (0.6, 0.4)) == ("custom", made._session, *common)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_generation_is_joined_agreed_on_and_trained_in_the_shares_it_was_left_with(
    rank: int, resumed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, ranks, seen = life(), group(rank), list[Any]()
    former = left(Resumption(resumes=True)) if resumed else None
    monkeypatch.setattr(worker, "Group", lambda *what: seen.append(what) or ranks)
    monkeypatch.setattr(worker, "agree_on_state", lambda *_: SimpleNamespace(step=7, source="a living worker"))
    made._snapshots.begin_generation = lambda *, writes: seen.append(writes)
    loop = SimpleNamespace(run=lambda: "outcome")
    made._make_loop = lambda group, call, shares: seen.append(shares) or loop
    made._end_generation = lambda call, group, made_loop, outcome: (made_loop, outcome) == (loop, "outcome")
    call = join(4)
    assert made._run_generation(call, former) is True and made._resumed is resumed and made._generation == 4
    assert seen == [
        (call, "w1", made._why_abandoned, None if former is None else former.group), rank == 0,
        () if former is None else (0.5, 0.5),
    ]  # fmt: skip
    assert made._line.sent == ([] if resumed else [wire.Joined(3, 7)])


def test_a_generation_whose_ranks_do_not_meet_is_reported_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> None:
        raise PeerLost("not all of 2 ranks joined in time")

    monkeypatch.setattr(worker, "Group", lost)
    made = life()
    assert made._run_generation(join(4)) is False
    assert made._line.sent == [wire.Broken(4, 7, "not all of 2 ranks joined in time")]


@pytest.mark.parametrize(
    ("said", "some"),
    [(leave(3), False), (leave(3, snapshot=True), True), (leave(3, exits=("w0",)), True)],
)
def test_some_end_with_a_snapshot_or_when_they_are_named(said: wire.Leave, some: bool) -> None:
    assert _lets_ranks_exit(said) is some


@pytest.mark.parametrize(
    ("error", "permanent", "trace"),
    [
        (InvalidSpec("no", field="model"), True, False), (TrainingFailed("no", field="loss"), True, False),
        (Unavailable("the grid"), False, False), (SyntaxError("odd"), True, True), (ValueError("odd"), False, True),
        (SystemExit(3), False, True),
    ],
)  # fmt: skip
def test_an_error_is_told_with_whether_another_attempt_can_help(
    error: BaseException, permanent: bool, trace: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Line()
    monkeypatch.setattr(worker, "TrainingWorker", lambda *_: SimpleNamespace(run=lambda: raised(error)))
    monkeypatch.setattr(worker, "Channel", lambda _: said)
    assert worker.main(SimpleNamespace(), "w0", SimpleNamespace()) == 1  # type: ignore[arg-type]
    (told,) = said.sent
    assert isinstance(told, wire.Raised) and told.permanent is permanent and bool(told.trace) is trace
    error.missing = ["stage"]  # type: ignore[attr-defined]
    line = Line()
    assert _report_error(line, error, permanent=permanent) == 1 and line.sent[0].missing == ["stage"]  # type: ignore[arg-type]


def raised(error: BaseException) -> int:
    raise error


def test_a_worker_that_was_started_by_exec_finds_its_spec_and_its_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = PlacedSpec(
        job="j", tenant="t", uid=None, run="a.py:f", command=None, params={}, env={}, venv=None, bundle=None,
        folder=str(tmp_path), memory_folder=str(tmp_path), cpu=1.0,
    )  # fmt: skip
    here, there = socket.socketpair()
    monkeypatch.setenv("FAIRLEAD_CHANNEL_FD", str(there.detach()))
    monkeypatch.setenv("FAIRLEAD_WORKER", "w5")
    monkeypatch.setenv("FAIRLEAD_WORKER_SPEC", msgspec.json.encode(spec).decode())
    found, name, line = spec_from_environment()
    assert (found, name) == (spec, "w5")
    line.sendall(b"x")
    assert here.recv(1) == b"x"
    source, sink = os.pipe()
    os.write(sink, msgspec.json.encode(msgspec.structs.replace(spec, job="k")))
    os.close(sink)
    monkeypatch.setenv("FAIRLEAD_CHANNEL_FD", str(line.detach()))
    monkeypatch.setenv("FAIRLEAD_WORKER_SPEC_FD", str(source))
    found, _, line = spec_from_environment()
    assert found.job == "k" and "FAIRLEAD_WORKER_SPEC_FD" not in os.environ
    line.close()
    here.close()


# ---------------------------------------------------------------- a measurement's side


def test_a_place_is_read_as_it_was_written() -> None:
    assert place_from({}) == WorkerPlace()
    whole = {"namespace": "/run/n", "interface": "eth", "cgroups": ["a", "b"], "before": ["c"]}
    assert place_from(whole) == WorkerPlace("/run/n", "eth", ("a", "b"), ("c",))


def test_a_process_is_put_into_its_control_groups_and_told_its_interface(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "before")
    plan_measurement.enter_place(WorkerPlace(cgroups=(str(tmp_path / "a"), str(tmp_path / "b"))))
    assert os.environ["GLOO_SOCKET_IFNAME"] == "before"
    assert [(tmp_path / name / "cgroup.procs").read_text() for name in ("a", "b")] == [str(os.getpid())] * 2
    plan_measurement.enter_place(WorkerPlace(interface="eth7"))
    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"
    (tmp_path / "none").touch()
    with pytest.raises(OSError, match="network namespace"):
        plan_measurement.enter_place(WorkerPlace(namespace=str(tmp_path / "none")))
    assert plan_measurement.peak_memory()["peak_bytes"] > 1 << 20


def test_a_worker_of_a_measurement_that_said_nothing_is_told_by_how_it_ended(tmp_path: Path) -> None:
    assert _read(tmp_path / "no", 9) == {"error": "a worker ended with -9", "lost": True}
    assert _read(tmp_path / "no", 3 << 8) == {"error": "a worker ended with 3", "lost": False}
    (tmp_path / "yes").write_text(json.dumps({"error": "", "step_s": 1.0}))
    assert _read(tmp_path / "yes", 9) == {"error": "", "step_s": 1.0}
