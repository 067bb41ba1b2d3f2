"""A tenant with more lines than there can be keeps nobody else from the grid, and itself only for as long."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from fairlead.grid.standalone import StandaloneGrid
from fairlead.grid.tenant_server import MOST_LINES
from tests.waiting import until

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def crowd(grid: StandaloneGrid, tenant: str, most: int, says: bytes = b"") -> Iterator[list[socket.socket]]:
    """As many lines as the tenant gets, which say no hello."""
    with contextlib.ExitStack() as open_lines:
        lines: list[socket.socket] = []
        refused = 0
        while len(lines) < most and refused < 100:  # the queue of the socket is full: nobody lets more in
            line = open_lines.enter_context(socket.socket(socket.AF_UNIX))
            line.setblocking(False)
            try:
                line.connect(str(grid.folder / f"{tenant}.sock"))
            except BlockingIOError:
                refused += 1
                time.sleep(0.005)
                continue
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                line.sendall(says)
            lines.append(line)
        yield lines


def works(grid: StandaloneGrid, tenant: str) -> bool:
    worker = grid.connect(tenant)
    try:
        with worker.open(worker.put([b"bytes"], kind="bytes", meta={})) as block:
            return bytes(block.parts()[0]) == b"bytes"
    finally:
        worker.close()


def test_a_tenant_with_thousands_of_lines_keeps_no_other_from_the_grid(grids: Callable[..., StandaloneGrid]) -> None:
    grid = grids(tenant="loud")
    grid.admit("quiet", 8 << 20)
    assert works(grid, "quiet") and works(grid, "loud")
    with crowd(grid, "loud", 5000) as lines:
        assert MOST_LINES <= len(lines) < MOST_LINES + 300, "those that are let in, and a queue"
        begun_s = time.monotonic()
        assert works(grid, "quiet")
        assert time.monotonic() - begun_s < 5.0
        assert works(grid, "loud"), "who says no hello is let go, and makes room"
    assert works(grid, "loud") and works(grid, "quiet")


def test_a_grid_process_without_descriptors_goes_on_when_it_has_some(grids: Callable[..., StandaloneGrid]) -> None:
    grid = grids(tenant="loud")
    grid.admit("quiet", 8 << 20)
    assert works(grid, "quiet") and works(grid, "loud")
    pid = until(lambda: grid.supervisor.pid)
    has = psutil.Process(pid).num_fds()
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    assert soft == hard, "it takes all it can have"
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (has + 20, hard))
    with crowd(grid, "loud", 100) as lines:
        assert len(lines) > 20
        until(lambda: psutil.Process(pid).num_fds() >= has + 10)
        with crowd(grid, "quiet", 10):
            time.sleep(0.3)  # both threads find that there is nothing left
    assert works(grid, "loud") and works(grid, "quiet")
    assert grid.supervisor.pid == pid, "and it is the same process"


def test_messages_that_never_end_do_not_fill_the_grid_process(grids: Callable[..., StandaloneGrid]) -> None:
    grid = grids(tenant="loud")
    assert works(grid, "loud")
    pid = until(lambda: grid.supervisor.pid)
    before = psutil.Process(pid).memory_info().rss
    most = 0
    with crowd(grid, "loud", 60) as lines:
        for line in lines:
            line.setblocking(True)
            line.settimeout(PATIENCE_S)
            with contextlib.suppress(OSError):  # some are let go half way
                line.sendall((7 << 20).to_bytes(4, "big") + bytes((7 << 20) - 1))
            most = max(most, psutil.Process(pid).memory_info().rss)
    assert most - before < 200 << 20
    assert works(grid, "loud")


def test_a_line_that_says_no_hello_is_closed(grids: Callable[..., StandaloneGrid]) -> None:
    grid = grids()
    assert works(grid, "tenant")
    with crowd(grid, "tenant", 1) as lines:
        lines[0].settimeout(PATIENCE_S)
        assert lines[0].recv(1) == b""
