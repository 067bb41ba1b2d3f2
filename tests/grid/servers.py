"""Parts of a grid process in this one, for what cannot be brought about from outside."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from fairlead.grid import mapping
from fairlead.grid import messages as m
from fairlead.grid.arena_store import ArenaStore
from fairlead.grid.client import Grid
from fairlead.grid.peers import Peers
from fairlead.grid.tenant_server import TenantServer
from fairlead.unix_sockets import listen
from tests.grid.conftest import MB


def new_store(folder: Path, tenant: str = "tenant", quota: int = 8 * MB) -> ArenaStore:
    """The arena of a tenant that nobody serves; it lives as long as this process."""
    arena = mapping.create(tenant, 64 * MB)
    journal = mapping.create(f"{tenant}-journal", 4 * MB)
    admit = m.Admit(tenant, quota, secrets.token_bytes(32), spill_bytes=quota)
    return ArenaStore(admit, arena, mapping.read_only(arena), journal, folder)


@contextlib.contextmanager
def tenant_server(folder: Path, name: str = "job") -> Iterator[TenantServer]:
    """A tenant's thread, which workers of one job find at ``folder/NAME.sock``."""
    server = TenantServer(new_store(folder), Peers(lambda _: None, lambda _: None))
    listener = listen(folder / f"{name}.sock")
    server.listen(m.Listen(name, "tenant", "token", os.geteuid()), listener)
    server.start()
    try:
        yield server
    finally:
        server._order(sys.exit)
        server.join()
        listener.close()
        (folder / f"{name}.sock").unlink()


def worker(folder: Path, name: str = "job") -> Grid:
    return Grid(folder / f"{name}.sock", "token")


def line(path: Path) -> socket.socket:
    """To whoever listens there, without our library."""
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(30.0)
    made.connect(str(path))
    return made
