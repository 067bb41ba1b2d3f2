"""Blocks between nodes, both sides in this process: who is asked first, what is copied, and what stays behind."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import framing
from fairlead.grid import peers as module
from fairlead.grid.arena_store import ArenaStore
from fairlead.grid.catalogue import Session
from fairlead.grid.credentials import start_ticks
from fairlead.grid.errors import Refusal
from fairlead.grid.messages import Commit, Found, Peer, PutSmall
from fairlead.grid.peers import Peers, authenticate
from tests.grid.conftest import MB
from tests.grid.servers import new_store

A, B = "a" * 32, "b" * 32
KEY = b"k" * 32


class Lender:
    """Another node's side: a store that others may copy from."""

    def __init__(self, folder: Path, key: bytes) -> None:
        self.store = new_store(folder, quota=32 * MB)
        self._peers = Peers(lambda _: None, lambda name: self.store if name == "tenant" else None)
        self._peers._key = key
        self.threads: list[threading.Thread] = []

    def line(self) -> socket.socket:
        here, there = socket.socketpair()
        self.threads.append(threading.Thread(target=self._peers._serve, args=(there,), daemon=True))
        self.threads[-1].start()
        return here

    def wait(self) -> None:
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()


class Nodes:
    """This node's side, and what its supervisor brings when it is asked for lines."""

    def __init__(self) -> None:
        self.peers = Peers(self._connect_peers, lambda _: None)
        door, listener = socket.socketpair()
        self.peers._key = KEY
        self._unused = (door, listener)
        self.lines: list[tuple[str, socket.socket]] = []

    def _connect_peers(self, number: str) -> None:
        for node, line in self.lines:
            self.peers.add_lines(Peer(node, number), [line])
        self.peers.add_lines(Peer("", number), [])

    def fetch(self, store: ArenaStore, block: str, *lines: tuple[str, socket.socket]) -> bool:
        self.lines = list(lines)
        return self.peers.fetch(store, "s", block)


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    yield made
    for end in made._unused:
        end.close()


@pytest.fixture
def store(tmp_path: Path) -> ArenaStore:
    store = new_store(tmp_path / "here")
    store.attach_session(Session("s", os.getpid(), start_ticks(os.getpid())))
    return store


def holding(folder: Path, *blocks: str, nbytes: int = 5 * MB, key: bytes = KEY) -> Lender:
    lender = Lender(folder, key)
    lender.store.attach_session(Session("w", os.getpid(), start_ticks(os.getpid())))
    for block in blocks:
        data = block[:1].encode() * nbytes
        lender.store.put("w", PutSmall(block, data, 7, "table", "mine", 2.5))
        lender.store.record_digest(lender.store.catalogue.entries[block], f"sum of {block[0]}")
    lender.store.disconnect_session("w")
    return lender


def said_anything(far: socket.socket) -> bool:
    """Whether anything was sent before the line was closed."""
    far.settimeout(10)
    with far:
        return far.recv(1) != b""


def test_a_copy_is_the_block_with_all_that_is_known_of_it(nodes: Nodes, store: ArenaStore, tmp_path: Path) -> None:
    lender = holding(tmp_path / "there", A)
    assert nodes.fetch(store, A, ("n1", lender.line()))
    entry = store.catalogue.entries[A]
    told = (entry.header, entry.kind, entry.label, entry.cost_s, entry.digest)
    assert told == (7, "table", "mine", 2.5, "sum of a")
    assert bytes(store.view(entry.offset, entry.nbytes)) == b"a" * 5 * MB
    assert store.catalogue.pins == {A: {"s"}}
    lender.wait()
    assert not lender.store.catalogue.sessions and not lender.store.catalogue.pins, "lending holds nothing for ever"


def test_the_next_node_is_asked_when_one_has_nothing_or_is_a_stranger(
    nodes: Nodes, store: ArenaStore, tmp_path: Path
) -> None:
    empty, stranger = holding(tmp_path / "empty", B), holding(tmp_path / "stranger", A, key=b"x" * 32)
    lender = holding(tmp_path / "there", A)
    lines = [("n1", empty.line()), ("n2", stranger.line())]
    assert not nodes.fetch(store, A, *lines)
    assert A not in store.catalogue.entries and store.usage().used == 0
    assert nodes.fetch(store, A, ("n1", empty.line()), ("n2", stranger.line()), ("n3", lender.line()))
    for each in (empty, stranger, lender):
        each.wait()


def test_of_several_that_have_it_the_first_is_asked_and_no_other(
    nodes: Nodes, store: ArenaStore, tmp_path: Path
) -> None:
    lender = holding(tmp_path / "there", A)
    near, far = socket.socketpair()
    assert nodes.fetch(store, A, ("n1", lender.line()), ("n2", near))
    assert not said_anything(far)


@pytest.mark.parametrize("still_late", [True, False])
def test_a_node_that_was_late_is_asked_after_all_others_for_a_while(
    still_late: bool, nodes: Nodes, store: ArenaStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PROVE_S", 0.2)
    if not still_late:
        monkeypatch.setattr(module, "_LATE_S", 0.0)
    lender = holding(tmp_path / "there", A, B, nbytes=100)
    first, second = socket.socketpair(), socket.socketpair()
    assert nodes.fetch(store, A, ("hangs", first[0]), ("n2", lender.line()))
    assert said_anything(first[1])
    assert nodes.fetch(store, B, ("hangs", second[0]), ("n2", lender.line()))
    assert said_anything(second[1]) is not still_late


def test_a_line_that_ends_half_way_leaves_no_room_taken(nodes: Nodes, store: ArenaStore) -> None:
    near, far = socket.socketpair()

    def breaks_off() -> None:
        with far:
            authenticate(KEY, far, calls=False)
            far.recv(4096)
            far.sendall(framing.pack(Found(5 * MB, 0, "k", "", 0.0, "")) + b"x" * MB)

    beside = threading.Thread(target=breaks_off)
    beside.start()
    assert not nodes.fetch(store, A, ("n1", near))
    beside.join()
    assert store.usage().used == 0 and A not in store.catalogue.entries


def test_a_node_that_copies_too_slowly_is_late(
    nodes: Nodes, store: ArenaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BYTES_PER_S", 1 << 40)
    near, far = socket.socketpair()
    enough = threading.Event()

    def drips() -> None:
        with far:
            authenticate(KEY, far, calls=False)
            far.recv(4096)
            monkeypatch.setattr(module, "_FOUND_S", 0.05)
            far.sendall(framing.pack(Found(MB, 0, "k", "", 0.0, "")))
            while not enough.wait(0.02):
                far.sendall(b"x")

    def dripping() -> None:
        try:
            drips()
        except OSError:
            enough.set()  # nobody listens any more

    beside = threading.Thread(target=dripping)
    beside.start()
    assert not nodes.fetch(store, A, ("n1", near))
    enough.set()
    beside.join()
    assert store.usage().used == 0 and "n1" in nodes.peers._late


def test_a_block_for_which_there_is_no_room_here_is_refused(nodes: Nodes, store: ArenaStore, tmp_path: Path) -> None:
    lender = holding(tmp_path / "there", A, nbytes=9 * MB)
    with pytest.raises(Refusal, match="exceed tenant"):
        nodes.fetch(store, A, ("n1", lender.line()))
    lender.wait()


def test_what_is_still_written_or_is_no_id_or_another_tenants_is_not_lent(
    nodes: Nodes, store: ArenaStore, tmp_path: Path
) -> None:
    lender = holding(tmp_path / "there")
    lender.store.attach_session(Session("w", os.getpid(), start_ticks(os.getpid())))
    lender.store.reserve("w", A, 100)
    assert not nodes.fetch(store, A, ("n1", lender.line()))
    assert not nodes.fetch(store, "../a", ("n1", lender.line()))
    lender.store.commit("w", Commit(A, 0, "k"))
    store.tenant = "other"
    assert not nodes.fetch(store, A, ("n1", lender.line()))
    store.tenant = "tenant"
    assert nodes.fetch(store, A, ("n1", lender.line()))


def test_lines_go_to_who_asked_and_are_closed_when_nobody_did(nodes: Nodes) -> None:
    one, other = module._Asked(), module._Asked()
    nodes.peers._asked = {"t/1": one, "t/2": other}
    lines = [socket.socketpair() for _ in range(3)]
    nodes.peers.add_lines(Peer("n1", "t/2"), [lines[0][0]])
    nodes.peers.add_lines(Peer("n1", "gone"), [lines[1][0]])
    nodes.peers.add_lines(Peer("n1", ""), [lines[2][0]])  # a supervisor of an older version
    assert [node for node, _ in other.lines] == ["n1"] and [node for node, _ in one.lines] == ["n1"]
    assert not said_anything(lines[1][1])
    nodes.peers.add_lines(Peer("", "t/2"), [])
    assert other.complete.is_set() and not one.complete.is_set()
    for near, far in (lines[0], lines[2]):
        near.close()
        far.close()


def test_each_side_shows_that_it_knows_the_key_and_cannot_repeat_what_the_other_said() -> None:
    for keys, roles, agree in (
        ((KEY, KEY), (True, False), True), ((KEY, b"x" * 32), (True, False), False), ((KEY, KEY), (True, True), False),
    ):  # fmt: skip
        ends, found = socket.socketpair(), list[bool]()

        def show(end: socket.socket, key: bytes, calls: bool, found: list[bool] = found) -> None:
            with end:
                try:
                    authenticate(key, end, calls=calls)
                    found.append(True)
                except OSError:
                    found.append(False)

        threads = [threading.Thread(target=show, args=each) for each in zip(ends, keys, roles, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [agree, agree]
