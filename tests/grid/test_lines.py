"""A line that is cut, interrupted or closed: while its process lives, nothing goes from under a reader or a writer."""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from fairlead.grid import Grid
from fairlead.grid.layout import Layout
from fairlead.grid.standalone import StandaloneGrid
from tests.grid.conftest import MB
from tests.grid.test_blocks import filled
from tests.waiting import until

Make = Callable[..., StandaloneGrid]


def cut_line(grid: Grid) -> None:
    """As a network or an answer that takes too long would."""
    assert grid._line._socket is not None
    grid._line._socket.shutdown(socket.SHUT_RDWR)


def flood(grid: Grid) -> None:
    for number in range(8):
        grid.put([filled(100 + number).data], kind="k", meta={})


def test_a_cut_line_takes_no_pinned_block_from_its_reader(grids: Make) -> None:
    standalone_grid = grids(quota=4 * MB)
    reader, other = standalone_grid.connect(), standalone_grid.connect()
    block = other.put([filled(1).data], kind="k", meta={})
    view = reader.open(block).parts()[0]
    cut_line(reader)
    time.sleep(1.5)  # the grid process looks after its sessions every second
    flood(other)
    assert other.usage().pinned >= MB and bytes(view) == filled(1).tobytes()
    assert bytes(reader.open(block).parts()[0]) == filled(1).tobytes(), "the line is made anew"
    flood(other)
    assert bytes(view) == filled(1).tobytes()
    del view
    gc.collect()
    until(lambda: reader.usage().pinned == 0, what="unpinned, with the next word of its reader")


def test_a_cut_line_takes_no_room_from_its_writer(grids: Make) -> None:
    standalone_grid = grids(quota=4 * MB)
    writer, other = standalone_grid.connect(), standalone_grid.connect()
    room = writer.reserve(MB + 4096)
    cut_line(writer)
    flood(other)
    layout = Layout([MB], {}, room.nbytes)
    begin, length = layout.parts[0]
    room.view[begin : begin + length] = filled(1).data
    flood(other)
    block = room.commit(layout, kind="k")
    assert bytes(other.open(block).parts()[0]) == filled(1).tobytes()


def test_views_stay_what_they_are_when_their_grid_is_closed_and_the_line_ends_with_them(grids: Make) -> None:
    standalone_grid = grids(quota=4 * MB)
    reader, other = standalone_grid.connect(), standalone_grid.connect()
    view = reader.open(other.put([filled(1).data], kind="k", meta={})).parts()[0]
    reader.close()
    flood(other)
    assert bytes(view) == filled(1).tobytes() and other.usage().pinned >= MB
    del view
    gc.collect()
    until(lambda: other.usage().pinned == 0, what="unpinned")
    assert reader._line._socket is None, "nobody is there any more"


def test_a_process_that_is_killed_holds_nothing_even_if_nobody_asks_for_its_exit_code(grids: Make) -> None:
    standalone_grid = grids(quota=4 * MB)
    grid = standalone_grid.connect()
    block = grid.put([filled(1).data], kind="k", meta={})
    ready, tell = os.pipe()
    if (child := os.fork()) == 0:
        own = standalone_grid.connect()
        held = own.open(block), own.reserve(MB)
        os.write(tell, b"!")
        while held:
            time.sleep(60)
    os.read(ready, 1)
    assert grid.usage().pinned >= MB and grid.usage().used >= 2 * MB
    os.kill(child, signal.SIGKILL)
    try:
        until(lambda: grid.usage().pinned == 0 and grid.usage().used < 2 * MB, what="let go")
    finally:
        os.waitpid(child, 0)
        os.close(ready)
        os.close(tell)


def test_an_interrupted_request_leaves_no_answer_for_the_next(grids: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = grids().connect()
    blocks = [grid.put([filled(number).data], kind="k", meta={}) for number in range(2)]
    hear = grid._line._receive

    def interrupted(descriptors: int) -> Any:
        monkeypatch.setattr(grid._line, "_receive", hear)
        raise KeyboardInterrupt

    monkeypatch.setattr(grid._line, "_receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        grid.open(blocks[0])
    assert bytes(grid.open(blocks[1]).parts()[0]) == filled(1).tobytes()
    assert bytes(grid.open(blocks[0]).parts()[0]) == filled(0).tobytes()
