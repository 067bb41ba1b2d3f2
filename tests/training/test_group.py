"""What the ranks of one generation do together, and how they notice that it is over."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from fairlead.training import group as group_module
from fairlead.training.group import Group, PeerLost, explain_error, is_peer_loss
from tests.training.ranks import call, together


@pytest.mark.parametrize("size", [1, 2, 3])
def test_what_ranks_say_is_heard_by_all_in_their_order(tmp_path: Path, size: int) -> None:
    def work(group: Group) -> None:
        own = float(group.rank + 1)
        for count, dtype in ((5, torch.float32), (1 << 17, torch.float64), (5, torch.int64)):
            tensor = torch.full((count,), own).to(dtype)
            group.sum(tensor)
            assert (tensor == sum(range(1, size + 1))).all()
        rows = group.gather(torch.tensor([[own, -own]]).t())
        assert rows.tolist() == [[[float(rank)], [-float(rank)]] for rank in range(1, size + 1)]
        for source in range(size):
            told = f"of {source}".encode() * 1000
            assert group.broadcast(told if group.rank == source else None, source) == told
            assert group.broadcast(b"" if group.rank == source else None, source) == b""
        collected = group.gather_bytes(bytes([group.rank]) * (3 * group.rank + 1))
        expected = [bytes([rank]) * (3 * rank + 1) for rank in range(size)]
        assert collected == (expected if group.rank == 0 else [])

    together(tmp_path, size, work)


def test_what_others_are_waited_for_is_counted(tmp_path: Path) -> None:
    def work(group: Group) -> float:
        before_s = group.waited_s
        if group.rank == 0:
            time.sleep(0.3)
        group.barrier()
        return group.waited_s - before_s

    late, waiting = together(tmp_path, 2, work)
    assert waiting >= 0.25 and 0 <= late < waiting


def test_a_group_knows_what_it_was_told(tmp_path: Path) -> None:
    def work(group: Group) -> tuple[object, ...]:
        return (
            group.rank,
            group.size,
            group.generation,
            group.shares,
            group.silence_s,
            group.careful_from,
            group.resumed,
        )

    told = together(tmp_path, 2, work, silence_s=7.0, careful_from=5)
    assert told == [(0, 2, 1, (1.0, 1.0), 7.0, 5, 0), (1, 2, 1, (1.0, 1.0), 7.0, None, 0)]


def test_ranks_that_resume_meet_in_a_corner_of_their_own(tmp_path: Path) -> None:
    join = call(tmp_path, 2)

    def work(group: Group) -> int:
        group.close()
        resumed = [group]
        for times in (1, 2):
            resumed.append(Group(join, f"w{group.rank}", lambda: None, resumed[-1]))
            tensor = torch.ones(3)
            resumed[-1].sum(tensor)
            assert tensor.tolist() == [2.0] * 3 and resumed[-1].resumed == times
            resumed[-1].close()
        group._backend = Group(join, f"w{group.rank}", lambda: None, resumed[-1])._backend
        return resumed[-1].resumed

    assert together(tmp_path, 2, work) == [2, 2]


@pytest.mark.parametrize("way", ["file", "tcp"])
def test_who_comes_alone_waits_no_longer_than_silence_lasts(tmp_path: Path, way: str) -> None:
    join = call(tmp_path, 2, silence_s=0.4, where="tcp://127.0.0.1:1" if way == "tcp" else "")
    begun_s = time.monotonic()
    with pytest.raises(PeerLost, match="not all of 2 ranks joined in time"):
        Group(join, "w1", lambda: None)
    assert 0.4 <= time.monotonic() - begun_s < 5.0


def test_who_waits_for_others_hears_that_the_generation_is_over(tmp_path: Path) -> None:
    looked = iter(range(1000))
    begun_s = time.monotonic()
    with pytest.raises(PeerLost, match="called away"):
        Group(call(tmp_path, 2), "w0", lambda: "called away" if next(looked) > 5 else None)
    assert time.monotonic() - begun_s < 5.0


def test_a_collective_that_hangs_ends_with_its_generation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "_abandoned", [])  # here the other rank goes, and nothing hangs for ever
    over: list[str] = []

    def work(group: Group) -> str:
        group._why_abandoned = lambda: over[0] if over else None
        if group.rank == 1:
            time.sleep(0.3)
            over.append("generation 2 was called")
            while len(over) < 2:
                time.sleep(0.01)
            over.clear()
            raise InterruptedError
        with pytest.raises(PeerLost) as lost:
            group.gather(torch.ones(2))
        over.append("seen")
        return str(lost.value)

    with pytest.raises(InterruptedError):
        together(tmp_path, 2, work)


def test_all_wait_for_whoever_takes_longest_but_not_for_ever(tmp_path: Path) -> None:
    def work(group: Group) -> float:
        begun_s = time.monotonic()
        if group.rank == 1:
            time.sleep(0.3)
        group.wait_for_all("loaded", 20.0)
        took_s = time.monotonic() - begun_s
        if group.rank == 0:
            with pytest.raises(PeerLost, match="not all of 2 ranks joined in time"):
                group.wait_for_all("something else", 0.1)
            group._why_abandoned = lambda: "another call"
            with pytest.raises(PeerLost, match="another call"):
                group.check_abandoned()
            group._why_abandoned = lambda: None
            group.check_abandoned()
        return took_s

    assert min(together(tmp_path, 2, work)) >= 0.25
    alone = Group(call(tmp_path, 1), "w0", lambda: None)
    alone.wait_for_all("anything", 0.0)


def test_a_group_that_was_left_says_so(tmp_path: Path) -> None:
    def work(group: Group) -> None:
        group.barrier()
        group.abort()
        with pytest.raises(PeerLost, match="the group is closed"):
            group.sum(torch.ones(1))
        raise InterruptedError

    with pytest.raises(InterruptedError):
        together(tmp_path, 2, work)


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("Connection reset by peer", True), ("connection closed", True), ("Connection refused", True),
        ("Broken pipe", True), ("Socket closed", True), ("Timed out waiting 200ms for recv", True),
        ("timed out", False), ("waiting for data", False), ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)  # fmt: skip
def test_a_lost_peer_is_told_from_a_mistake_by_what_torch_says(text: str, loss: bool) -> None:
    assert is_peer_loss(RuntimeError(text)) is loss
    assert is_peer_loss(torch.distributed.DistBackendError(text))


def test_what_torch_says_is_cut_to_a_line() -> None:
    assert explain_error(RuntimeError("x" * 999)) == "x" * 200
    assert explain_error(RuntimeError("operation timedout")) == "another rank did not answer in time"
