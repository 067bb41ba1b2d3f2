"""Parameter servers: pieces at everybody's own pace, within a bound, and nothing lost or counted twice."""

from __future__ import annotations

import json
import random
import re
import signal
from statistics import mean
from types import SimpleNamespace
from typing import Any, cast

import pytest
import sklearn.datasets  # noqa: F401 (before the workers are forked, so that each need not load it)
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import fairlead
from fairlead import wire
from fairlead.errors import TrainingFailed
from fairlead.planning.plan import Plan
from fairlead.training.group import Group, PeerLost
from fairlead.training.servers import client, engine
from fairlead.training.servers.clocks import Clocks, Turn
from fairlead.training.servers.engine import ParameterServers
from fairlead.training.servers.messages import AskFailure, Fail, Take
from fairlead.training.servers.shard import assign_parameters
from fairlead.training.session import Session
from tests.training.conftest import MakeGang
from tests.training.gang import Gang
from tests.training.programs import ATTENTION, SMALL
from tests.training.test_exactness import train
from tests.training.test_synchronising import run

INEXACT = SMALL.replace("seed=3)", "seed=3, exact=False, precision='float32')").replace("clip_grad_norm=1.0,", "")


def servers(count: int, staleness: int) -> Plan:
    return Plan(data=count, sync="parameter-server", staleness=staleness)


# ---------------------------------------------------------------- the clocks


@given(
    ranks=st.integers(1, 5), staleness=st.integers(0, 4), steps=st.integers(1, 12), seed=st.integers(0, 1000),
    slow=st.integers(0, 4),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_every_piece_is_computed_once_and_nobody_runs_ahead_of_the_bound(
    ranks: int, staleness: int, steps: int, seed: int, slow: int
) -> None:
    clocks, drawn = Clocks(ranks, staleness, 10), random.Random(seed)
    at, holds = [10] * ranks, dict[int, int]()
    pieces: list[tuple[int, int]] = []
    while min(at) < 10 + steps:
        rank = drawn.choice([r for r in range(ranks) if at[r] < 10 + steps])
        if rank == slow and drawn.random() < 0.8:
            continue
        if rank in holds:
            clocks.finish_piece(rank, holds.pop(rank), 1.0 / ranks, 1.0 / ranks, 0.1)
            continue
        turn = clocks.take(rank, at[rank], leaving=False)
        if turn.wait:
            oldest = min(holds.values())
            assert at[rank] - oldest > staleness
        elif turn.piece is None:
            assert not clocks.close(at[rank]).leave
            at[rank] += 1
        else:
            pieces.append((at[rank], turn.piece))
            holds[rank] = at[rank]
            assert at[rank] - min(holds.values()) <= staleness
    for rank in list(holds):
        clocks.finish_piece(rank, holds.pop(rank), 1.0 / ranks, 1.0 / ranks, 0.1)
    assert sorted(pieces) == [(step, piece) for step in range(10, 10 + steps) for piece in range(ranks)]
    assert clocks.complete == 10 + steps
    assert list(clocks.losses(10)) == pytest.approx([1.0] * steps)


def test_all_leave_after_the_furthest_step_that_anybody_has_begun() -> None:
    clocks = Clocks(2, 3, 0)
    for step in range(2):  # rank 0 passes through two steps, rank 1 holds a piece of the first
        for _ in range(2 if step else 1):
            assert clocks.take(0, step, leaving=False).piece is not None
            clocks.finish_piece(0, step, 0.5, 0.5, 0.1)
        if step == 0:
            assert clocks.take(1, 0, leaving=False).piece is not None
        assert not clocks.close(step).leave
    assert clocks.take(0, 2, leaving=True).piece is not None
    clocks.finish_piece(1, 0, 0.5, 0.5, 0.1)
    assert clocks.take(1, 0, leaving=True).piece is None
    assert [clocks.close(step).leave for step in (0, 1, 2)] == [False, False, True]


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=40), st.integers(1, 6))
def test_parameters_are_dealt_whole_once_and_evenly(sizes: list[int], count: int) -> None:
    held = assign_parameters(sizes, count)
    assert sorted(place for places in held for place in places) == list(range(len(sizes)))
    loads = [sum(sizes[place] for place in places) for places in held]
    assert max(loads) - min(loads) <= max(sizes)


# ---------------------------------------------------------------- one rank by itself


class Noted:
    """Servers that only note what is asked of them, and when."""

    def __init__(self, session: Session, group: object, clocks: Clocks) -> None:
        self.session, self.asked = session, list[str]()
        self.pushed: list[torch.Tensor] = []

    def pull(self) -> None:
        self.asked.append("pull")

    def push(self, *, pull: bool) -> None:
        self.asked.append("push and pull" if pull else "push")
        grads = [p.grad for p in self.session.model.parameters()]
        self.pushed.append(torch.cat([grad.flatten().clone() for grad in grads if grad is not None]))


def rank_of_two(monkeypatch: pytest.MonkeyPatch, staleness: int, clip: float | None = None) -> ParameterServers:
    monkeypatch.setattr(engine, "Servers", Noted)
    torch.manual_seed(3)
    x = torch.randn(24, 5, dtype=torch.float64)
    training = fairlead.Training(
        model=torch.nn.Linear(5, 3).double(), data=(x, x[:, :3] * 4), loss=torch.nn.MSELoss(), batch_size=8, epochs=1,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1), clip_grad_norm=clip, exact=False, precision="float32",
    )  # fmt: skip
    group = SimpleNamespace(
        size=2, rank=0, shares=(1.0, 1.0), silence_s=30.0, device=torch.device("cpu"), waited_s=0.0,
        gather=lambda mine: torch.stack([mine, mine]),
    )  # fmt: skip
    return ParameterServers(Session(training, 0), cast(Group, group), servers(2, staleness))


@pytest.mark.parametrize(
    ("staleness", "complete", "pulls"),
    [
        (0, [0, 1, 2], [0, 1, 2]),
        (1, [0, 0, 1, 2, 3], [2, 3, 4]),  # what came with the last push lacks a step that the next one must hold
        (1, [0, 1, 2, 3], []),
        (2, [0, 0, 0, 1, 4, 4, 4, 5], [3, 4, 7]),
    ],
)
def test_parameters_are_fetched_anew_exactly_when_those_at_hand_are_too_old(
    staleness: int, complete: list[int], pulls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, index = rank_of_two(monkeypatch, staleness), torch.arange(8)
    noted = cast(Noted, rank._servers)
    fetched = []
    for step, before in enumerate(complete):
        noted.asked.clear()
        rank._compute(step, Turn(piece=0, complete=before), index)
        fetched += [step] if noted.asked[0] == "pull" else []
        assert noted.asked[-1] == ("push and pull" if staleness else "push")
    assert fetched == pulls


def test_a_clipped_piece_weighs_what_one_process_would_have_clipped_times_its_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if the gradient of the piece were that of the whole batch."""
    free, clipped = (rank_of_two(monkeypatch, 0, clip) for clip in (None, 0.25))
    index = torch.arange(7)  # pieces of four and three
    for piece, samples in ((0, 4), (1, 3)):
        for rank in (free, clipped):
            rank._compute(0, Turn(piece=piece), index)
        part, whole, given = samples / 7, *(cast(Noted, rank._servers).pushed[-1] for rank in (free, clipped))
        alone = whole / part  # the gradient that one process has for these samples
        assert alone.norm() > 0.25
        assert given == pytest.approx(alone * (0.25 / alone.norm()) * part, rel=1e-4)


class Asked:
    """The line to the keeper, which answers one word after the other."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers, self.said = answers, list[Any]()

    def send_request(self, rank: int, words: Any) -> None:
        self.said.append(words)

    def receive_answer(self, rank: int, kind: object, **more: object) -> Any:
        if len(self.said) < len(self.answers):
            raise PeerLost("nobody was asked")
        return self.answers.pop(0)


def test_who_loses_a_peer_asks_why_and_tells_the_loss_that_was_no_number() -> None:
    asked = Asked([Turn(), Fail(float("nan"), 7, 0)])
    asked.said.append(Take(7))  # and has not heard the answer
    rank = object.__new__(client.Servers)
    rank._rank, rank._size, rank._unread_answers, rank._lines = 1, 2, 1, cast(Any, asked)
    with pytest.raises(TrainingFailed, match="it is nan at step 8 on rank 0"):
        rank.raise_failure()
    assert asked.said[1:] == [AskFailure()] and not asked.answers


# ---------------------------------------------------------------- real workers

DIGITS = """
import os, time
import torch
from sklearn.datasets import load_digits
from torch import nn
import fairlead

class Slowed(nn.Module):
    def __init__(self, seconds): super().__init__(); self.seconds = seconds * float(os.environ.get("SLOWNESS", "1"))
    def forward(self, x):
        if self.training and torch.is_grad_enabled(): time.sleep(self.seconds)
        return x

def training(slow: float = 0.0, epochs: int = 4):
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
    model = lambda: nn.Sequential(Slowed(slow), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    accuracy = lambda outputs, targets: (outputs.argmax(1) == targets).float().mean()
    return fairlead.Training(model=model, data=(x[:1440], y[:1440]), eval_data=(x[1440:], y[1440:]),
        loss=nn.CrossEntropyLoss(), optimizer=lambda p: torch.optim.AdamW(p, lr=5e-3), batch_size=60, epochs=epochs,
        metrics={"accuracy": accuracy}, exact=False, precision="float32")
"""


def history(gang: Gang) -> list[float]:
    rows = (gang.root / "output" / "history.jsonl").read_text().splitlines()
    return [json.loads(row)["loss"] for row in rows]


def accuracy(gang: Gang) -> float:
    return gang.workers["w0"].last(wire.Finished).metrics["accuracy"]


@pytest.mark.parametrize(
    ("code", "params"),
    [(INEXACT, {"layers": "dropout"}), (INEXACT, {"layers": "both", "samples": 48}), (ATTENTION, {})],
)
def test_without_staleness_it_is_what_one_process_does(make_gang: MakeGang, code: str, params: dict[str, Any]) -> None:
    code = code.replace("batch_size=8,", "batch_size=8, exact=False,")
    one, three = train(make_gang(code, params), 1), run(make_gang(code, params), servers(3, 0))
    assert history(three) == pytest.approx(history(one), abs=1e-9)  # while it runs only the pieces done so far count
    models = [load_file(gang.root / "output" / "model.safetensors") for gang in (one, three)]
    for name, tensor in models[0].items():
        assert (tensor - models[1][name]).abs().max() <= 1e-9, name


def test_a_straggler_neither_blocks_the_others_nor_spoils_the_result_on_real_data(
    make_gang: MakeGang, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = train(make_gang(DIGITS, {"epochs": 3}), 1)
    gang = make_gang(DIGITS, {"slow": 0.03, "epochs": 3})
    for name, slowness in (("w0", "1"), ("w1", "1"), ("w2", "3")):
        monkeypatch.setenv("SLOWNESS", slowness)
        gang.start(name)
    gang.ready("w0", "w1", "w2")
    gang.join("w0", "w1", "w2", plan=servers(3, 2))
    gang.finish()
    shares = [worker.last(wire.Progress).share for worker in gang.workers.values()]
    assert shares[2] < 0.3 < min(shares[:2])  # had the others waited for it, each would have a third
    assert any(progress.straggler for progress in gang.workers["w2"].heard(wire.Progress))
    assert accuracy(gang) > accuracy(alone) - 0.03 and accuracy(alone) > 0.85
    assert "this rank took" in gang.log("w2")


def test_stale_steps_with_batch_norm_and_schedules_learn_what_one_process_learns(make_gang: MakeGang) -> None:
    params = {"layers": "both", "epochs": 12, "samples": 48}
    exact, other = train(make_gang(INEXACT, params), 1), run(make_gang(INEXACT, params), servers(2, 2))
    losses = [gang.workers["w0"].last(wire.Finished).metrics["eval_loss"] for gang in (exact, other)]
    assert losses[1] < 0.7 * exact.curve()[1] and losses[1] == pytest.approx(losses[0], rel=0.15)
    curves = [[mean(history(gang)[at : at + 16]) for at in (0, 16, 32)] for gang in (exact, other)]
    assert curves[1] == pytest.approx(curves[0], rel=0.2), "on the way too"
    models = [load_file(gang.root / "output" / "model.safetensors") for gang in (exact, other)]
    apart = max((tensor - models[1][name]).abs().max() for name, tensor in models[0].items() if "tracked" not in name)
    assert apart < 0.3, "as many steps, as long ones"


def test_it_grows_and_goes_on_as_replicas_without_losing_a_step(make_gang: MakeGang) -> None:
    gang = make_gang(DIGITS, {"slow": 0.01, "epochs": 3})
    gang.start("w0", "w1", "w2")
    gang.ready("w0", "w1", "w2")
    gang.join("w0", "w1", plan=servers(2, 2))
    gang.reach(5)
    gang.leave()
    gang.join("w0", "w1", "w2", plan=servers(3, 2))
    gang.reach(40)
    gang.leave()
    gang.join("w2", "w0")
    gang.finish()
    assert list(gang.curve()) == list(range(1, 73)) and len(history(gang)) == 72
    assert accuracy(gang) > 0.8


def test_a_dead_worker_ends_the_generation_and_the_servers_come_back_from_the_snapshot(make_gang: MakeGang) -> None:
    gang = make_gang(DIGITS, {"slow": 0.06, "epochs": 30})  # longer than anybody waits: it is called off
    gang.start("w0", "w1", "w2")
    gang.ready("w0", "w1", "w2")
    gang.join("w0", "w1", "w2", plan=servers(3, 2))
    gang.until(lambda: any(s.step > 5 for s in gang.workers["w0"].heard(wire.Snapshot)), "a snapshot on the way")
    step = gang.workers["w0"].last(wire.Snapshot).step
    gang.kill("w2")
    gang.until(lambda: all(gang.said(name, wire.Broken) for name in ("w0", "w1")), "the others noticed")
    gang.join("w0", "w1", plan=servers(2, 2))
    assert gang.workers["w1"].last(wire.Joined).step >= step > 5
    gang.reach(gang.step() + 10)  # further than anybody was when it broke, however late the snapshot was told of
    gang.leave(snapshot=True)
    losses = list(gang.curve().values())
    left = gang.workers["w0"].last(wire.Left).step
    assert len(losses) == left - (left % 24 == 0)  # an epoch's last step is told with its metrics
    assert losses[-1] < losses[0]


def test_a_silent_worker_is_not_waited_for_for_ever(make_gang: MakeGang) -> None:
    gang = make_gang(DIGITS, {"slow": 0.02})
    gang.start("w0", "w1")
    gang.ready("w0", "w1")
    gang.join("w0", "w1", plan=servers(2, 2), silence_s=2.0)
    gang.reach(3)
    gang.kill("w1", signal.SIGSTOP)
    gang.until(lambda: gang.said("w0", wire.Broken), "the other one gave up")
    gang.kill("w1", signal.SIGCONT)
    gang.join("w0")
    gang.until(lambda: gang.step() > 30, "it goes on")


def test_a_loss_that_is_no_number_ends_all_of_them_with_rank_and_step(make_gang: MakeGang) -> None:
    code = INEXACT.replace(
        "        return x\n",
        "        if self.training and torch.is_grad_enabled() and (x[:, 0] > 2.2).any(): return x * float('nan')\n"
        "        return x\n", 1,
    )  # fmt: skip
    gang = run(make_gang(code), servers(3, 2), wait=False)
    gang.until(lambda: all(w.code is not None for w in gang.workers.values()), "all ended")
    said = {w.last(wire.Raised).error for w in gang.workers.values()}
    assert len(said) == 1 and re.match(r"loss: it is nan at step \d+ on rank [012] ", said.pop())


def test_an_error_in_a_piece_is_told_with_rank_and_step_and_nobody_waits(make_gang: MakeGang) -> None:
    code = INEXACT.replace(
        "        return x\n",
        "        if self.training and torch.is_grad_enabled() and (x[:, 0] > 2.2).any(): raise KeyError('odd')\n"
        "        return x\n", 1,
    )  # fmt: skip
    gang = run(make_gang(code), servers(2, 2), wait=False)
    gang.until(lambda: any(w.heard(wire.Raised) for w in gang.workers.values()), "one raised")
    failed = next(w for w in gang.workers.values() if w.heard(wire.Raised))
    peer = next(w for w in gang.workers.values() if w is not failed)
    assert re.search(r"KeyError: 'odd' \(train.py:\d+\), rank [01], step \d+", failed.last(wire.Raised).error)
    gang.until(lambda: bool(peer.heard(wire.Broken) or peer.heard(wire.Raised)), "the other one noticed")


def test_pieces_are_handed_out_in_turn_and_nobody_runs_further_ahead_than_allowed() -> None:
    clocks = Clocks(2, staleness=1, first=5)
    assert [clocks.take(0, 5, leaving=False).piece, clocks.take(1, 5, leaving=False).piece] == [0, 1]
    assert clocks.take(0, 5, leaving=False) == Turn(finished=0, complete=5), "all of this step are taken"
    assert clocks.take(0, 6, leaving=False).piece == 0, "one step ahead"
    assert clocks.take(0, 7, leaving=False) == Turn(wait=True, finished=0, complete=5)
    clocks.finish_piece(0, 5, 1.0, 0.25, 0.1)
    assert clocks.close(5).loss == 4.0, "of what is known, by its part of the batch"
    assert (clocks.complete, clocks.finished) == (5, 1)
    clocks.finish_piece(1, 5, 2.0, 0.75, 0.3)
    assert (clocks.complete, clocks.losses(5), clocks.losses(6)) == (6, [3.0], [])
    assert clocks.take(0, 7, leaving=False).piece == 0 and clocks.take(1, 5, leaving=False).piece is None
    clocks.finish_piece(0, 6, 0.5, 0.5, 0.5)
    closed = clocks.close(6)
    assert (closed.loss, closed.compute_s, closed.pieces, closed.leave) == (1.0, (0.3, 0.3), (2, 1), False)
    assert clocks.close(7).loss == 1.0, "nothing is known of it yet"
    assert clocks.close(5).loss == 3.0


def test_all_leave_after_the_furthest_step_that_anybody_has_entered() -> None:
    clocks = Clocks(2, staleness=3, first=0)
    clocks.take(0, 0, leaving=False)
    assert not clocks.close(0).leave
    clocks.take(0, 1, leaving=True)
    assert not clocks.close(1).leave, "one alone does not leave"
    clocks.take(1, 0, leaving=True)
    assert not clocks.close(1).leave and clocks.close(2).leave and clocks.close(3).leave
