"""One tenant's server, round by round with a clock of the test: who is let in, who waits, who is dropped."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairlead import framing
from fairlead.grid import messages as m
from fairlead.grid import tenant_server as module
from fairlead.grid.peers import Peers
from fairlead.grid.tenant_server import TenantServer
from fairlead.unix_sockets import listen
from tests.grid.servers import new_store

A, B, C = (letter * 32 for letter in "abc")


class Worker:
    """A worker without our library."""

    def __init__(self, path: Path) -> None:
        self.line = socket.socket(socket.AF_UNIX)
        self.line.settimeout(30.0)
        self.line.connect(str(path))
        self._unpacker = framing.Unpacker(m.ToClient)
        self._answers: list[Any] = []

    def send(self, *messages: Any) -> None:
        self.line.sendall(b"".join(map(framing.pack, messages)))

    def closed(self) -> bool:
        if not select.select([self.line], [], [], 0)[0]:
            return False
        try:
            return self.line.recv(1 << 18, socket.MSG_PEEK) == b""
        except ConnectionResetError:
            return True

    def answers(self) -> list[Any]:
        """What has come so far."""
        found: list[Any] = []
        while select.select([self.line], [], [], 0)[0]:
            data, descriptors, _, _ = socket.recv_fds(self.line, 1 << 18, 4)
            for descriptor in descriptors:
                os.close(descriptor)
            if not data:
                break
            found += self._unpacker.feed(data)
        return found


class Served:
    """A server without its thread, and its workers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now_s = folder, 1000.0
        self.slept: list[float] = []
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.slept.append))
        self.server = TenantServer(new_store(folder), Peers(lambda _: None, lambda _: None))
        self.workers: list[Worker] = []
        self.listen("job")

    def listen(self, job: str, uid: int | None = None) -> None:
        listener = listen(self.folder / f"{job}.sock")
        self.server.listen(m.Listen(job, "tenant", "token", os.geteuid() if uid is None else uid), listener)
        self.rounds()

    def rounds(self) -> None:
        """Serve until nothing is left to be done at this time."""
        for _ in range(100):
            if not self.server._orders and not self.server._selector.select(0):
                break
            with contextlib.suppress(BlockingIOError):
                os.eventfd_write(self.server._wake, 1)
            self.server._serve_round()
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self.server._wake, 1)
        self.server._serve_round()

    def worker(self, job: str = "job", *messages: Any) -> Worker:
        made = Worker(self.folder / f"{job}.sock")
        self.workers.append(made)
        made.send(*messages)
        self.rounds()
        return made

    def asks(self, worker: Worker, *messages: Any) -> list[Any]:
        worker.send(*messages)
        self.rounds()
        return worker.answers()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    made = Served(tmp_path, monkeypatch)
    yield made
    for worker in made.workers:
        worker.line.close()
    for _, listener in made.server._listeners.values():
        listener.close()
    for connection in made.server._connections:
        connection.line.close()
    made.server._selector.close()
    os.close(made.server._wake)


def hello(session: str = "s", token: str = "token", held: tuple[str, ...] = ()) -> m.Hello:
    return m.Hello(token, session, list(held))


def small(block: str, data: bytes = b"x") -> m.PutSmall:
    return m.PutSmall(block, data, 0, "k")


# ---------------------------------------------------------------- who is let in


def test_nothing_is_answered_before_a_hello_with_the_right_token(served: Served) -> None:
    worker = served.worker()
    for request, why in (
        (small(A), "the first message must be Hello"), (hello(token="wrong"), "invalid grid token"),
        (hello(session=""), "1 to 64 characters"), (hello(session="x" * 65), "1 to 64 characters"),
        (m.Goodbye(), "the first message must be Hello"),
    ):  # fmt: skip
        (problem,) = served.asks(worker, request)
        assert isinstance(problem, m.Problem) and why in problem.error
    assert not served.server.store.catalogue.sessions
    welcome, placed = served.asks(worker, hello(session="x" * 64), small(A))
    assert isinstance(welcome, m.Welcome) and isinstance(placed, m.Placed), "it may try again"


def test_a_connection_of_another_user_is_refused(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.listen("theirs", uid=os.geteuid() + 1)
    stranger = served.worker("theirs", hello())
    assert stranger.closed() and "refused a grid connection of user" in caplog.text
    assert not served.server._connections


def test_a_connection_is_of_one_session(served: Served) -> None:
    worker = served.worker("job", hello("one"))
    assert isinstance(worker.answers()[0], m.Welcome)
    (again,) = served.asks(worker, hello("one"))
    assert isinstance(again, m.Welcome)
    (problem,) = served.asks(worker, hello("two"))
    assert isinstance(problem, m.Problem) and "cannot change its session" in problem.error


def test_a_worker_that_connects_again_replaces_its_old_connection_and_keeps_what_it_holds(served: Served) -> None:
    old = served.worker("job", hello(), small(A), small(B), m.Open(A), m.Open(B))
    new = served.worker("job", hello(held=(A,)))
    assert isinstance(new.answers()[0], m.Welcome)
    old.answers()
    assert old.closed() and served.server.store.catalogue.held("job/s") == {A}
    old.line.close()
    served.rounds()
    assert served.server.store.connected == {"job/s"}, "the end of the old connection changes nothing"


def test_a_session_of_another_process_is_not_taken_over(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.worker("job", hello(), small(A), m.Open(A))
    monkeypatch.setattr(module, "start_ticks", lambda pid: 1)
    thief = served.worker("job", hello())
    (problem,) = thief.answers()
    assert isinstance(problem, m.Problem) and problem.code == "forbidden"
    assert served.server.store.catalogue.held("job/s") == {A}


def test_a_hello_may_list_so_many_blocks_and_no_more(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_HELD", 2)
    assert isinstance(served.worker("job", hello(held=(A, B))).answers()[0], m.Welcome)
    (problem,) = served.worker("job", hello("t", held=(A, B, C))).answers()
    assert isinstance(problem, m.Problem) and "at most 2 blocks" in problem.error


def test_a_job_that_is_forgotten_lets_nobody_in_and_keeps_who_is_there(served: Served) -> None:
    worker = served.worker("job", hello())
    worker.answers()
    served.server.forget("job")
    served.server.forget("unknown")
    served.rounds()
    with pytest.raises(ConnectionRefusedError):
        Worker(served.folder / "job.sock")
    assert isinstance(served.asks(worker, small(A))[0], m.Placed)


# ---------------------------------------------------------------- timers


def test_a_connection_without_a_hello_is_dropped_after_ten_seconds(served: Served) -> None:
    silent = served.worker()
    served.now_s += 4.0
    later, greeted = served.worker(), served.worker("job", hello())
    assert served.server._select_timeout_s() == 6.0, "the oldest decides"
    served.now_s += 5.9
    served.rounds()
    assert not silent.closed()
    served.now_s += 0.1
    served.rounds()
    assert silent.closed() and not later.closed()
    assert served.server._select_timeout_s() == 4.0
    served.now_s += 100.0
    assert served.server._select_timeout_s() == 0.0, "overdue, not negative"
    served.rounds()
    assert later.closed() and served.server._select_timeout_s() is None
    greeted.answers()
    assert not greeted.closed() and len(served.server._connections) == 1


def test_beyond_the_most_connections_workers_wait_until_one_is_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "MOST_LINES", 2)
    first, second = served.worker("job", hello("1")), served.worker("job", hello("2"))
    third = served.worker("job", hello("3"))
    assert first.answers() and second.answers() and not third.answers()
    assert served.server._select_timeout_s() is None, "no timer helps: a connection has to end"
    first.line.close()
    served.rounds()
    assert isinstance(third.answers()[0], m.Welcome)
    waits = [each.message for each in caplog.records if "have to wait" in each.message]
    assert len(waits) == 1 and waits[0].endswith("it has 2 connections"), "the next warning is due in a minute"
    served.listen("other")
    other = served.worker("other", hello("4"))
    second.line.close()
    served.rounds()
    assert isinstance(other.answers()[0], m.Welcome), "a job that came while accepting was paused is let in, too"


def test_a_process_without_descriptors_tries_again_after_a_pause(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job, listener = served.server._listeners["job"]

    def fails() -> None:
        raise OSError(24, "too many open files")

    served.server._listeners["job"] = (job, SimpleNamespace(accept=fails, fileno=listener.fileno))  # type: ignore[assignment]
    waiting = Worker(served.folder / "job.sock")
    served.workers.append(waiting)
    os.eventfd_write(served.server._wake, 1)
    served.server._serve_round()
    served.server._listeners["job"] = (job, listener)
    assert "too many open files" in caplog.text and served.server._select_timeout_s() == pytest.approx(0.2)
    waiting.send(hello())
    served.now_s += 0.1
    served.rounds()
    assert not waiting.answers() and served.server._select_timeout_s() == pytest.approx(0.1)
    served.now_s += 0.11
    served.rounds()
    served.rounds()
    assert isinstance(waiting.answers()[0], m.Welcome)


def test_faults_are_followed_by_ever_longer_pauses_and_a_long_service_by_a_short_one(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    lives_s = [0.0] * 8 + [60.0, 0.0]

    def serve() -> None:
        if not lives_s:
            raise SystemExit
        served.now_s += lives_s.pop(0)
        raise ValueError("a fault")

    monkeypatch.setattr(served.server, "_serve_all", serve)
    with pytest.raises(SystemExit):
        served.server.run()
    assert served.slept == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 0.1])


def test_after_a_fault_connections_are_closed_and_workers_find_what_they_held(served: Served) -> None:
    worker = served.worker("job", hello(), small(A), m.Open(A), m.Reserve(B, 100))
    served.server._selector.close()
    served.server._reset()
    worker.answers()
    assert worker.closed() and served.server.store.connected == set()
    assert served.server.store.catalogue.held("job/s") == {A, B}
    again = served.worker("job", hello(held=(A, B)))
    assert isinstance(again.answers()[0], m.Welcome)
    assert served.server.store.catalogue.held("job/s") == {A, B}


# ---------------------------------------------------------------- requests


def test_orders_of_other_threads_are_carried_out_in_order_and_wake_the_server(served: Served) -> None:
    done: list[int] = []
    for number in range(3):
        served.server._order(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == [] and select.select([served.server._wake], [], [], 0)[0]
    served.server.set_quota(m.Admit("tenant", 123, spill_bytes=7))
    served.rounds()
    assert done == [0, 1, 2] and (served.server.store.quota, served.server.store._spill_bytes) == (123, 7)


def test_incomplete_messages_of_all_connections_together_are_bounded(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_UNREAD", 1000)
    packed = framing.pack(small(A, bytes(2000)))
    one, other = served.worker("job", hello("1")), served.worker("job", hello("2"))
    one.line.sendall(packed[:600])
    served.rounds()
    other.line.sendall(packed[:400])
    served.rounds()
    other.answers()
    assert not other.closed() and served.server._unread == 1000, "as much as may be"
    other.line.sendall(packed[400:401])
    served.rounds()
    assert other.closed() and served.server._unread == 600
    one.answers()
    one.line.sendall(packed[600:])
    served.rounds()
    assert isinstance(one.answers()[0], m.Placed) and served.server._unread == 0


def test_a_list_of_blocks_comes_in_pages_that_say_whether_there_are_more(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)
    worker = served.worker("job", hello(), *(small(letter * 32) for letter in "dbac"), m.Reserve("e" * 32, 10))
    worker.answers()
    first, second, third = served.asks(worker, m.AskBlocks(), m.AskBlocks(B), m.AskBlocks("d" * 32))
    assert ([each.id for each in first.blocks], first.more) == ([A, B], True)
    assert ([each.id for each in second.blocks], second.more) == ([C, "d" * 32], False)
    assert (third.blocks, third.more) == ([], False), "what is only reserved is no block"


def test_a_goodbye_ends_the_session_and_a_cut_line_does_not(served: Served) -> None:
    catalogue = served.server.store.catalogue
    cut, parting = (
        served.worker("job", hello("1"), m.Reserve(A, 10)),
        served.worker("job", hello("2"), m.Reserve(B, 10)),
    )
    cut.line.close()
    parting.send(m.Goodbye(), small(C))
    served.rounds()
    assert set(catalogue.sessions) == {"job/1"} and set(catalogue.entries) == {A}, "after a goodbye nothing is done"
    assert served.server.store.connected == set()


def test_an_internal_error_is_told_to_who_asked_and_a_release_is_never_answered(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worker = served.worker("job", hello())
    worker.answers()

    def fails(*_: object) -> None:
        raise ValueError("a fault")

    monkeypatch.setattr(served.server.store, "release", fails)
    monkeypatch.setattr(served.server.store, "drop", fails)
    (problem, placed) = served.asks(worker, m.Release(A), m.Drop(A), small(B))
    assert isinstance(placed, m.Placed) and problem.code == "unavailable"
    number = problem.error.split()[2]
    assert f"fault {number}: Drop of job" in caplog.text, "its number leads to the log"


# ---------------------------------------------------------------- blocks of other nodes


class Fetches:
    """Fetches that end when the test says so."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[m.Problem | None], None]]] = {}

    def __contains__(self, block: str) -> bool:
        return block in self.waiting

    def fetch(self, block: str, then: Callable[[m.Problem | None], None]) -> None:
        self.waiting.setdefault(block, []).append(then)

    def end(self, block: str, problem: m.Problem | None = None) -> None:
        for then in self.waiting.pop(block):
            then(problem)


def test_a_worker_that_waits_for_another_node_is_answered_in_order_and_keeps_nobody_waiting(served: Served) -> None:
    served.server._fetches = fetches = Fetches()  # type: ignore[assignment]
    waits, other = served.worker("job", hello("1")), served.worker("job", hello("2"))
    waits.answers(), other.answers()
    assert served.asks(waits, m.Open(A), m.AskUsage()) == []
    assert served.asks(waits, m.AskUsage()) == [], "nothing more is read of it"
    assert isinstance(served.asks(other, small(B))[0], m.Placed)
    assert served.asks(other, m.Open(A)) == [] and len(fetches.waiting[A]) == 2
    with served.server.store.lock:
        served.server.store.put("job/2", small(A, b"from elsewhere"))
    fetches.end(A)
    served.rounds()
    found = waits.answers()
    assert [type(each) for each in found] == [m.Placed, m.UsageAnswer, m.UsageAnswer]
    assert found[0].nbytes == 14 and isinstance(other.answers()[0], m.Placed)
    assert served.server.store.catalogue.pins[A] == {"job/1", "job/2"}


def test_a_fetch_that_fails_is_the_answer_and_the_next_request_is_served(served: Served) -> None:
    served.server._fetches = fetches = Fetches()  # type: ignore[assignment]
    worker = served.worker("job", hello(), m.Open(A), small(B))
    worker.answers()
    fetches.end(A, m.Problem("no room", "refused"))
    served.rounds()
    assert [type(each) for each in worker.answers()] == [m.Problem, m.Placed]
    assert isinstance(served.asks(worker, m.AskUsage())[0], m.UsageAnswer), "its line is read again"


def test_a_worker_that_is_replaced_while_it_waits_gets_no_answer_and_ends_nothing(served: Served) -> None:
    served.server._fetches = fetches = Fetches()  # type: ignore[assignment]
    old = served.worker("job", hello(), m.Open(A))
    new = served.worker("job", hello())
    assert isinstance(new.answers()[0], m.Welcome)
    fetches.end(A, m.Problem("too late"))
    served.rounds()
    old.answers()
    assert old.closed() and isinstance(served.asks(new, small(B))[0], m.Placed)


def test_only_a_block_that_is_not_here_is_fetched(served: Served) -> None:
    served.server._fetches = fetches = Fetches()  # type: ignore[assignment]
    worker = served.worker("job", hello(), small(A))
    worker.answers()
    placed, problem = served.asks(worker, m.Open(A), m.Open("no id"))
    assert isinstance(placed, m.Placed) and problem.code == "not-found" and fetches.waiting == {}
