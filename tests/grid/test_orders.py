"""What a grid process does with each order of its supervisor, in this process."""

from __future__ import annotations

import os
import secrets
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fairlead.grid import mapping
from fairlead.grid import messages as m
from fairlead.grid import process as process_module
from fairlead.grid.peers import authenticate
from fairlead.grid.process import GridProcess
from fairlead.grid.process_supervisor import CHECK_S, GridSupervisor
from fairlead.unix_sockets import listen, receive_packet, send_packet
from tests.grid.conftest import MB
from tests.waiting import until

KEY = b"k" * 32


class Tenant:
    """Stands where the thread of a tenant stands, and keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *words: self.told.append((name, *words))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[SimpleNamespace]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.settimeout(30.0)
    made = GridProcess(there, tmp_path)

    def heard() -> Any:
        return msgspec.msgpack.decode(receive_packet(here)[0], type=m.ToSupervisor)

    yield SimpleNamespace(grid=made, heard=heard)
    here.close()
    there.close()


def test_a_sign_of_life_is_given_for_each_that_is_asked_for(process: SimpleNamespace) -> None:
    process.grid._handle_message(m.Ping(7), [])
    assert process.heard() == m.Pong(7)


def test_what_a_job_or_a_tenant_needs_no_more_is_forgotten_by_whom_it_concerns(process: SimpleNamespace) -> None:
    one, other = Tenant(), Tenant()
    process.grid._servers |= {"one": one, "other": other}
    process.grid._handle_message(m.Forget("job-1"), [])
    process.grid._handle_message(m.Discard("mine", "one"), [])
    process.grid._handle_message(m.Discard("anybodys"), [])
    assert one.told == [("forget", "job-1"), ("discard", "mine"), ("discard", "anybodys")]
    assert other.told == [("forget", "job-1"), ("discard", "anybodys")]
    with socket.socket() as listener:
        said = m.Listen("job-2", "other", "token", None)
        process.grid._handle_message(said, [os.dup(listener.fileno())])
        assert other.told[-1][:2] == ("listen", said) and other.told[-1][2].fileno() >= 0
        other.told[-1][2].close()
    assert ("listen", said) not in one.told


def test_a_tenant_that_is_told_of_again_keeps_its_arena(process: SimpleNamespace) -> None:
    known = Tenant()
    process.grid._servers["t"] = known
    descriptors = [os.memfd_create("x") for _ in range(3)]
    said = m.Admit("t", 5 * MB)
    process.grid._handle_message(said, descriptors)
    assert known.told == [("set_quota", said)]
    for descriptor in descriptors:
        with pytest.raises(OSError):
            os.fstat(descriptor)


def test_other_nodes_knock_at_the_door_and_borrow_what_is_there(process: SimpleNamespace, tmp_path: Path) -> None:
    arena = mapping.create("t", 64 * MB)
    descriptors = [arena, mapping.read_only(arena), mapping.create("t-journal", 4 * MB)]
    process.grid._handle_message(m.Admit("t", 8 * MB, secrets.token_bytes(32), spill_bytes=8 * MB), descriptors)
    store = process.grid._store("t")
    assert store is not None and process.grid._store("u") is None
    with listen(tmp_path / "door") as listener:
        process.grid._handle_message(m.PeerListener(os.geteuid(), KEY), [os.dup(listener.fileno())])
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(30.0)
            line.connect(str(tmp_path / "door"))
            authenticate(KEY, line, calls=True)
    process.grid._servers["t"]._order(raise_exit)
    process.grid._servers["t"].join()


def raise_exit() -> None:
    raise SystemExit


def test_descriptors_that_come_with_a_packet_stay_in_this_process() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with here, there:
        given = os.memfd_create("x")
        os.set_inheritable(given, True)
        send_packet(there, b"take it", [given, given])
        data, descriptors = receive_packet(here)
        assert data == b"take it" and [os.get_inheritable(each) for each in descriptors] == [False, False]
        for each in (given, *descriptors):
            os.close(each)


def test_lines_that_were_asked_for_come_with_their_descriptors(process: SimpleNamespace) -> None:
    asked = process.grid._peers
    seen: list[Any] = []
    asked.add_lines = lambda said, lines: seen.append((said, lines))  # type: ignore[method-assign]
    mine, yours = socket.socketpair()
    process.grid._handle_message(m.Peer("n1", "t/1"), [os.dup(yours.fileno())])
    process.grid._handle_message(m.Peer("", "t/1"), [])
    (said, (line,)), (last, none) = seen
    assert said == m.Peer("n1", "t/1") and last == m.Peer("", "t/1") and none == []
    mine.sendall(b"x")
    assert line.recv(1) == b"x"
    for each in (mine, yours, line):
        each.close()
    process.grid._peers._ask("t/2")
    assert process.heard() == m.AskPeers("t/2")


def test_an_order_that_fails_is_the_trouble_of_one_tenant(tmp_path: Path) -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.settimeout(30.0)
    made = GridProcess(there, tmp_path)
    made._background = lambda: None  # type: ignore[method-assign]
    for said in (m.Listen("j", "nobody", "t", None), m.Ping(1)):
        send_packet(here, msgspec.msgpack.encode(said))
    send_packet(here, b"\xc1 what is this")
    send_packet(here, msgspec.msgpack.encode(m.Ping(2)))
    here.shutdown(socket.SHUT_WR)
    made.run()
    assert [msgspec.msgpack.decode(receive_packet(here)[0], type=m.ToSupervisor) for _ in range(2)] == [
        m.Pong(1),
        m.Pong(2),
    ]
    here.close()
    made._send(m.Pong(3))  # to nobody: the main thread sees its end
    there.close()


def test_only_news_are_reported_and_one_tenant_in_trouble_stops_no_other(process: SimpleNamespace) -> None:
    usage = m.Usage(1, 2, 3)

    class ArenaStore:
        tenant = "t"
        reaped = 0

        def __init__(self) -> None:
            self.lock = threading.Lock()
            self.used = usage

        def end_dead_sessions(self) -> None:
            self.reaped += 1

        def trim(self, now_s: float) -> None: ...
        def usage(self) -> m.Usage:
            return self.used

    server: Any = SimpleNamespace(store=ArenaStore())
    assert process.grid._report(server) and process.heard() == m.Report({"t": usage})
    assert process.grid._report(server) and server.store.reaped == 2
    server.store.used = m.Usage(1, 2, 4)
    assert process.grid._report(server) and process.heard() == m.Report({"t": m.Usage(1, 2, 4)})

    def fails(_: Any) -> bool:
        raise ValueError("in trouble")

    assert process.grid._guarded(fails, server) is False and process.grid._guarded(lambda _: True, server) is True


def test_a_tenant_that_is_busy_or_has_nothing_to_hash_counts_as_no_work(
    process: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the background thread would never pause."""
    monkeypatch.setattr(process_module, "_BUSY_S", 0.001)
    server: Any = SimpleNamespace(store=SimpleNamespace(lock=threading.Lock(), next_unhashed=lambda: None))
    assert process.grid._hash_one(server) is False and not server.store.lock.locked()
    with server.store.lock:
        assert process.grid._hash_one(server) is False


# ---------------------------------------------------------------- the supervisor's side


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[tuple[GridSupervisor, socket.socket]]:
    """A supervisor whose grid process is the test: its end of the line."""
    supervisor = GridSupervisor(tmp_path / "spill", peer_path=tmp_path / "n0.grid", peer_key=KEY)
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    there.setblocking(False)
    here.settimeout(30.0)
    supervisor._control = there
    supervisor._poll.register(there.fileno(), select.EPOLLIN)
    yield supervisor, here
    here.close()
    there.close()
    supervisor._poll.close()


def told(line: socket.socket) -> tuple[Any, list[int]]:
    data, descriptors = receive_packet(line)
    return msgspec.msgpack.decode(data, type=m.FromSupervisor), descriptors


def say(line: socket.socket, message: Any) -> None:
    line.send(msgspec.msgpack.encode(message))


def test_a_keeper_adds_up_what_it_is_told_and_a_sign_of_life_is_the_end_of_silence(
    kept: tuple[GridSupervisor, socket.socket],
) -> None:
    supervisor, line = kept
    one, other = m.Usage(1, 0, 0), m.Usage(2, 0, 0)
    for said in (m.Report({"a": one}), m.Report({"b": one}), m.Report({"a": other})):
        say(line, said)
        supervisor.handle_events()
    assert supervisor.usage == {"a": other, "b": one}
    supervisor._unanswered_pings = 3
    line.send(b"\xc1 nonsense")
    supervisor.handle_events()
    assert supervisor._unanswered_pings == 3
    say(line, m.Pong(1))
    supervisor.handle_events()
    assert supervisor._unanswered_pings == 0 and supervisor.trouble == ""


def test_a_keeper_says_when_its_process_is_silent(kept: tuple[GridSupervisor, socket.socket]) -> None:
    supervisor, _ = kept
    quiet = 0
    while not supervisor.trouble:
        quiet += 1
        supervisor._unanswered_pings = quiet
    assert quiet * CHECK_S >= 5.0 and f"has not answered for {quiet * CHECK_S:.0f} s" in supervisor.trouble


def test_lines_to_all_other_nodes_are_brought_in_order_and_then_the_word_that_these_were_all(
    kept: tuple[GridSupervisor, socket.socket], tmp_path: Path
) -> None:
    supervisor, line = kept
    doors = [listen(tmp_path / f"{name}.grid") for name in ("n2", "n0", "n1")]
    (tmp_path / "gone.grid").touch()
    (tmp_path / "other.sock").touch()
    say(line, m.AskPeers("t/1"))
    supervisor.handle_events()
    found = [told(line) for _ in range(3)]
    assert [said for said, _ in found] == [m.Peer("n1", "t/1"), m.Peer("n2", "t/1"), m.Peer("", "t/1")]
    assert [len(descriptors) for _, descriptors in found] == [1, 1, 0]
    for (_, descriptors), door in zip(found[:2], (doors[2], doors[0]), strict=True):
        door.settimeout(30.0)
        with socket.socket(fileno=descriptors[0]) as near, door.accept()[0] as far:
            near.setblocking(True)
            near.sendall(b"x")
            assert far.recv(1) == b"x"
    for door in doors:
        door.close()


def test_a_keeper_whose_process_does_not_read_does_not_wait_for_it(kept: tuple[GridSupervisor, socket.socket]) -> None:
    supervisor, line = kept
    for number in range(1500):
        supervisor._tell(m.Ping(number))
    assert 0 < len(supervisor._unsent) < 1500
    seen = []

    def drained() -> bool:
        while select.select([line], [], [], 0)[0]:
            seen.append(told(line)[0].number)
        supervisor.handle_events()
        return not supervisor._unsent and not select.select([line], [], [], 0)[0]

    until(drained)
    assert seen == list(range(1500))
    supervisor.handle_events()


def test_who_may_come_is_said_once_and_its_key_stays(
    kept: tuple[GridSupervisor, socket.socket], tmp_path: Path
) -> None:
    supervisor, line = kept
    supervisor.admit(m.Admit("t", 8 * MB, b"a" * 32, encrypted=True))
    supervisor.admit(m.Admit("t", 8 * MB, b"b" * 32))
    supervisor.admit(m.Admit("t", 9 * MB, b"c" * 32))
    first, second = told(line), told(line)
    assert [(said.quota, said.key, said.encrypted) for said, _ in (first, second)] == [
        (8 * MB, b"a" * 32, True), (9 * MB, b"a" * 32, True)
    ]  # fmt: skip
    assert len(first[1]) == len(second[1]) == 3
    for descriptor in (*first[1], *second[1]):
        os.close(descriptor)
    token = supervisor.listen("j", "t", tmp_path / "j.sock")
    assert supervisor.listen("j", "t", tmp_path / "j.sock") == token and len(token) > 20
    said, (door,) = told(line)
    os.close(door)
    assert said == m.Listen("j", "t", token, None) and (tmp_path / "j.sock").exists()
    supervisor.forget("j")
    supervisor.forget("j")
    supervisor.discard("label", "t")
    assert [told(line)[0] for _ in range(2)] == [m.Forget("j"), m.Discard("label", "t")]
    assert not (tmp_path / "j.sock").exists() and supervisor.listen("j", "t", tmp_path / "j.sock") != token
    supervisor.forget("j")
    for tenancy in supervisor._tenants.values():
        for descriptor in tenancy.descriptors:
            os.close(descriptor)


@pytest.mark.parametrize(
    ("hard", "root", "soft"), [(4096, True, 1 << 20), (4096, False, 4096), (1 << 24, True, 1 << 24)]
)
def test_a_grid_process_takes_as_many_descriptors_as_it_can_have(
    hard: int, root: bool, soft: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [(1024, hard)]

    def limit(_: int, wanted: tuple[int, int]) -> None:
        if wanted[1] > hard and not root:
            raise ValueError("only root raises the hard limit")
        limits.append(wanted)

    monkeypatch.setattr(process_module.resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(process_module.resource, "setrlimit", limit)
    monkeypatch.setattr(process_module, "_DESCRIPTORS", 1 << 20)
    process_module._allow_descriptors()
    assert limits[1:] == [(soft, soft)]
