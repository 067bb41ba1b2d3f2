"""Blocks that lie on other nodes: whoever waits for one waits alone, and not for ever."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from fairlead.errors import NotFound
from fairlead.grid.client import Grid
from fairlead.grid.messages import Peer
from fairlead.grid.peers import Peers
from fairlead.grid.process_supervisor import GridSupervisor
from fairlead.grid.standalone import StandaloneGrid
from fairlead.grid.values import BlockId
from tests.grid.conftest import MB
from tests.grid.servers import new_store
from tests.grid.test_blocks import filled
from tests.waiting import until

Make = Callable[..., StandaloneGrid]
PATIENCE_S = 60.0
UNKNOWN = BlockId("0" * 32)


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def introduced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """For whom a supervisor was asked for lines to other nodes."""
    told: list[str] = []
    really = GridSupervisor._connect_peers

    def introduce(supervisor: GridSupervisor, asking: str) -> None:
        really(supervisor, asking)
        told.append(asking)

    monkeypatch.setattr(GridSupervisor, "_connect_peers", introduce)
    return told


def stopped(standalone_grid: StandaloneGrid) -> int:
    """The grid process hangs from now on."""
    pid = until(lambda: standalone_grid.supervisor.pid)
    os.kill(pid, signal.SIGSTOP)
    return int(pid)


def asked_of(
    standalone_grid: StandaloneGrid, beside: ThreadPoolExecutor, block: BlockId
) -> tuple[Grid, Future[object]]:
    grid = standalone_grid.connect()
    return grid, beside.submit(lambda: grid.open(block).parts()[0].tobytes())


def test_who_waits_for_a_node_that_hangs_keeps_nobody_of_its_own_tenant_waiting(
    grids: Make, beside: ThreadPoolExecutor, introduced: list[str]
) -> None:
    here, there = grids("here"), grids("there", silence_s=600.0)
    there.connect().put([filled(1).data], kind="k", meta={})
    worker = here.connect()
    pid = stopped(there)
    try:
        waiting = [asked_of(here, beside, BlockId(f"{number:032x}"))[1] for number in range(4)]
        until(lambda: len(introduced) >= 2, what="somebody asks the other node")
        snapshots = [worker.put([filled(number).data], kind="k", meta={}) for number in range(3)]
        assert bytes(worker.open(snapshots[2]).parts()[0]) == filled(2).tobytes()
        assert not any(each.done() for each in waiting), "and they were not answered first"
    finally:
        os.kill(pid, signal.SIGKILL)
    for each in waiting:
        with pytest.raises(NotFound):
            each.result(PATIENCE_S)


def test_a_block_that_several_wait_for_is_brought_once_and_given_to_all(
    grids: Make, beside: ThreadPoolExecutor, introduced: list[str]
) -> None:
    here, there = grids("here"), grids("there")
    block = there.connect().put([filled(7).data], kind="k", meta={})
    waiting = [asked_of(here, beside, block) for _ in range(6)]
    assert {each.result(PATIENCE_S) for _, each in waiting} == {filled(7).tobytes()}
    assert here.connect().usage().blocks == len(introduced) == 1


def test_a_block_that_was_brought_is_pinned_by_those_who_have_it_open_only(grids: Make) -> None:
    here, there = grids("here"), grids("there")
    block = there.connect().put([filled(7).data], kind="k", meta={})
    grid = here.connect()
    grid.open(block).close()
    until(lambda: grid.usage().pinned == 0, what="nobody holds it")
    grid.drop(block)
    assert grid.usage().blocks == 0


def test_a_line_that_ends_while_it_waits_leaves_nothing_behind(
    grids: Make, beside: ThreadPoolExecutor, introduced: list[str]
) -> None:
    here, there = grids("here"), grids("there", silence_s=600.0)
    there.connect().put([filled(1).data], kind="k", meta={})
    other = here.connect()
    pid = stopped(there)
    grid, waiting = asked_of(here, beside, UNKNOWN)
    until(lambda: introduced, what="it is asked for")
    assert grid._line._socket is not None
    grid._line._closed = True
    grid._line._socket.shutdown(2)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Exception):  # noqa: B017
        waiting.result(PATIENCE_S)
    with pytest.raises(NotFound):
        other.open(UNKNOWN)
    assert other.put([bytes(MB)], kind="k", meta={})


def test_no_fetch_waits_for_what_another_asks_the_other_nodes_for(tmp_path: Path) -> None:
    asked: list[str] = []
    peers = Peers(asked.append, lambda _: None)

    def fetch(tenant: str) -> threading.Thread:
        thread = threading.Thread(target=peers.fetch, args=(new_store(tmp_path, tenant), "s", UNKNOWN), daemon=True)
        thread.start()
        until(lambda: any(number.startswith(tenant) for number in asked))
        return thread

    slow, quick = fetch("slow"), fetch("quick")
    peers.add_lines(Peer("", next(number for number in asked if number.startswith("quick"))), [])
    quick.join(PATIENCE_S)
    assert not quick.is_alive() and slow.is_alive()
    peers.add_lines(Peer("", next(number for number in asked if number.startswith("slow"))), [])
    slow.join(PATIENCE_S)
    assert not slow.is_alive()
