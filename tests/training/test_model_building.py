"""Ranks that build their part of a model wait for each other, however long one takes, until they are called off."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fairlead import wire
from fairlead.local_wire import PlacedJoin
from fairlead.training.group import Group, PeerLost
from fairlead.training.parallel import model_building as room
from fairlead.training.parallel.model_building import keep_alive_while_building

SIGN = wire.Progress(generation=1, step=0, total_steps=10)
SILENCE_S = 60.0


class Said:
    """A line that counts what is sent."""

    def __init__(self) -> None:
        self.signs: list[object] = []
        self.often = threading.Event()

    def send(self, message: object) -> None:
        self.signs.append(message)
        if len(self.signs) >= 3:
            self.often.set()

    def pending(self) -> bool:
        return False

    def take(self, timeout_s: float | None = None) -> None:
        return None

    def put_back(self, message: object) -> None:
        raise AssertionError("nothing was taken")


def groups(tmp_path: Path, called: threading.Event) -> list[Group]:
    join = PlacedJoin(1, {"w0": 0, "w1": 1}, [], SILENCE_S, init_method=f"file://{tmp_path}/meet")
    with ThreadPoolExecutor(2) as pool:
        made = [
            pool.submit(Group, join, name, lambda: "generation 2 was called" if called.is_set() else None)
            for name in ("w0", "w1")
        ]
        return [each.result() for each in made]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "EVERY_S", 0.01)


def build(group: Group, line: Said, until: threading.Event) -> None:
    with keep_alive_while_building(group, line, SIGN):
        assert until.wait(SILENCE_S)


def test_a_rank_that_is_slow_to_build_is_waited_for_and_all_give_signs_of_life(tmp_path: Path, quick: None) -> None:
    first, second = groups(tmp_path, threading.Event())
    lines = Said(), Said()
    with ThreadPoolExecutor(2) as pool:
        fast = pool.submit(build, first, lines[0], lines[0].often)
        slow = pool.submit(build, second, lines[1], lines[0].often)  # not before the other has shown signs of life
        slow.result(SILENCE_S)
        fast.result(SILENCE_S)
    assert all(sign == SIGN for sign in lines[0].signs)
    for group in (first, second):
        group.abort()


def test_who_waits_for_a_rank_that_never_comes_is_called_off(tmp_path: Path, quick: None) -> None:
    called = threading.Event()
    first, other = groups(tmp_path, called)
    line, never = Said(), threading.Event()
    never.set()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(build, first, line, never)
        called.set()
        with pytest.raises(PeerLost, match="generation 2 was called"):
            waiting.result(SILENCE_S)
    for group in (first, other):
        group.abort()
