"""Whatever is said to a grid process, it goes on, and so do all of its threads."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable

import pytest

from fairlead import framing
from fairlead.grid import messages as m
from fairlead.grid.standalone import StandaloneGrid
from tests import hostile
from tests.grid.conftest import MB
from tests.grid.servers import line
from tests.grid.test_crowds import works

Make = Callable[..., StandaloneGrid]
LINES = 150
BLOCKS = [f"{number:032x}" for number in range(4)]
HONEST = [m.AskUsage(), m.AskBlocks(), m.Goodbye(), m.Writer()] + [
    kind
    for block in BLOCKS
    for kind in (m.Open(block), m.Release(block), m.Drop(block), m.Reserve(block, 5000), m.Commit(block, 0, "k"),
                 m.PutSmall(block, bytes(900), 0, "k", "label"), m.Reserve(block, 5 * MB), m.Commit(block, 9999, "k"))
]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_no_thread_of_a_grid_process_ends_whatever_a_tenant_says(grids: Make, seed: int) -> None:
    grid = grids(tenant="hostile")
    log = grid.folder / "log"
    grid.supervisor.log_path = log
    grid.admit("other", 8 * MB)
    assert works(grid, "other") and works(grid, "hostile")
    pid, chance = grid.supervisor.pid, random.Random(seed)
    token = grid.admit("hostile", 8 * MB)["FAIRLEAD_GRID_TOKEN"]
    said = hostile.lines(m.FromClient, seed, 100 * LINES)
    for number in range(LINES):
        with line(grid.folder / "hostile.sock") as wire, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            if chance.random() < 0.8:
                wire.sendall(framing.pack(m.Hello(token, f"session-{number % 20}", chance.sample(BLOCKS, 2))))
            for _ in range(chance.randrange(1, 8)):
                wire.sendall(framing.pack(chance.choice(HONEST)) if chance.random() < 0.6 else next(said))
            wire.shutdown(socket.SHUT_WR)
            while wire.recv(1 << 16):
                pass
    assert works(grid, "other") and works(grid, "hostile")
    assert grid.supervisor.pid == pid and not grid.supervisor.trouble
    assert "fault" not in log.read_text()
    log.unlink()
