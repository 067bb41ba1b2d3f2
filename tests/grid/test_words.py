"""A worker's line against a grid process that answers by script: what is said again, what is held, and when it ends."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fairlead import framing
from fairlead.errors import FairleadError, InvalidSpec, Refused, Unavailable
from fairlead.grid import mapping
from fairlead.grid import messages as m
from fairlead.grid.client import Grid
from fairlead.grid.connection import GridConnection
from fairlead.grid.layout import Layout, read_header
from fairlead.grid.values import BlockId, BlockInfo, Usage
from fairlead.unix_sockets import listen
from tests.waiting import until

A, B = BlockId("a" * 32), BlockId("b" * 32)
SIZE = 16 << 20


class Script:
    """A grid process that answers each word as it is told, and keeps what it hears."""

    def __init__(self, path: Path) -> None:
        self.heard: list[Any] = []
        self.ended = 0
        self.answer: Callable[[Any], Any] = lambda said: m.Placed()
        self.welcome: Any = m.Welcome("tenant", SIZE, 0)
        self.arena = mapping.create("script", SIZE)
        self._listener = listen(path)
        self._lines: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                line, _ = self._listener.accept()
                self._lines.append(line)
                threading.Thread(target=self._talk, args=(line,), daemon=True).start()

    def _talk(self, line: socket.socket) -> None:
        unpacker = framing.Unpacker(m.FromClient)
        with contextlib.suppress(OSError), line:
            while data := line.recv(1 << 16):
                for said in unpacker.feed(data):
                    self.heard.append(said)
                    if isinstance(said, m.Hello):
                        self._send(line, self.welcome, [self.arena] if isinstance(self.welcome, m.Welcome) else [])
                    elif not isinstance(said, m.Release | m.Goodbye):
                        answer = self.answer(said)
                        if answer is None:
                            line.shutdown(socket.SHUT_RDWR)
                        else:
                            self._send(line, answer, [self.arena] if isinstance(said, m.Writer) else [])
        self.ended += 1

    def _send(self, line: socket.socket, message: Any, descriptors: list[int]) -> None:
        data = message if isinstance(message, bytes) else framing.pack(message)
        socket.send_fds(line, [data], descriptors)

    def words(self) -> list[Any]:
        """All but the greetings."""
        return [said for said in self.heard if not isinstance(said, m.Hello)]

    def hellos(self) -> list[m.Hello]:
        return [said for said in self.heard if isinstance(said, m.Hello)]

    def close(self) -> None:
        self._listener.close()
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        os.close(self.arena)


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    made = Script(tmp_path / "grid.sock")
    yield made
    made.close()


def test_who_knocks_shows_token_and_session_and_holds_nothing_yet(script: Script, tmp_path: Path) -> None:
    line = GridConnection(tmp_path / "grid.sock", "the token", 5.0)
    (hello,) = script.hellos()
    assert (hello.token, hello.held) == ("the token", []) and hello.session == line.session and len(line.session) == 32
    assert line.welcome == script.welcome and line.reading().size == SIZE and not line.reading().writable
    line.close()
    until(lambda: script.ended == 1)
    assert script.words() == [m.Goodbye()]


@pytest.mark.parametrize("welcome", [b"\xff" * 40, m.Problem("no", "refused", "pay"), m.Placed()])
def test_a_welcome_that_is_none_ends_the_line(script: Script, tmp_path: Path, welcome: Any) -> None:
    script.welcome = welcome
    with pytest.raises((FairleadError, ValueError)) as refused:
        GridConnection(tmp_path / "grid.sock", "", 5.0)
    if isinstance(welcome, m.Problem):
        assert isinstance(refused.value, Refused) and refused.value.message == "no"
    elif isinstance(welcome, m.Placed):
        assert isinstance(refused.value, Unavailable) and "no welcome" in str(refused.value)
    until(lambda: script.ended == 1)


def test_nobody_is_waited_for_longer_than_said_and_nobody_who_has_closed_waits(tmp_path: Path) -> None:
    begun_s = time.monotonic()
    with pytest.raises(Unavailable, match="no connection to the grid"):
        GridConnection(tmp_path / "nobody.sock", "", 0.3)
    assert 0.3 <= time.monotonic() - begun_s < 5.0
    script = Script(tmp_path / "grid.sock")
    line = GridConnection(tmp_path / "grid.sock", "", 60.0)
    script.close()
    (tmp_path / "grid.sock").unlink()
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            line.ask(m.Open(A))
        except BaseException as error:  # noqa: BLE001 (looked at below)
            failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    time.sleep(0.2)
    line._closed = True
    asking.join(10.0)
    assert not asking.is_alive() and isinstance(failed[0], Unavailable)


def test_a_request_without_an_answer_is_said_again_with_what_is_held(script: Script, tmp_path: Path) -> None:
    lost = iter([m.Placed(1), None, m.Placed(2), None, None, m.Placed(3)])
    script.answer = lambda said: next(lost)
    line = GridConnection(tmp_path / "grid.sock", "", 10.0)
    assert line.ask(m.Open(A)).offset == 1
    assert line.ask(m.Reserve(B, 7)).offset == 2
    assert line.ask(m.Commit(B, 1, "k")).offset == 3
    assert [hello.held for hello in script.hellos()] == [[], [A], [A, B], [A, B]]
    assert len({hello.session for hello in script.hellos()}) == 1
    assert script.words() == [m.Open(A), *[m.Reserve(B, 7)] * 2, *[m.Commit(B, 1, "k")] * 3]
    line.close()
    assert script.ended < 4, "what is open stays pinned"
    line.release(A, line.session)
    until(lambda: script.ended == 4)
    assert script.words()[-2:] == [m.Release(A), m.Goodbye()]


def test_a_block_is_released_when_all_have_let_go_of_it_and_only_by_who_holds_it(
    script: Script, tmp_path: Path
) -> None:
    line = GridConnection(tmp_path / "grid.sock", "", 10.0)
    line.ask(m.Open(A))
    line.ask(m.Open(A))
    line.release(A, line.session)
    line.release(A, "another session")
    line.release(B, line.session)
    line.ask(m.AskUsage())
    assert m.Release(A) not in script.words()
    line.release(A, line.session)
    line.ask(m.AskUsage())
    assert script.words() == [m.Open(A), m.Open(A), m.AskUsage(), m.Release(A), m.AskUsage()]
    line.close()


def test_a_forked_child_releases_nothing_of_its_parent(script: Script, tmp_path: Path) -> None:
    line = GridConnection(tmp_path / "grid.sock", "", 10.0)
    line.ask(m.Open(A))
    pid, line._pid = line._pid, 0  # as a child finds it, before it has asked for anything
    line.release(A, line.session)
    line._pid = pid
    line.ask(m.AskUsage())
    assert script.words() == [m.Open(A), m.AskUsage()]
    line.close()


def test_what_is_released_while_another_speaks_is_said_after_it(script: Script, tmp_path: Path) -> None:
    line = GridConnection(tmp_path / "grid.sock", "", 10.0)
    line.ask(m.Open(A))
    released: list[bool] = []

    def answer(said: Any) -> Any:
        if isinstance(said, m.Drop) and not released:
            line.release(A, line.session)
            released.append(True)
        return m.Placed()

    script.answer = answer
    line.ask(m.Drop(B))
    until(lambda: m.Release(A) in script.words())
    line.close()


def test_an_answer_of_another_kind_and_a_problem_are_errors_and_the_line_goes_on(
    script: Script, tmp_path: Path
) -> None:
    line = GridConnection(tmp_path / "grid.sock", "", 10.0)
    script.answer = lambda said: m.Problem("too large", "too-large", "ask for less")
    with pytest.raises(FairleadError, match="too large") as refused:
        line.ask(m.Reserve(B, 7))
    assert refused.value.fix == "ask for less" and line._held == {}
    script.answer = lambda said: m.UsageAnswer(Usage(1))
    with pytest.raises(Unavailable, match="answers UsageAnswer"):
        line.ask(m.Drop(B))
    assert line.ask(m.AskUsage(), m.UsageAnswer).usage == Usage(1) and len(script.hellos()) == 1
    line.close()


def test_nonsense_ends_the_line_so_that_nothing_is_taken_for_the_next_answer(script: Script, tmp_path: Path) -> None:
    line = GridConnection(tmp_path / "grid.sock", "", 10.0)
    script.answer = lambda said: b"\x00\x00\x00\x02\xc1\xc1"
    with pytest.raises(ValueError):
        line.ask(m.Open(A))
    until(lambda: script.ended == 1)
    script.answer = lambda said: m.Placed(5)
    assert line.ask(m.Open(A)).offset == 5 and [hello.held for hello in script.hellos()] == [[], []]
    line.release(A, line.session)
    line.close()


def test_the_writing_descriptor_is_asked_for_once(script: Script, tmp_path: Path) -> None:
    line = GridConnection(tmp_path / "grid.sock", "", 10.0)
    line.writing().view(3, 2)[:] = b"ab"
    assert line.writing() is line.writing() and bytes(line.reading().view(3, 2)) == b"ab"
    assert script.words() == [m.Writer()]
    line.close()


# ---------------------------------------------------------------- what a worker does with it


def laid(script: Script, *parts: bytes, kind: str = "k", digest: str = "") -> m.Placed:
    """A block in the arena, and where it is."""
    layout = Layout([len(part) for part in parts], {"of": "test"})
    arena = mapping.Mapping(script.arena, SIZE, writable=True)
    room = arena.view(4096, layout.nbytes)
    for (begin, length), part in zip(layout.parts, parts, strict=True):
        room[begin : begin + length] = part
    layout.finish(room)
    return m.Placed(4096, layout.nbytes, len(layout.header), kind, 0, digest)


def test_a_block_is_opened_once_as_long_as_it_is_looked_at(script: Script, tmp_path: Path) -> None:
    placed = laid(script, b"abc", b"", b"defg", digest="what it should be")
    script.answer = lambda said: placed
    with Grid(tmp_path / "grid.sock") as grid:
        one, other = grid.open(A), grid.open(A)
        assert [bytes(part) for part in one.parts()] == [b"abc", b"", b"defg"] and one.meta == {"of": "test"}
        assert (one.kind, one.nbytes, one.whole()[1]) == ("k", 7, placed.header) and not one.intact()
        assert len(one.whole()[0]) == placed.nbytes and one.whole()[0].readonly
        assert script.words() == [m.Open(A)]
        one.close()
        with pytest.raises(InvalidSpec, match="closed"):
            one.parts()
        views = other.parts()
        del one
        other.close()
        assert script.words() == [m.Open(A)] and bytes(views[0]) == b"abc"
        del views, other
        until(lambda: script.words() == [m.Open(A), m.Release(A)])


def test_small_blocks_go_with_the_words_and_large_ones_into_the_arena(script: Script, tmp_path: Path) -> None:
    with Grid(tmp_path / "grid.sock") as grid:
        block = grid.put([b"abc", memoryview(b"de")], kind="k", meta={"m": 1}, label="mine", cost_s=2.5)
        (said,) = script.words()
        assert (said.id, said.kind, said.label, said.cost_s) == (block, "k", "mine", 2.5) and len(block) == 32
        header = read_header(said.data[len(said.data) - said.header :])
        assert header.meta == {"m": 1}
        assert [said.data[begin : begin + length] for begin, length in header.parts] == [b"abc", b"de"]
        large = os.urandom(m.INLINE_BYTES + 1)
        script.answer = lambda said: m.Placed(8192, getattr(said, "nbytes", 0))
        second = grid.put([large], kind="k", meta={}, label="mine", cost_s=3.5)
        reserve, writer, commit = script.words()[1:]
        assert isinstance(writer, m.Writer) and reserve.id == commit.id == second != block
        assert (commit.kind, commit.label, commit.cost_s) == ("k", "mine", 3.5) and reserve.nbytes > len(large)
        room = mapping.Mapping(script.arena, SIZE, writable=False).view(8192, reserve.nbytes)
        assert bytes(room[: len(large)]) == large
        assert read_header(room[reserve.nbytes - commit.header :]).parts == [(0, len(large))]
        for label, kind in (("x" * 201, "k"), ("x", "k" * 201)):
            with pytest.raises(InvalidSpec, match="longer than 200"):
                grid.put([b""], kind=kind, meta={}, label=label)


def test_room_that_could_not_be_filled_is_given_back(script: Script, tmp_path: Path) -> None:
    script.answer = lambda said: m.Placed(0, getattr(said, "nbytes", 0))

    def fails(_: Any) -> None:
        raise KeyboardInterrupt

    with Grid(tmp_path / "grid.sock") as grid:
        with pytest.raises(KeyboardInterrupt):
            grid.make_tensors({"a": ("f8", (m.INLINE_BYTES,))}, fails)
        until(lambda: len(script.words()) == 3)
        reserve, writer, release = script.words()
        assert isinstance(writer, m.Writer) and release == m.Release(reserve.id)
        room = grid.reserve(1000)
        room.view[:3] = b"abc"
        room.give_back()
        until(lambda: script.words()[-1] == m.Release(room.id))
        assert room.in_arena and room.nbytes == 1000 == len(room.view)


def test_a_long_list_of_blocks_comes_page_by_page(script: Script, tmp_path: Path) -> None:
    infos = [BlockInfo(BlockId(f"{number:032x}"), "k", 1) for number in range(5)]
    pages = iter([m.Blocks(infos[:2], True), m.Blocks(infos[2:4], True), m.Blocks(infos[4:])])
    script.answer = lambda said: next(pages)
    with Grid(tmp_path / "grid.sock") as grid:
        assert grid.blocks() == infos
    assert script.words()[:3] == [m.AskBlocks(""), m.AskBlocks(infos[1].id), m.AskBlocks(infos[3].id)]


def test_a_block_of_which_nothing_is_said_cost_nothing_and_has_no_label(script: Script, tmp_path: Path) -> None:
    with Grid(tmp_path / "grid.sock") as grid:
        grid.put([b"a"], kind="k", meta={})
        grid.put_table(pa.table({"a": [1, 2]}), meta={"more": 1})
        grid.put_tensors({"a": np.zeros(2)}, meta={"more": 2})
        grid.make_tensors({"a": ("f8", (2,))}, lambda columns: columns["a"].fill(7.0), meta={"more": 3})
        said = script.words()
        assert [(each.label, each.cost_s) for each in said] == [("", 0.0)] * 4
        assert [each.kind for each in said] == ["k", "table", "tensors", "tensors"]
        metas = [read_header(each.data[len(each.data) - each.header :]).meta for each in said]
        assert metas[1] == {"rows": 2, "more": 1} and metas[2] == {"more": 2, "tensors": [["a", "<f8", [2]]]}
        assert metas[3] == {"more": 3, "tensors": [["a", "<f8", [2]]]}
        grid.put_table(pa.table({"a": [1]}), label="l", cost_s=2.0)
        grid.put_tensors({"a": np.zeros(1)}, label="l", cost_s=2.0)
        grid.make_tensors({"a": ("f8", ())}, lambda columns: None, label="l", cost_s=2.0)
        assert [(each.label, each.cost_s) for each in script.words()[4:]] == [("l", 2.0)] * 3
