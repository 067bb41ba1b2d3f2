"""A grid process goes on whatever a tenant says, and one that hangs is started again, with all that was in it."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from fairlead import framing
from fairlead.grid import messages as m
from fairlead.grid.catalogue import RESIDENT, Entry
from fairlead.grid.peers import Peers
from fairlead.grid.process import GridProcess
from fairlead.grid.standalone import StandaloneGrid
from fairlead.grid.tenant_server import TenantServer
from tests.grid.conftest import MB
from tests.grid.servers import line, new_store, tenant_server, worker
from tests.grid.test_blocks import filled
from tests.grid.test_crowds import works
from tests.waiting import until

Make = Callable[..., StandaloneGrid]
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # how threads end here
PATIENCE_S = 60.0
DEEP = 100_000
HELLO_WITH_MORE = b"\x82\xa4type\xa5hello\xa7unknown"


def framed(body: bytes) -> bytes:
    return framing.HEADER.pack(len(body)) + body


def heard(wire: socket.socket, count: int) -> list[object]:
    unpacker, found = framing.Unpacker(m.ToClient), list[object]()
    while len(found) < count:
        data = wire.recv(1 << 16)
        assert data, "the line ended"
        found += unpacker.feed(data)
    return found


@pytest.mark.parametrize("deep", [b"\x91" * DEEP + b"\xc0", b"\x81\xa1a" * DEEP + b"\xc0"], ids=["lists", "maps"])
def test_a_line_nested_too_deep_is_closed_and_230_jobs_later_everybody_is_served(grids: Make, deep: bytes) -> None:
    grid = grids(tenant="hostile")
    grid.admit("other", 8 * MB)
    assert works(grid, "hostile") and works(grid, "other")
    pid = grid.supervisor.pid or 0
    before = psutil.Process(pid).num_fds()
    with line(grid.folder / "hostile.sock") as wire:
        wire.sendall(framed(HELLO_WITH_MORE + deep))
        assert wire.recv(1) == b"", "refused"
    for number in range(230):
        with grid._lock:
            token = grid.supervisor.listen(f"job-{number}", "hostile", grid.folder / "job.sock")
        with line(grid.folder / "job.sock") as wire:
            wire.sendall(framing.pack(m.Hello(token, "session")))
            assert isinstance(heard(wire, 1)[0], m.Welcome)
        with grid._lock:
            grid.supervisor.forget(f"job-{number}")
    assert works(grid, "other") and works(grid, "hostile")
    assert grid.supervisor.pid == pid and not grid.supervisor.trouble
    until(lambda: psutil.Process(pid).num_fds() < before + 20, what="descriptors of jobs that are over are closed")


def test_nobody_waits_for_a_tenants_thread_that_has_ended(tmp_path: Path) -> None:
    server = TenantServer(new_store(tmp_path), Peers(lambda _: None, lambda _: None))
    server._order(sys.exit)
    server.start()
    server.join()
    ordering = threading.Thread(target=lambda: [server.forget(f"job-{number}") for number in range(5000)], daemon=True)
    ordering.start()
    ordering.join(PATIENCE_S)
    assert not ordering.is_alive()


def test_a_tenants_thread_that_fails_serves_anew_and_its_workers_keep_what_they_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise LookupError("a fault of ours")

    with tenant_server(tmp_path) as server, worker(tmp_path) as grid:
        view = grid.open(grid.put([filled(1).data], kind="k", meta={})).parts()[0]
        for _ in range(2):
            server._order(fails)
            for number in range(6):
                grid.put([filled(number, 2 * MB).data], kind="k", meta={})
            assert bytes(view) == filled(1).tobytes() and grid.usage().pinned >= MB
        assert server.is_alive()
        assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [LookupError, LookupError]


def test_after_a_fault_the_requests_behind_it_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tenant_server(tmp_path) as server, line(tmp_path / "job.sock") as wire:
        usage = server.store.usage
        faults = [LookupError("a fault of ours")]

        def fails_once() -> object:
            if faults:
                raise faults.pop()
            return usage()

        monkeypatch.setattr(server.store, "usage", fails_once)
        said = [m.Hello("token", "session"), m.AskUsage(), m.Release("0" * 32), m.AskUsage(), m.AskBlocks()]
        wire.sendall(b"".join(map(framing.pack, said)))
        kinds = [type(each) for each in heard(wire, count=4)]
        assert kinds == [m.Welcome, m.Problem, m.UsageAnswer, m.Blocks]


def test_after_a_refusal_the_requests_behind_it_are_answered(tmp_path: Path) -> None:
    with tenant_server(tmp_path), line(tmp_path / "job.sock") as wire:
        said = [m.AskUsage(), m.Hello("token", "s"), m.Drop("0" * 32), m.Goodbye()]
        wire.sendall(b"".join(map(framing.pack, said)))
        told = heard(wire, count=3)
        assert [getattr(each, "code", "") for each in told] == ["forbidden", "", "not-found"]
        assert wire.recv(1) == b"", "it said goodbye"


def test_a_grid_process_that_hangs_is_started_again_with_all_that_was_in_it(grids: Make) -> None:
    standalone_grid = grids(silence_s=3.0, quota=4 * MB)
    grid = standalone_grid.connect()
    blocks = [grid.put([filled(number).data], kind="k", meta={}) for number in range(6)]
    view = grid.open(blocks[5]).parts()[0]
    before, pid = grid.usage(), standalone_grid.supervisor.pid or 0
    os.kill(pid, signal.SIGSTOP)
    for number in range(1000):  # more than its line takes: whoever keeps it does not hang with it
        with standalone_grid._lock:
            standalone_grid.supervisor.listen(f"job-{number}", "tenant", standalone_grid.folder / "job.sock")
            standalone_grid.supervisor.forget(f"job-{number}")
    after = grid.usage()
    assert standalone_grid.supervisor.pid != pid and not psutil.pid_exists(pid)
    assert (after.used, after.pinned, after.spilled) == (before.used, before.pinned, before.spilled)
    assert bytes(view) == filled(5).tobytes()
    assert (
        "was restarted" in standalone_grid.supervisor.trouble
        and "answered no ping for 3 s" in standalone_grid.supervisor.trouble
    )
    for number, block in enumerate(blocks):
        assert bytes(grid.open(block).parts()[0]) == filled(number).tobytes()


def test_a_grid_process_that_is_only_slow_is_left_alone(grids: Make) -> None:
    standalone_grid = grids(silence_s=30.0)
    grid = standalone_grid.connect()
    pid = standalone_grid.supervisor.pid or 0
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: "has not answered" in standalone_grid.supervisor.trouble, what="it is said")
    finally:
        os.kill(pid, signal.SIGCONT)
    until(lambda: not standalone_grid.supervisor.trouble, what="it is heard again")
    assert grid.usage().blocks == 0 and standalone_grid.supervisor.pid == pid


def test_an_interrupt_from_the_terminal_is_ignored(grids: Make) -> None:
    """Whoever presses Ctrl-C ends the platform in order; the grid process goes last."""
    standalone_grid = grids()
    standalone_grid.connect().usage()
    lines = Path(f"/proc/{standalone_grid.supervisor.pid}/status").read_text().splitlines()
    ignored = int(next(each for each in lines if each.startswith("SigIgn:")).split()[1], 16)
    assert ignored >> (signal.SIGINT - 1) & 1


def test_a_tenant_whose_disk_is_slow_keeps_no_other_from_hashes_and_reports(tmp_path: Path) -> None:
    with tenant_server(tmp_path) as server, socket.socket() as control:
        process = GridProcess(control, tmp_path)
        server.store.lock.acquire()
        try:
            begun_s = time.monotonic()
            other = threading.Thread(target=lambda: (process._hash_one(server), process._report(server)), daemon=True)
            other.start()
            other.join(PATIENCE_S)
            assert not other.is_alive() and time.monotonic() - begun_s < PATIENCE_S
        finally:
            server.store.lock.release()


def test_a_worker_that_holds_a_thousand_blocks_is_known_again(tmp_path: Path) -> None:
    with tenant_server(tmp_path), line(tmp_path / "job.sock") as wire:
        held = [f"{number:032x}" for number in range(1_000)]
        wire.sendall(framing.pack(m.Hello("token", "session", held)))
        assert isinstance(heard(wire, count=1)[0], m.Welcome)


def test_a_worker_that_says_it_holds_more_than_any_could_is_refused(tmp_path: Path) -> None:
    with tenant_server(tmp_path), line(tmp_path / "job.sock") as wire:
        wire.sendall(framing.pack(m.Hello("token", "session", ["0" * 32] * ((1 << 16) + 1))))
        told = heard(wire, count=1)[0]
        assert isinstance(told, m.Problem) and "at most 65536 blocks open" in str(told)


def test_a_block_that_is_not_here_or_still_on_its_way_is_looked_for_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, coming, missing = (f"{number:032x}" for number in range(3))
    server = TenantServer(new_store(tmp_path), Peers(lambda _: None, lambda _: None))
    for block in (there, coming):
        server.store.catalogue.apply(Entry(block, 0, RESIDENT, offset=0))
    monkeypatch.setattr(server, "_fetches", {coming})
    assert [server._needs_fetch(block) for block in (there, coming, missing, "no id")] == [False, True, True, False]
