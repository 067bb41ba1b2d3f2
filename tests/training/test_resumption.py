"""Ranks that wait in vain for the next call resume the generation they left: all of them or none, and exactly."""

from __future__ import annotations

import math
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from torch._C import _distributed_c10d as c10d

from fairlead import wire
from fairlead.local_wire import PlacedJoin
from fairlead.planning.plan import Plan
from fairlead.training import resumption
from fairlead.training.resumption import POLL_S, RESUME_AFTER_S, Resumption, patience_s
from tests.training.conftest import MakeGang
from tests.training.gang import Gang
from tests.training.programs import BLOCKS, SMALL
from tests.training.test_exactness import assert_same_result, train
from tests.training.test_own_loop import LOOP
from tests.training.test_plans import PLANS

STEPS = {"layers": "both", "epochs": 32}
EVEN = [[0, 2, "replicas", [0.5, 0.5]]]


class Clock:
    """Time as a test wants it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def ranks(path: Path, size: int, clock: Callable[[], float], wait_s: float = 2.0) -> list[Resumption]:
    """The decision as each rank of a generation sees it, each with its own connection to the store."""
    stores = [c10d.PrefixStore("after", c10d.FileStore(str(path), size)) for _ in range(size)]
    return [Resumption(store, rank, size, wait_s, clock) for rank, store in enumerate(stores)]


# ---------------------------------------------------------------- the decision


def test_nobody_resumes_before_every_rank_has_run_out_of_patience(tmp_path: Path) -> None:
    first, second = Clock(), Clock()
    one, _ = ranks(tmp_path / "meet", 2, first)
    _, other = ranks(tmp_path / "meet", 2, second)
    first.now_s = 3.0
    assert not one.should_resume()
    assert not other.should_resume()
    second.now_s = 3.0
    assert other.should_resume()
    assert one.should_resume()
    assert not one.decide_to_leave() and not other.decide_to_leave(), "what is decided stays so"


def test_a_call_that_one_rank_follows_keeps_all_from_resuming(tmp_path: Path) -> None:
    clock = Clock()
    one, other = ranks(tmp_path / "meet", 2, clock)
    assert one.decide_to_leave()
    clock.now_s = 3.0
    assert not other.should_resume()
    assert other.decided_to_leave and other.decide_to_leave()


def test_a_rank_that_is_alone_decides_for_itself() -> None:
    clock = Clock()
    alone = Resumption(None, 0, 1, 2.0, clock)
    assert not alone.should_resume() and alone.pause_s == 2.0
    clock.now_s = 2.0
    assert alone.should_resume() and not alone.decide_to_leave()


def test_without_the_store_nobody_resumes() -> None:
    class Gone:
        def set(self, key: str, value: str) -> None:
            raise RuntimeError("connection reset")

        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("connection reset")

        def compare_set(self, key: str, expected: str, desired: str) -> bytes:
            raise RuntimeError("connection reset")

    clock = Clock()
    rank = Resumption(Gone(), 0, 2, 2.0, clock)
    clock.now_s = 3.0
    assert not rank.should_resume() and rank.decided_to_leave and rank.decide_to_leave()


def test_a_rank_that_is_to_end_hears_at_once_that_it_may(tmp_path: Path) -> None:
    clock = Clock()
    staying, other = ranks(tmp_path / "meet", 2, clock)
    store = c10d.PrefixStore("after", c10d.FileStore(str(tmp_path / "meet"), 2))
    ending = Resumption(store, 1, 2, 2.0, clock, ends=True)
    assert not ending.should_resume() and not ending.decided_to_leave
    assert staying.decide_to_leave()
    assert not ending.should_resume() and ending.decided_to_leave
    assert not other.should_resume() and not other.decided_to_leave, (
        "who stays need not look before its patience is over"
    )


def test_a_rank_waits_for_a_message_as_long_as_its_patience_lasts_and_one_that_ends_looks_often() -> None:
    now = [100.0]
    rank = Resumption(None, 0, 1, 5.0, lambda: now[0])
    ends = Resumption(None, 0, 1, 5.0, lambda: now[0], ends=True)
    assert (rank.pause_s, ends.pause_s) == (5.0, POLL_S)
    now[0] += 3.0
    assert rank.pause_s == pytest.approx(2.0)
    now[0] += 10.0
    assert rank.pause_s == POLL_S


def test_patience_doubles_so_that_a_slow_control_plane_gets_through() -> None:
    assert [patience_s(times) for times in (0, 1, 2, 3, 9)] == [2.0, 4.0, 8.0, 16.0, 30.0]


@pytest.mark.parametrize("seed", range(8))
def test_a_call_that_races_with_the_decision_never_splits_the_ranks(tmp_path: Path, seed: int) -> None:
    """Calls reach some ranks at the moment at which patience runs out: all of them resume, or none does."""
    moments = random.Random(seed)
    outcomes = set()
    for turn in range(25):
        size = moments.choice([2, 3, 4])
        called = [rank for rank in range(size) if moments.random() < 0.6]
        found: dict[int, str] = {}
        barrier = threading.Barrier(size)

        def live(
            rank: Resumption, number: int, call_s: float, barrier: threading.Barrier = barrier,
            found: dict[int, str] = found,
        ) -> None:  # fmt: skip
            barrier.wait()
            call_at_s = time.monotonic() + call_s
            while (
                not rank.should_resume()
                and not rank.decided_to_leave
                and not (time.monotonic() >= call_at_s and rank.decide_to_leave())
            ):
                time.sleep(0.0005)
            found[number] = "go" if rank.decided_to_leave else "resume"

        wait_s = moments.uniform(0.0, 0.01)
        threads = [
            threading.Thread(
                target=live, args=(rank, number, moments.uniform(0.0, 0.02) if number in called else math.inf)
            )
            for number, rank in enumerate(ranks(tmp_path / f"meet-{turn}", size, time.monotonic, wait_s))
        ]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        said = set(found.values())
        assert len(found) == size and len(said) == 1, (turn, found)
        outcomes |= said
    assert {"resume", "go"} <= outcomes, "the race went both ways"


# ---------------------------------------------------------------- with workers


def told_to_leave(gang: Gang) -> None:
    """All leave; the control plane that told them so then says nothing more."""
    gang.leave()


def resumed(gang: Gang, times: int = 1) -> None:
    def all_of_them() -> bool:
        heard = [[one for one in gang.workers[name].heard(wire.Joined) if one.resumed] for name in gang.members]
        return all(len(said) >= times for said in heard)

    gang.until(all_of_them, "everybody resumed")


@pytest.mark.parametrize("plan", [None, Plan(data=2, sync="allreduce", buckets=True)], ids=["replicas", "ddp"])
def test_a_gang_that_is_told_to_leave_and_nothing_else_trains_on_exactly(
    make_gang: MakeGang, plan: Plan | None
) -> None:
    calm, gang = make_gang(SMALL, STEPS), make_gang(SMALL, STEPS | {"slow": 0.02})

    course = [[0, 2, "replicas" if plan is None else plan.id, [0.5, 0.5]]]
    for each in (calm, gang):
        each.course = course
        each.start("a", "b")
        each.ready("a", "b")
        each.join("a", "b", plan=plan)
    gang.reach(20)
    told_to_leave(gang)
    left_s = time.monotonic()
    left = gang.workers["a"].last(wire.Left).step
    resumed(gang)
    assert time.monotonic() - left_s >= RESUME_AFTER_S - 0.2
    assert {gang.workers[name].last(wire.Joined) for name in "ab"} == {wire.Joined(1, left, resumed=True)}
    gang.finish()
    calm.finish()
    assert_same_result(calm, gang, 0.0)
    assert "no call in time; resumed" in gang.log("a")


def test_the_shares_that_were_measured_stay(make_gang: MakeGang) -> None:
    gang = make_gang(SMALL, STEPS | {"slow": 0.05, "batch_size": 10})
    gang.start("a", "b")
    gang.ready("a", "b")
    gang.join("a", "b", shares=[0.7, 0.3])
    gang.reach(3)
    told_to_leave(gang)
    resumed(gang)
    gang.finish()
    assert_same_result(train(make_gang(SMALL, STEPS | {"batch_size": 10}), 1), gang, 1e-9)


def test_a_call_in_time_is_followed_and_nobody_resumes(make_gang: MakeGang) -> None:
    gang = make_gang(SMALL, STEPS | {"slow": 0.01})
    gang.start("a", "b", "c")
    gang.ready("a", "b", "c")
    gang.join("a", "b")
    gang.reach(5)
    gang.leave()
    gang.join("a", "b", "c")
    gang.finish()
    assert not any(one.resumed for name in "abc" for one in gang.workers[name].heard(wire.Joined))


def test_a_resumed_generation_refuses_the_late_call_until_it_has_left_again(make_gang: MakeGang) -> None:
    gang = make_gang(SMALL, STEPS | {"slow": 0.03})
    gang.start("a", "b", "c")
    gang.ready("a", "b", "c")
    gang.join("a", "b")
    gang.reach(5)
    told_to_leave(gang)
    resumed(gang)
    at = gang.step()
    gang.generation = 2
    late = PlacedJoin(2, {"a": 0, "b": 1, "c": 2}, [], 30.0, init_method=f"file://{gang.root}/meet-2")
    gang.tell(late, "a", "b", "c")
    gang.until(lambda: gang.step() >= at + 20, "it trains on although it was called")
    assert "generation 2: call refused, because generation 1 was resumed" in gang.log("a")
    assert not gang.said("a", wire.Joined) and not gang.workers["a"].heard(wire.Broken)
    gang.tell(wire.Leave(1), "a", "b")
    gang.until(lambda: all(len(gang.workers[name].heard(wire.Left)) == 2 for name in "ab"), "both left again")
    gang.members = ["a", "b", "c"]
    gang.tell(late, "a", "b")
    gang.until(lambda: all(gang.in_generation(name) for name in "abc"), "all three train in the next one")
    gang.finish()
    assert_same_result(train(make_gang(SMALL, STEPS), 1), gang, 1e-9)


def test_a_gang_that_was_to_shrink_resumes_with_all_and_shrinks_when_it_is_called(
    make_gang: MakeGang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumption, "RESUME_AFTER_S", 0.5)
    gang = make_gang(SMALL, STEPS | {"slow": 0.02})
    gang.start("a", "b")
    gang.ready("a", "b")
    gang.join("a", "b")
    gang.reach(5)
    gang.leave(exits=["b"])
    resumed(gang)
    gang.reach(gang.step() + 5)
    gang.tell(wire.Leave(1, exits=["b"]), "a", "b")
    gang.until(lambda: all(len(gang.workers[name].heard(wire.Left)) == 2 for name in "ab"), "both left again")
    assert gang.workers["b"].code is None, "it ends when the others go on without it"
    gang.join("a")
    gang.until(lambda: gang.workers["b"].code == 0, "it ends")
    gang.finish()
    assert_same_result(train(make_gang(SMALL, STEPS), 1), gang, 1e-9)


def test_a_gang_of_which_a_member_dies_while_it_waits_waits_on(
    make_gang: MakeGang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumption, "RESUME_AFTER_S", 0.5)
    gang = make_gang(SMALL, STEPS | {"slow": 0.01})
    gang.start("a", "b")
    gang.ready("a", "b")
    gang.join("a", "b")
    gang.reach(5)
    told_to_leave(gang)
    gang.kill("b")
    at = gang.step()
    gang.listen_for(1.5)
    assert gang.step() == at and not any(one.resumed for one in gang.workers["a"].heard(wire.Joined))
    gang.join("a")
    gang.finish()
    assert_same_result(train(make_gang(SMALL, STEPS), 1), gang, 1e-9)


def test_a_resumed_gang_that_loses_a_member_follows_the_call_that_says_so(make_gang: MakeGang) -> None:
    gang = make_gang(SMALL, STEPS | {"slow": 0.02})
    gang.start("a", "b")
    gang.ready("a", "b")
    gang.join("a", "b", silence_s=60.0)
    gang.reach(5)
    told_to_leave(gang)
    resumed(gang)
    gang.reach(gang.step() + 5)
    gang.kill("b", signal.SIGSTOP)
    gang.generation, gang.members = 2, ["a"]
    gang.tell(wire.Join(2, {"a": 0}, breaks=1), "a")
    gang.until(lambda: gang.in_generation("a"), "it goes on alone")
    assert gang.workers["a"].last(wire.Broken).generation == 1
    gang.finish()


def test_one_worker_alone_and_a_gang_that_is_left_in_the_lurch_twice_resume(
    make_gang: MakeGang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumption, "RESUME_AFTER_S", 0.2)
    gang = make_gang(SMALL, STEPS | {"slow": 0.01})
    gang.start("a", "b")
    gang.ready("a", "b")
    gang.join("a")
    gang.reach(10)
    told_to_leave(gang)
    resumed(gang)
    gang.reach(gang.step() + 10)
    gang.tell(wire.Leave(1), "a")
    gang.until(lambda: len(gang.workers["a"].heard(wire.Left)) == 2, "it left again")
    resumed(gang, 2)
    gang.reach(gang.step() + 10)
    gang.tell(wire.Leave(1), "a")
    gang.until(lambda: len(gang.workers["a"].heard(wire.Left)) == 3, "and again")
    gang.join("a", "b")
    gang.finish()
    assert_same_result(train(make_gang(SMALL, STEPS), 1), gang, 1e-9)


def test_a_model_that_is_spread_and_a_loop_of_ones_own_resume(
    make_gang: MakeGang, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumption, "RESUME_AFTER_S", 0.2)
    spread = make_gang(BLOCKS, {"epochs": 8, "slow": 0.02})
    own = make_gang(LOOP, {"slow": 0.05, "steps": 60}, folder="own")
    for gang, plan in ((spread, PLANS["fsdp2"]), (own, None)):
        gang.start("a", "b")
        gang.ready("a", "b")
        gang.join("a", "b", plan=plan, silence_s=120.0)
        gang.reach(4)
        told_to_leave(gang)
        resumed(gang)
        gang.finish()
    assert_same_result(train(make_gang(BLOCKS, {"epochs": 8}), 1), spread, 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_workers_that_are_called_as_their_patience_ends_never_split(
    make_gang: MakeGang, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Real workers, each called at its own moment: whatever they decide, they train on together, on the same curve."""
    monkeypatch.setattr(resumption, "RESUME_AFTER_S", 0.1)
    monkeypatch.setattr(resumption, "LONGEST_PATIENCE_S", 0.1)
    moments = random.Random(seed)
    params = {"layers": "both", "epochs": 80}
    gang = make_gang(SMALL, params | {"slow": 0.01})
    gang.start("a", "b")
    gang.ready("a", "b")
    gang.join("a", "b")
    ways = set()
    turn = 0
    while gang.step() < 320:
        turn += 1
        gang.reach(gang.step() + 3)
        before = {name: len(gang.workers[name].heard(wire.Left)) for name in "ab"}
        gang.tell(wire.Leave(gang.generation), "a", "b")
        gang.until(lambda before=before: all(len(gang.workers[n].heard(wire.Left)) > before[n] for n in "ab"), "left")
        number = gang.generation + 1
        call = PlacedJoin(number, {"a": 0, "b": 1}, [], 30.0, init_method=f"file://{gang.root}/meet-{number}-{turn}")
        gang.listen_for(moments.uniform(0.05, 0.15))
        for name in moments.sample("ab", 2):
            gang.tell(call, name)
            gang.listen_for(moments.uniform(0.0, 0.02))
        at = gang.step()
        gang.until(lambda at=at: gang.step() > at + 1, "they train on")
        newest = {gang.workers[name].last(wire.Joined).generation for name in "ab"}
        assert len(newest) == 1, "both in the same generation"
        ways.add(newest == {number})
        gang.generation = newest.pop()
    gang.finish()
    assert ways == {True, False}, "the race went both ways"
    assert_same_result(train(make_gang(SMALL, params), 1), gang, 1e-9)
