"""Lines between ranks that serve each other, and the part of a model that one of them serves."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fairlead
from fairlead.training.group import Group, PeerLost
from fairlead.training.servers.clock_server import ClockServer
from fairlead.training.servers.clocks import Clocks, Closed, Turn
from fairlead.training.servers.connections import (
    CLOCK_RANK,
    CLOCKS,
    GONE,
    PROTOCOL_ERROR,
    PeerConnection,
    PeerConnections,
)
from fairlead.training.servers.messages import AskFailure, Done, Fail, Lost, Ok, Pull, Push, Settle, Settled, Take
from fairlead.training.servers.shard import Layout, Shard
from fairlead.training.session import Session
from tests.training.ranks import together


def patiently() -> None:
    return None


def pair() -> tuple[PeerConnection, PeerConnection, socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        mine = socket.create_connection(door.getsockname())
        yours, _ = door.accept()
    return PeerConnection(mine), PeerConnection(yours), mine, yours


@pytest.fixture
def lines() -> Any:
    made = pair()
    yield made
    made[0].close()
    made[1].close()


def test_words_come_with_just_the_bytes_that_were_sent(lines: Any) -> None:
    one, other, *_ = lines
    sent, room = torch.arange(300, dtype=torch.uint8) % 251, torch.zeros(300, dtype=torch.uint8)
    one.send(Push(True), sent, patiently)
    one.send(Pull(), None, patiently)
    assert other.receive(Push | Pull, room, patiently) == Push(True) and torch.equal(room, sent)
    assert other.receive(Push | Pull, room, patiently) == Pull() and torch.equal(room, sent), "and nothing else"


def test_more_than_a_socket_holds_arrives_in_its_order(lines: Any) -> None:
    one, other, *_ = lines
    sent = torch.randint(0, 255, (20_000_000,), dtype=torch.uint8)
    room, waited = torch.zeros_like(sent), list[int]()
    sender = threading.Thread(target=one.send, args=(Ok(), sent, lambda: waited.append(1)))
    sender.start()
    time.sleep(0.45)
    assert waited, "who waits to be read looks whether anybody is there"
    assert other.receive(Ok, room, patiently) == Ok() and torch.equal(room, sent)
    sender.join()


@pytest.mark.parametrize("size", [299, 301])
def test_a_tensor_of_another_size_is_nonsense(lines: Any, size: int) -> None:
    one, other, *_ = lines
    one.send(Ok(), torch.zeros(size, dtype=torch.uint8), patiently)
    with pytest.raises(PeerLost, match=PROTOCOL_ERROR):
        other.receive(Ok, torch.zeros(300, dtype=torch.uint8), patiently)


def test_bytes_that_nobody_asked_for_words_of_another_kind_and_endless_ones_are_nonsense(lines: Any) -> None:
    one, other, mine, _ = lines
    one.send(Ok(), torch.zeros(3, dtype=torch.uint8), patiently)
    with pytest.raises(PeerLost, match=PROTOCOL_ERROR):
        other.receive(Ok, None, patiently)
    one, other, mine, _ = pair()
    one.send(Pull(), None, patiently)
    with pytest.raises(PeerLost, match=PROTOCOL_ERROR):
        other.receive(Ok, None, patiently)
    mine.sendall(((1 << 36) + 1).to_bytes(8, "big") + bytes(8))
    with pytest.raises(PeerLost, match=PROTOCOL_ERROR):
        other.receive(Ok, None, patiently)
    one.close()
    other.close()


def test_who_waits_asks_again_and_again_and_hears_that_the_other_is_gone(lines: Any) -> None:
    _, other, mine, _ = lines
    asked: list[float] = []

    def alive() -> None:
        asked.append(time.monotonic())
        if len(asked) == 2:
            mine.close()

    with pytest.raises(PeerLost, match=GONE):
        other.receive(Ok, None, alive)
    assert len(asked) >= 2


# ---------------------------------------------------------------- all ranks


def test_every_rank_asks_every_other_and_knows_who_asks(tmp_path: Path) -> None:
    def work(group: Group) -> list[int]:
        found = PeerConnections(group)
        served: list[int] = []

        def serve(rank: int, line: PeerConnection) -> None:
            while True:
                asked = line.receive(Take, None, patiently)
                served.append(rank)
                line.send(Take(100 * group.rank + asked.step), None, patiently)

        found.open(serve)
        for rank in range(group.size):
            if rank != group.rank:
                found.send_request(rank, Take(group.rank))
                assert found.receive_answer(rank, Take) == Take(100 * rank + group.rank)
        if group.rank != CLOCK_RANK:
            found.send_request(CLOCKS, Take(50))
            assert found.receive_answer(CLOCKS, Take) == Take(50)
        found.check()
        group.barrier()
        found.close()
        return sorted(served)

    assert together(tmp_path, 3, work) == [[1, 1, 2, 2], [0, 2], [0, 1]]


def test_a_rank_that_does_not_answer_is_waited_for_as_long_as_silence_lasts(tmp_path: Path) -> None:
    def work(group: Group) -> float:
        found = PeerConnections(group)
        found.open(lambda rank, line: line.receive(Take, None, patiently))
        took_s = 0.0
        if group.rank == 0:
            begun_s = time.monotonic()
            with pytest.raises(PeerLost, match="did not answer in time"):
                found.receive_answer(1, Take, within_s=0.3)
            took_s = time.monotonic() - begun_s
            with pytest.raises(PeerLost, match="did not answer in time"):
                found.receive_answer(1, Take)
            group._why_abandoned = lambda: "another generation"
            with pytest.raises(PeerLost, match="another generation"):
                found.receive_answer(1, Take)
            group._why_abandoned = lambda: None
        group.wait_for_all("done", 30.0)
        found.close()
        return took_s

    assert 0.2 < together(tmp_path, 2, work, silence_s=1.0)[0] < 0.95


def test_who_does_not_know_the_token_is_sent_away_and_the_first_loss_is_told(tmp_path: Path) -> None:
    def work(group: Group) -> None:
        found = PeerConnections(group)
        served: list[int] = []

        def serve(rank: int, line: PeerConnection) -> None:
            served.append(rank)
            raise PeerLost(f"rank {rank} is gone")

        found.open(serve)
        with socket.create_connection(found._listener.getsockname(), timeout=30.0) as stranger:
            stranger.sendall(bytes(18))
            assert stranger.recv(1) == b""
        with socket.create_connection(found._listener.getsockname(), timeout=30.0) as known:
            for byte in found._token + bytes([2, 1]):
                known.sendall(bytes([byte]))
                time.sleep(0.001)
            while 258 not in served:
                time.sleep(0.01)
        while found.lost is None:
            time.sleep(0.01)
        assert "is gone" in found.lost
        with pytest.raises(PeerLost, match="is gone"):
            found.check()
        group.barrier()
        found.close()

    together(tmp_path, 2, work)


# ---------------------------------------------------------------- the keeper of the clocks


def timed(ask: Callable[[], Any]) -> tuple[Any, float]:
    begun_s = time.monotonic()
    return ask(), time.monotonic() - begun_s


def test_the_keeper_answers_at_once_or_lets_who_waits_look_around() -> None:
    keeper = ClockServer(Clocks(2, 0, 5), 2, lambda: None)
    assert keeper.answer(0, Take(5)) == Turn(piece=0, complete=5)
    assert keeper.answer(1, Take(5)) == Turn(piece=1, complete=5)
    settled, took_s = timed(lambda: keeper.answer(0, Settle(5, 5)))
    assert settled == Settled(None, 0) and took_s >= 0.15
    closed = keeper.answer(0, Take(5, done=Done(5, 0.25, 0.5, 2.0)))
    assert isinstance(closed, Closed) and (closed.pieces, closed.compute_s) == ((1, 0), (2.0, 0.0))
    waits, took_s = timed(lambda: keeper.answer(0, Take(6)))
    assert waits == Turn(wait=True, finished=1, complete=5) and took_s >= 0.15
    threading.Timer(0.05, lambda: keeper.answer(1, Take(5, done=Done(5, 0.5, 0.5, 1.0)))).start()
    turn, took_s = timed(lambda: keeper.answer(0, Take(6)))
    assert turn == Turn(piece=0, finished=2, complete=6) and took_s < 0.19
    assert keeper.answer(1, Settle(5, 5)) == Settled([0.75], 2)
    assert keeper.answer(0, AskFailure()) == Ok()


def test_a_failure_is_everybodys_first_answer_and_the_first_one_counts() -> None:
    lost: list[str] = []
    keeper = ClockServer(Clocks(3, 0, 0), 3, lambda: lost[0] if lost else None)
    first = Fail(float("inf"), 3, 1)
    assert keeper.answer(1, first) == first and keeper.answer(2, Fail(1.0, 9, 2)) == first
    lost.append("rank 2 is gone")
    threading.Timer(0.05, lambda: keeper.answer(0, AskFailure())).start()
    _, took_s = timed(keeper.wait_until_all_know)
    assert took_s < 3.0
    other = ClockServer(Clocks(3, 0, 0), 3, lambda: lost[0])
    assert other.answer(0, Take(0)) == Lost("rank 2 is gone") == other.answer(0, AskFailure())


# ---------------------------------------------------------------- a part of the model


def test_tensors_lie_aligned_in_one_piece_behind_a_byte_for_each() -> None:
    like = [torch.zeros(3, dtype=torch.float64), torch.zeros((2, 2), dtype=torch.float32), torch.zeros(())]
    layout = Layout(like)
    buffer = layout.buffer()
    assert layout.size == len(buffer) == 16 + 32 + 16 + 16
    for number, view in enumerate(layout.views(buffer), start=1):
        assert view.shape == like[number - 1].shape and view.dtype == like[number - 1].dtype
        view.fill_(number)
    assert not buffer[:16].any(), "the bytes that say what is there are their own"
    assert [view.flatten()[0].item() for view in layout.views(buffer)] == [1.0, 2.0, 3.0]
    assert Layout([torch.zeros(4)] * 17).size == 32 + 17 * 16 and Layout([]).size == 0


def session() -> Session:
    x = torch.randn(8, 3, dtype=torch.float64)
    return Session(fairlead.Training(
        model=lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)).double(), data=(x, x[:, :1]), loss=nn.MSELoss(),
        batch_size=4, epochs=1, optimizer=lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.5), exact=False,
    ), 0)  # fmt: skip


def test_a_server_steps_when_all_pieces_of_a_batch_are_there_and_leaves_alone_what_has_no_gradient() -> None:
    own = session()
    parameters = list(own.model.parameters())
    shard = Shard(own, parameters, [0, 3], 2)
    buffer = shard.layout.buffer()
    before = [parameters[place].detach().clone() for place in (0, 3)]

    def values() -> list[torch.Tensor]:
        room = shard.layout.buffer()
        shard.pull(room)
        return [view.clone() for view in shard.layout.views(room)]

    def push(first: float, *, second: bool = False) -> None:
        buffer[:2] = torch.tensor([1, int(second)], dtype=torch.uint8)
        shard.layout.views(buffer)[0].fill_(first)
        shard.layout.views(buffer)[1].fill_(7.0)
        shard.push(buffer)

    push(1.0)
    assert torch.equal(values()[0], before[0]), "half of a batch moves nothing"
    push(2.0)
    assert torch.allclose(values()[0], before[0] - 0.5 * 3.0) and torch.equal(values()[1], before[1])
    own.optimizer.param_groups[0]["lr"] = 0.1
    push(0.0)
    push(0.0, second=True)
    assert torch.allclose(values()[0], before[0] - 1.5 - 0.1 * 0.5 * 3.0), "the rate is that of the session"
    assert torch.allclose(values()[1], before[1] - 0.1 * 7.0)
    state = torch.load(io.BytesIO(shard.state()), weights_only=True)
    assert set(state) == {0, 3} and torch.allclose(state[0]["momentum_buffer"], torch.full((2, 3), 1.5).double())


def test_a_server_begins_with_the_state_of_its_part() -> None:
    own = session()
    loss = own.model(torch.ones(2, 3, dtype=torch.float64)).sum()
    loss.backward()
    own.optimizer.step()
    shard = Shard(own, list(own.model.parameters()), [1, 2], 1)
    state = torch.load(io.BytesIO(shard.state()), weights_only=True)
    known = own.optimizer.state_dict()["state"]
    assert set(state) == {1, 2}
    assert all(torch.equal(state[place]["momentum_buffer"], known[place]["momentum_buffer"]) for place in (1, 2))
