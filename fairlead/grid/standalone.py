"""A grid without a platform, for tests, benchmarks and trying it by hand."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from fairlead.grid.client import Grid
from fairlead.grid.messages import Admit
from fairlead.grid.process_supervisor import CHECK_S, GridSupervisor
from fairlead.grid.values import DEFAULT_QUOTA, TOKEN_VARIABLE, VARIABLE


class StandaloneGrid:
    """A grid supervisor with a thread that drives it."""

    def __init__(
        self, folder: Path, name: str = "grid", peers: Path | None = None, key: bytes = b"", silence_s: float = 15.0
    ) -> None:
        """Grids with the same ``peers`` folder and key fetch blocks from each other."""
        self.folder = folder
        peer_path = None if peers is None else peers / f"{name}.grid"
        self.supervisor = GridSupervisor(folder / "spill", name=f"fl-{name}", peer_path=peer_path, peer_key=key,
                             silence_s=silence_s)  # fmt: skip
        self._lock = threading.Lock()
        self._ending, self._end = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="grid-supervisor", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        check_s = time.monotonic() + CHECK_S
        while True:
            due_s = max(0.0, check_s - time.monotonic())
            ready, _, _ = select.select([self.supervisor.fileno(), self._ending], [], [], due_s)
            if self._ending in ready:
                return
            with self._lock:
                self.supervisor.handle_events()
                if time.monotonic() >= check_s:
                    self.supervisor.check()
                    check_s = time.monotonic() + CHECK_S

    def admit(self, tenant: str = "tenant", quota: int = DEFAULT_QUOTA, *, encrypted: bool = False,
              spill_bytes: int = DEFAULT_QUOTA) -> dict[str, str]:  # fmt: skip
        """Admit a tenant; returns the environment variables by which its workers find the grid."""
        key = secrets.token_bytes(32)
        path = self.folder / f"{tenant}.sock"
        with self._lock:
            self.supervisor.admit(Admit(tenant, quota, key, encrypted, spill_bytes))
            token = self.supervisor.listen(tenant, tenant, path)
        return {VARIABLE: str(path), TOKEN_VARIABLE: token}

    def connect(self, tenant: str = "tenant") -> Grid:
        """Connect as a worker of an admitted tenant."""
        with self._lock:
            token = self.supervisor.listen(tenant, tenant, self.folder / f"{tenant}.sock")
        return Grid(self.folder / f"{tenant}.sock", token)

    def close(self) -> None:
        os.close(self._end)
        self._thread.join()
        os.close(self._ending)
        self.supervisor.close()


@contextlib.contextmanager
def standalone_grid(folder: Path, quota: int = DEFAULT_QUOTA, *, encrypted: bool = False) -> Iterator[StandaloneGrid]:
    """A grid with one admitted tenant, closed at the end of the block."""
    running = StandaloneGrid(folder)
    try:
        running.admit(quota=quota, encrypted=encrypted)
        yield running
    finally:
        running.close()
